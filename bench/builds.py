"""Import, start and run of two builds of Sardonyx, interleaved: what a change costs or gains.

    python bench/builds.py OLD/bin/python NEW/bin/python MODEL.onnx... | FOLDER [--rounds 15]

Each round starts a process for each build and model; within it the model runs for --seconds. The
columns are medians (minima in parentheses) of the old build's milliseconds, and new / old: below
1.0 the new build is faster. Without models, the built-in one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

MEASURE = """
import json, sys, time
import numpy as np
begin = time.perf_counter()
import sardonyx
imported = time.perf_counter()
from sardonyx.models import DIGITS
model, seconds, threads = sys.argv[1] or DIGITS, float(sys.argv[2]), int(sys.argv[3])
options = sardonyx.SessionOptions()
options.intra_op_num_threads = threads
ready = time.perf_counter()
session = sardonyx.InferenceSession(model, options, providers=["CPUExecutionProvider"])
started = time.perf_counter()
types = {"float": "f4", "float16": "f2", "double": "f8", "bool": "?"}
rng = np.random.default_rng(0)
feed = {}
for put in session.get_inputs():
    shape = [d if isinstance(d, int) else 8 for d in put.shape]
    name = put.type[7:-1]
    feed[put.name] = rng.random(shape).astype(types.get(name, name)) if name != "string" else (
        np.full(shape, "a", object))
times = []
try:
    while sum(times) < seconds or len(times) < 3:
        before = time.perf_counter()
        session.run(None, feed)
        times.append(time.perf_counter() - before)
except Exception:  # random inputs do not suit every model: its start counts all the same
    times = []
print(json.dumps([imported - begin, started - ready, min(times, default=0.0)]))
"""
COLUMNS = ("import", "start", "run")


def measured(python: str, model: str, arguments: argparse.Namespace) -> list[float]:
    """Return seconds of the import, of the start and of the fastest run."""
    command = [python, "-c", MEASURE, model, str(arguments.seconds), str(arguments.threads)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    times: list[float] = json.loads(done.stdout.splitlines()[-1])
    return times


def cell(old: list[float], new: list[float]) -> str:
    """Return the old build's milliseconds, and the ratios of medians and of minima."""
    if not min(*old, *new):
        return f"{'no run':>26}"
    middle = statistics.median(old)
    ratios = statistics.median(new) / middle, min(new) / min(old)
    return f"{middle * 1e3:10.3f} {ratios[0]:6.3f} ({ratios[1]:6.3f})"


def main() -> None:
    """Print a row for each model, then geometric means."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("old", help="the python of the older build")
    parser.add_argument("new", help="the python of the newer build")
    parser.add_argument("models", nargs="*", type=Path, help="files, or folders of .onnx files")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.2, help="of runs, in each process")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    models = [str(m) for path in given.models for m in _models(path)] or [""]
    ratios: dict[str, list[float]] = defaultdict(list)
    print(f"{'model':28}", *(f"{column:>26}" for column in COLUMNS))
    for model in models:
        old_rounds: list[list[float]] = []
        new_rounds: list[list[float]] = []
        for _ in range(given.rounds):
            old_rounds.append(measured(given.old, model, given))
            new_rounds.append(measured(given.new, model, given))
        pairs = list(zip(zip(*old_rounds, strict=True), zip(*new_rounds, strict=True), strict=True))
        cells = [cell(list(old), list(new)) for old, new in pairs]
        print(f"{Path(model).stem or 'digits':28}", *cells, flush=True)
        for column, (old, new) in zip(COLUMNS, pairs, strict=True):
            if min(*old, *new):
                ratios[column].append(statistics.median(new) / statistics.median(old))
    means = (f"{column} {statistics.geometric_mean(r):.3f}" for column, r in ratios.items())
    print("geometric means:", *means)


def _models(path: Path) -> list[Path]:
    return sorted(path.glob("*.onnx")) if path.is_dir() else [path]


if __name__ == "__main__":
    sys.exit(main())
