"""Benchmark of every op over types, sizes and attributes, relative to other runtimes.

    python -m bench.sweep --count 3000 --seed 1                    # cases drawn from the ops
    python -m bench.sweep --models FOLDER --per-model 40           # cases that are nodes of models
    python -m bench.sweep --only-report --worst 60 --plot sweep.svg
    python -m bench.sweep --again 0.97                             # measure what was slower again

Results are appended to --results as they are measured, and existing cases are skipped, so an
interrupted sweep resumes. Of several measurements of a case the best ratio counts.
Cases that take under 20 us everywhere measure the call (bench/overhead.py), and are not counted.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.sweep import families, nodes, report
from bench.sweep.case import Case
from bench.sweep.measure import Result, measure


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.sweep",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--count", type=int, default=1000, help="cases drawn from the ops")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ops", default="", help="only these ops, separated by commas")
    parser.add_argument(
        "--models", type=Path, help="a folder of .onnx files, whose nodes are cases"
    )
    parser.add_argument("--per-model", type=int, default=40, help="nodes drawn of each model")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rivals", default="onnxruntime", help="onnxruntime,openvino,torch")
    parser.add_argument("--results", type=Path, default=Path("build/sweep.jsonl"))
    parser.add_argument(
        "--again", type=float, metavar="RATIO", help="only cases that were below it"
    )
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="stop after; a later call goes on"
    )
    parser.add_argument("--only-report", action="store_true")
    parser.add_argument("--worst", type=int, default=30, help="lines of the table")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg")
    return parser.parse_args()


def chosen(args: argparse.Namespace) -> Iterator[Case]:
    """The cases of the command line."""
    wanted = set(filter(None, args.ops.split(",")))
    if args.models is None:
        return families.cases(args.count, args.seed, wanted)
    paths = sorted(args.models.rglob("*.onnx"))
    cases = (c for path in paths for c in _of_model(path, args.per_model, args.seed))
    return (c for c in cases if not wanted or c.op in wanted)


def _of_model(path: Path, count: int, seed: int) -> Iterator[Case]:
    try:
        yield from nodes.cases(path, count, seed)
    except Exception as error:
        print(f"{path.name}: {str(error).splitlines()[0][:120]}", file=sys.stderr)


def sweep(args: argparse.Namespace) -> None:
    """Measure what is not in the results yet."""
    rivals, counts = args.rivals.split(","), [int(n) for n in args.threads.split(",")]
    known = {(r.key, r.threads): r for r in report.load(args.results)}
    args.results.parent.mkdir(parents=True, exist_ok=True)
    end = time.perf_counter() + args.seconds
    with args.results.open("a") as file:
        for i, case in enumerate(chosen(args)):
            for threads in counts:
                old = known.get((case.key, threads))
                if not _is_wanted(old, args.again):
                    continue
                if time.perf_counter() > end:
                    return
                result = measure(case, threads, rivals)
                known[case.key, threads] = result
                file.write(json.dumps(result.record()) + "\n")
                file.flush()
            print(f"{i + 1} {case.name[:90]}", end="\033[K\r", file=sys.stderr)
    print("\033[K", end="", file=sys.stderr)


def _is_wanted(old: Result | None, again: float | None) -> bool:
    if again is None:
        return old is None
    ratio = old.ratio("onnxruntime") if old else None
    return ratio is not None and ratio < again


def main() -> None:
    """Measure, then print the slowest cases and the summary."""
    args = arguments()
    if not args.only_report:
        sweep(args)
    results = report.load(args.results)
    rivals = args.rivals.split(",")
    print(report.table(results, rivals[0], args.worst))
    print(report.summary(results, rivals))
    if args.plot:
        args.plot.write_text(report.svg(results, rivals[0]))


if __name__ == "__main__":
    main()
