#!/usr/bin/env python3
"""Runs hostile models without end, or a given number of them, and reports what went wrong.

    fuzz_models.py --count 10000            the models of seeds 0 to 9999
    fuzz_models.py --seconds 300 --seed 7   as many as fit, from seed 7 on
    fuzz_models.py --one 1234               one model again, here, with its traceback
    fuzz_models.py --one 1234 --save FILE   and kept in a file

A model is a valid one (those of tests/seeds.py, the node cases of the ONNX backend suite, and the
rows of tests/cases) with bytes or parts changed. It must give a session or an error of ours, and so
must a run of it. Found are: other exceptions, processes that died, and work that does not end in
time. Models run in a worker process with a limit on its memory.
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


def worker(start: int, folder: Path, memory: int) -> None:
    """Tries seeds from `start` on and writes a line for each, until the pipe is closed."""
    os.nice(10)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    corpus = sorted(folder.glob("*.onnx"))
    with bounded_memory(memory):
        for seed in itertools.count(start):
            print(json.dumps(try_one(seed, corpus)), flush=True)


class Worker:
    """A worker process and what it says."""

    def __init__(self, start: int, folder: Path, memory: int) -> None:
        command = [sys.executable, __file__, "--worker", str(start), "--corpus", str(folder)]
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


def hunt(args: argparse.Namespace, folder: Path) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Tries seed after seed; findings by outcome and place."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    outcomes: collections.Counter[str] = collections.Counter()
    slowest: tuple[float, int] = (0.0, args.seed)
    began, seed, process = time.monotonic(), args.seed, None
    end = None if args.count is None else seed + args.count
    while seed != end and not (args.seconds and time.monotonic() - began > args.seconds):
        process = process or Worker(seed, folder, args.memory)
        result = process.next(seed)
        if result["outcome"] in ("died", "killed"):
            process = None
        outcomes[result["outcome"]] += 1
        slowest = max(slowest, (result.get("seconds", 0.0), seed))
        if "where" in result:
            key = (result["outcome"], result["where"])
            if key not in found:
                print(f"\nseed {seed}, from {result['from']}: {key[0]} at {key[1]}")
                print(result["trace"], flush=True)
            found.setdefault(key, []).append(result)
        seed += 1
    if process is not None:
        process.stop()
    took = time.monotonic() - began
    shown = ", ".join(f"{n} {outcome}" for outcome, n in outcomes.most_common())
    print(f"the slowest took {slowest[0]:.1f} s: seed {slowest[1]}")
    print(f"{seed - args.seed} models in {took:.0f} s: {shown}")
    return found


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, help="models to try; without end if not given")
    parser.add_argument("--seconds", type=float, help="stop after this time")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
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
            worker(args.worker, folder, args.memory)
        if args.one is not None:
            corpus = sorted(folder.glob("*.onnx"))
            if args.save is not None:
                args.save.write_bytes(make(args.one, corpus)[0])
            result = try_one(args.one, corpus)
            print(result.pop("trace", ""), result, sep="\n")
            return int("where" in result)
        found = hunt(args, folder)
    for (outcome, where), results in sorted(found.items(), key=lambda f: -len(f[1])):
        print(f"{len(results):5}  {outcome} at {where}, first with seed {results[0]['seed']}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
