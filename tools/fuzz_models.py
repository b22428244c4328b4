#!/usr/bin/env python3
"""Runs hostile models without end, or a given number of them, and reports what went wrong.

    fuzz_models.py --count 10000            the models of seeds 0 to 9999
    fuzz_models.py --seconds 300 --seed 7   as many as fit, from seed 7 on
    fuzz_models.py --count 1000000 --jobs 8 by eight workers at once
    fuzz_models.py --one 1234               one model again, here, with its traceback
    fuzz_models.py --one 1234 --save FILE   and kept in a file

A model is a valid one (those of tests/seeds.py, the node cases of the ONNX backend suite, and the
rows of tests/cases) with bytes or parts changed. It must give a session or an error of ours, and so
must a run of it. Found are: other exceptions, processes that died, work that does not end in time,
and workers that grow. Models run in worker processes with a limit on their memory.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import os
import resource
import select
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.attempt import Hang, attempt, bounded_memory  # noqa: E402  # needs the path above
from tests.mutate import change_bytes, change_model  # noqa: E402
from tests.seeds import seeds  # noqa: E402

HANG_SECONDS = 10.0
DEATH_SECONDS = 30.0  # a call into C cannot be interrupted; after this the worker is killed
GROWTH_BYTES = 64 << 20  # of a worker from its second tenth to its last: more is a leak


def write_corpus(folder: Path) -> None:
    """The valid models, one file each: our own, the suite's, and the rows of the op tests."""
    from onnx.backend.test.loader import load_model_tests

    from tests.oracle import feeds_of, model_of
    from tests.test_ops import ROWS

    warnings.simplefilter("ignore")
    models = {f"seed_{number:02}": data for number, data in enumerate(seeds())}
    models |= {c.name: c.model.SerializeToString() for c in load_model_tests(kind="node")}
    for number, row in enumerate(ROWS):
        # Half of the rows have their inputs as constants: what is known of them guides compiling.
        known = [*feeds_of(row)][1:] if number % 2 else []
        models[f"row_{number:04}"] = model_of(row, constants=known).SerializeToString()
    for name, data in models.items():
        (folder / f"{name}.onnx").write_bytes(data)


def make(seed: int, corpus: list[Path]) -> tuple[bytes, Random, str]:
    """The hostile model of a seed, the generator for its inputs, and what it was made from."""
    rng = Random(seed)
    own = [p for p in corpus if p.stem.startswith("seed_")]
    path = rng.choice(own if rng.random() < 0.3 else corpus)
    data = path.read_bytes()
    if rng.random() < 0.2:
        return change_bytes(rng, data, rng.choice(corpus).read_bytes()), rng, path.stem
    return change_model(rng, data), rng, path.stem


def try_one(seed: int, corpus: list[Path]) -> dict[str, Any]:
    """What became of one seed; `where` and `trace` are there only if something is wrong."""
    data, rng, name = make(seed, corpus)
    began = time.monotonic()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcome = attempt(data, rng, HANG_SECONDS)
        return {"seed": seed, "outcome": outcome, "seconds": time.monotonic() - began}
    except (Exception, Hang) as error:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [f for f in frames if "sardonyx" in f.filename] or list(frames)
        place = f"{os.path.relpath(ours[-1].filename, ROOT)}:{ours[-1].lineno}"
        what = "hang" if isinstance(error, Hang) else type(error).__name__
        text = "".join(traceback.format_exception(error))
        return {"seed": seed, "outcome": what, "where": place, "from": name, "trace": text[-4000:]}


def worker(start: int, step: int, folder: Path, memory: int) -> None:
    """Tries every `step`-th seed from `start` on and writes a line for each, until it is ended."""
    os.nice(10)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    corpus = sorted(folder.glob("*.onnx"))
    with bounded_memory(memory):
        for seed in itertools.count(start, step):
            print(json.dumps(try_one(seed, corpus) | {"bytes": anonymous_bytes()}), flush=True)


def anonymous_bytes() -> int:
    """What this process has of its own in memory."""
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return (resident - shared) * resource.getpagesize()


class Worker:
    """A worker process and what it says."""

    def __init__(self, start: int, step: int, folder: Path, memory: int) -> None:
        command = [sys.executable, __file__, "--worker", str(start), "--jobs", str(step)]
        command += ["--corpus", str(folder)]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the process
        self._process = subprocess.Popen(
            [*command, "--memory", str(memory)],
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        self._lines: collections.deque[bytes] = collections.deque()
        self._rest = b""

    def next(self, seed: int) -> dict[str, Any]:
        """What became of the seed; the worker is gone if the outcome is died or killed."""
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        while not self._lines:
            ready, _, _ = select.select([pipe], [], [], DEATH_SECONDS)
            piece = os.read(pipe, 1 << 16) if ready else b""
            if not piece:
                return self._gone(seed, "died" if ready else "killed")
            *lines, self._rest = (self._rest + piece).split(b"\n")
            self._lines.extend(lines)
        found: dict[str, Any] = json.loads(self._lines.popleft())
        return found

    def _gone(self, seed: int, how: str) -> dict[str, Any]:
        self.stop()
        self._log.seek(0)
        said = self._log.read()[-2000:].decode(errors="replace")
        where = f"exit {self._process.returncode}"
        return {"seed": seed, "outcome": how, "where": where, "from": "", "trace": said}

    def stop(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()


class Hunt:
    """Tries seed after seed, by several workers at once."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self._args, self._folder = args, folder
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._outcomes: collections.Counter[str] = collections.Counter()
        self._slowest = (0.0, args.seed)
        self.found: dict[tuple[str, str], list[dict[str, Any]]] = {}  # by outcome and place

    def run(self) -> None:
        """Hunts to the end, and says how it went."""
        jobs = [
            threading.Thread(target=self._job, args=(self._args.seed + i,))
            for i in range(self._args.jobs)
        ]
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
        took, count = time.monotonic() - self._began, self._outcomes.total()
        shown = ", ".join(f"{n} {outcome}" for outcome, n in self._outcomes.most_common())
        print(f"the slowest took {self._slowest[0]:.1f} s: seed {self._slowest[1]}")
        print(f"{count} models in {took:.0f} s: {shown}")

    def _job(self, first: int) -> None:
        args, process = self._args, None
        end = sys.maxsize if args.count is None else args.seed + args.count
        sizes: list[int] = []
        for seed in range(first, end, args.jobs):
            if args.seconds and time.monotonic() - self._began > args.seconds:
                break
            process = process or Worker(seed, args.jobs, self._folder, args.memory)
            result = process.next(seed)
            if result["outcome"] in ("died", "killed"):
                process = None
                sizes.clear()
            else:
                sizes.append(result["bytes"])
            self._note(result)
        if process is not None:
            process.stop()
        self._note_growth(first, sizes)

    def _note(self, result: dict[str, Any]) -> None:
        seed = result["seed"]
        with self._lock:
            self._outcomes[result["outcome"]] += 1
            self._slowest = max(self._slowest, (result.get("seconds", 0.0), seed))
            if self._outcomes.total() % 10_000 == 0:
                took = time.monotonic() - self._began
                print(f"{self._outcomes.total()} models, {took:.0f} s", flush=True)
            if "where" not in result:
                return
            key = (result["outcome"], result["where"])
            if key not in self.found:
                print(f"\nseed {seed}, from {result['from']}: {key[0]} at {key[1]}")
                print(result["trace"], flush=True)
            self.found.setdefault(key, []).append(result)

    def _note_growth(self, first: int, sizes: list[int]) -> None:
        """A worker that ends larger than it was when everything it needs was loaded leaks."""
        tenth = len(sizes) // 10
        if tenth == 0:
            return
        # The least: what one large run leaves behind goes back in time.
        early, late = (min(p) for p in (sizes[tenth : 2 * tenth], sizes[-tenth:]))
        said = f"{early / 1e6:.0f} MB early, {late / 1e6:.0f} MB late"
        with self._lock:
            print(f"the worker from seed {first} on, {len(sizes)} models: {said}")
            if late - early > GROWTH_BYTES:
                result = {"seed": first, "outcome": "grew", "where": said}
                self.found.setdefault(("grew", said), []).append(result)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, help="models to try; without end if not given")
    parser.add_argument("--seconds", type=float, help="stop after this time")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="workers at once")
    parser.add_argument("--memory", type=int, default=2 << 30, help="bytes that a worker may take")
    parser.add_argument("--corpus", type=Path, help="folder of valid models instead of ours")
    parser.add_argument("--one", type=int, metavar="SEED", help="try one seed in this process")
    parser.add_argument("--save", type=Path, help="with --one: keep the model in this file")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    """Hunts, and prints what was found; 1 if anything was."""
    args = parse()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.corpus or Path(scratch)
        if args.corpus is None:
            write_corpus(folder)
        if args.worker is not None:
            worker(args.worker, args.jobs, folder, args.memory)
        if args.one is not None:
            corpus = sorted(folder.glob("*.onnx"))
            if args.save is not None:
                args.save.write_bytes(make(args.one, corpus)[0])
            result = try_one(args.one, corpus)
            print(result.pop("trace", ""), result, sep="\n")
            return int("where" in result)
        hunt = Hunt(args, folder)
        hunt.run()
    for (outcome, where), results in sorted(hunt.found.items(), key=lambda f: -len(f[1])):
        print(f"{len(results):5}  {outcome} at {where}, first with seed {results[0]['seed']}")
    return int(bool(hunt.found))


if __name__ == "__main__":
    sys.exit(main())
