"""What a run costs beside its kernels, and how callers on one session share a machine.

    python -m bench.overhead [MODEL.onnx ...] [--threads 2] [--callers 1,2,4,8] [--seconds 1]

First `run()` of one Add of 16 floats, here and in onnxruntime, interleaved; runs per second
of so many callers at once on one session, for a small product and for each MODEL, whose inputs are
in a .npz beside it; each runtime's callers take turns with the other's, and the best round counts.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime  # type: ignore[import-untyped]

import sardonyx
from bench.steps import Array, floats, one

MODULES = (sardonyx, onnxruntime)
ROUNDS = 5


def _session(module: Any, model: Any, threads: int) -> Any:
    options = module.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    return module.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def best_call(run: Callable[[], Any], seconds: float) -> float:
    """The least mean time of a call, over short bursts."""
    least, end = float("inf"), time.perf_counter() + seconds
    while True:
        began = time.perf_counter()
        for _ in range(200):
            run()
        now = time.perf_counter()
        least = min(least, (now - began) / 200)
        if now >= end:
            return least


def call_cost(seconds: float) -> None:
    """One Add of 16 floats."""
    made = one("Add", {"x": floats(16), "y": floats(16, seed=1)})
    least = [float("inf")] * len(MODULES)
    sessions = [_session(module, made.model, 1) for module in MODULES]
    for _ in range(ROUNDS):
        for i, session in enumerate(sessions):
            run = lambda session=session: session.run(None, made.feed)  # noqa: E731 - timed
            least[i] = min(least[i], best_call(run, seconds / ROUNDS))
    ours, theirs = (s * 1e6 for s in least)
    print(f"Add of 16 floats: {ours:.2f} us, {ours / theirs:.2f} of onnxruntime's {theirs:.2f} us")


def rate(session: Any, feed: dict[str, Array], callers: int, seconds: float) -> float:
    """Runs per second of callers at once."""
    counts = [0] * callers
    gate = threading.Barrier(callers + 1)
    over = threading.Event()

    def call(number: int) -> None:
        gate.wait()
        while not over.is_set():
            session.run(None, feed)
            counts[number] += 1

    threads = [threading.Thread(target=call, args=(i,)) for i in range(callers)]
    for thread in threads:
        thread.start()
    gate.wait()
    began = time.perf_counter()
    time.sleep(seconds)
    over.set()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - began)


def scaling(
    name: str, model: Any, feed: dict[str, Array], callers: Sequence[int], given: Any
) -> None:
    """One line for each count of callers: runs per second, and how much more than of one."""
    sessions = [_session(module, model, given.threads) for module in MODULES]
    for session in sessions:
        session.run(None, feed)
    best = {(i, n): 0.0 for n in callers for i in range(len(sessions))}
    for _ in range(ROUNDS):
        for (i, n), found in best.items():
            best[i, n] = max(found, rate(sessions[i], feed, n, given.seconds / ROUNDS))
            time.sleep(0.02)  # threads that stay awake for a while fall asleep
    for n in callers:
        ours, theirs = best[0, n], best[1, n]
        first = callers[0]
        print(
            f"{name}, {n} caller{'s' * (n > 1)}: {ours:.0f} runs/s, {ours / theirs:.2f} of "
            f"onnxruntime's {theirs:.0f}; {ours / best[0, first]:.2f} and "
            f"{theirs / best[1, first]:.2f} of those of {first}"
        )


def main(argv: Sequence[str] | None = None) -> None:
    """Prints everything."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--callers", default="1,2,4,8")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each figure (default 1)")
    given = parser.parse_args(argv)
    callers = [int(n) for n in given.callers.split(",")]
    call_cost(given.seconds)
    small = one("MatMul", {"x": floats(16, 64)}, lambda i: [floats(64, 64)])
    scaling("16 x 64 x 64", small.model, small.feed, callers, given)
    for path in given.models:
        with np.load(path.with_suffix(".npz"), allow_pickle=False) as arrays:
            scaling(path.stem, str(path), dict(arrays), callers, given)


if __name__ == "__main__":
    main()
