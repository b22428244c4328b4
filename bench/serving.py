"""Sessions in a server: new shapes, many threads, sessions that come and go.

    python bench/serving.py MODEL.onnx [--threads 2] [--runs 10000] [--sessions 100]

MODEL has a free dim named by --dim (sequence unless told); other free dims are 1. Prints the cost
of a length that is new in every call, how runs from eight threads scale, and what memory is left by
runs with changing shapes and by sessions that are dropped.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import sardonyx

CALLERS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--dim", default="sequence")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--length", type=int, default=128, help="the longest length")
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--sessions", type=int, default=100)
    given = parser.parse_args()
    session = start(given.model, given.threads)
    print(f"{given.model.name}, {given.threads} threads")
    new_lengths(session, given)
    many_callers(session, given)
    memory_of_runs(session, given)
    del session
    memory_of_sessions(given)


def start(model: Path, threads: int) -> sardonyx.InferenceSession:
    """A session with so many threads."""
    options = sardonyx.SessionOptions()
    options.intra_op_num_threads = threads
    return sardonyx.InferenceSession(model, options)


def feed(session: sardonyx.InferenceSession, dim: str, length: int) -> dict[str, Any]:
    """Inputs with the dim at this length: ones for integers, noise for floats."""
    rng, made = np.random.default_rng(0), {}
    for spec in session.get_inputs():
        shape = [d if isinstance(d, int) else length if d == dim else 1 for d in spec.shape]
        if "float" in spec.type:
            made[spec.name] = rng.standard_normal(shape).astype(np.float32)
        else:
            made[spec.name] = np.ones(shape, np.int64)
    return made


def seconds(session: sardonyx.InferenceSession, inputs: dict[str, Any]) -> float:
    """One run."""
    before = time.perf_counter()
    session.run(None, inputs)
    return time.perf_counter() - before


def new_lengths(session: sardonyx.InferenceSession, given: Any) -> None:
    """The same lengths twice: as they come for the first time, and again right away."""
    ratios = []
    for length in range(given.length, given.length // 2, -1):
        inputs = feed(session, given.dim, length)
        # What the caches hold of another length is warm; this length is not.
        seconds(session, feed(session, given.dim, given.length // 2))
        new = seconds(session, inputs)
        again = min(seconds(session, inputs) for _ in range(2))
        ratios.append(new / again)
    print(f"a length that is new costs {statistics.median(ratios) - 1:+.1%} (median)")


def many_callers(session: sardonyx.InferenceSession, given: Any) -> None:
    """Runs per second of one caller and of eight, each with lengths of its own, all checked."""
    lengths = [given.length * (i + 1) // CALLERS for i in range(CALLERS)]
    inputs = [feed(session, given.dim, n) for n in lengths]
    expected = [session.run(None, x) for x in inputs]
    began = time.perf_counter()
    for _ in range(4):
        for x in inputs:
            session.run(None, x)
    alone = 4 * CALLERS / (time.perf_counter() - began)
    wrong: list[int] = []

    def call(i: int) -> None:
        for _ in range(4):
            found = session.run(None, inputs[i])
            same = all(np.array_equal(a, b) for a, b in zip(found, expected[i], strict=True))
            wrong.extend([] if same else [i])

    threads = [threading.Thread(target=call, args=(i,)) for i in range(CALLERS)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    together = 4 * CALLERS / (time.perf_counter() - began)
    print(
        f"one caller {alone:.1f} runs/s, {CALLERS} callers {together:.1f} runs/s, "
        f"{len(wrong)} wrong"
    )


def anonymous_mb() -> float:
    """RssAnon of this process."""
    gc.collect()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    return 0.0


def memory_of_runs(session: sardonyx.InferenceSession, given: Any) -> None:
    """Memory after many runs with changing shapes, against that after the first round of them."""
    lengths = list(range(1, min(given.length, 64) + 1))
    inputs = {n: feed(session, given.dim, n) for n in lengths}
    for n in lengths:
        session.run(None, inputs[n])
    before = anonymous_mb()
    for n in itertools.islice(itertools.cycle(lengths), given.runs):
        session.run(None, inputs[n])
    print(f"{given.runs} runs with changing shapes add {anonymous_mb() - before:+.1f} MB")


def memory_of_sessions(given: Any) -> None:
    """Memory after sessions were made, run and dropped, against that after the first few."""
    for n in range(given.sessions + 3):
        if n == 3:
            before = anonymous_mb()
        session = start(given.model, given.threads)
        session.run(None, feed(session, given.dim, 8))
        del session
    print(f"{given.sessions} sessions made and dropped add {anonymous_mb() - before:+.1f} MB")


if __name__ == "__main__":
    main()
