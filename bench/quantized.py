"""Quantized ops of every type and format, as whole models beside onnxruntime, interleaved.

python -m bench.quantized [--filter WORDS] [--threads 1,2] [--slice 1/4] [--all]

Rows are sorted by speed, slowest first; --all prints those that are fast enough too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import onnxruntime  # type: ignore[import-untyped]

import sardonyx
from bench.quantized_cases import Row, rows
from sardonyx.cli.bench_worker import shortest

ROUNDS, ROUND_S = 5, 0.012
GOAL = 1.2


class Result(NamedTuple):
    """Milliseconds of a row, its steps in Python, and how far results are apart."""

    row: Row
    threads: int
    ours: float
    theirs: float | None  # where onnxruntime has a kernel
    python_steps: int
    gap: str

    @property
    def ratio(self) -> float:
        """How many times as fast as onnxruntime."""
        return float("nan") if self.theirs is None else self.theirs / self.ours


def _session(module: Any, row: Row, threads: int) -> Any:
    options = module.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    return module.InferenceSession(row.made.model, options, providers=["CPUExecutionProvider"])


def _gap(row: Row, ours: list[Any], theirs: list[Any]) -> str:
    """How far results are apart, if further than the row permits; codes may differ by ties."""
    for a, b in zip(ours, theirs, strict=True):
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"{a.dtype}{a.shape} for {b.dtype}{b.shape}"
        wide = np.abs(a.astype(np.float64) - b.astype(np.float64))
        most = wide.max(initial=0.0)
        allowed = row.tolerance * (1 if a.dtype.kind in "iu" else np.abs(b).max(initial=1e-30))
        if not most <= allowed:
            return f"differs by {most:.3g}"
    return ""


def measure(row: Row, threads: int) -> Result:
    """A row here and in onnxruntime."""
    try:
        ours = _session(sardonyx, row, threads)
    except Exception as e:
        raise RuntimeError(f"{row.family}: {row.name}") from e
    feed = row.made.feed
    runs = [lambda: ours.run(None, feed)]
    outputs, gap = ours.run(None, feed), "no kernel"
    try:
        theirs = _session(onnxruntime, row, threads)
        gap = _gap(row, outputs, theirs.run(None, feed))
        runs.append(lambda: theirs.run(None, feed))
    except Exception as e:
        if "NOT_IMPLEMENTED" not in f"{type(e).__name__} {e}" and "NotImpl" not in type(e).__name__:
            gap = f"onnxruntime: {str(e)[:60]}"
    best = [float("inf")] * len(runs)
    for _ in range(ROUNDS):
        best = [min(b, shortest(run, ROUND_S)) for run, b in zip(runs, best, strict=True)]
    times = [b * 1e3 for b in best]
    return Result(row, threads, times[0], times[1] if len(times) > 1 else None,
                  ours._compiled.program.python_steps, gap)  # fmt: skip


def _chosen(words: list[str], part: str) -> Iterator[Row]:
    at, of = (int(n) for n in part.split("/"))
    every = [r for r in rows() if all(w in f"{r.family}: {r.name}" for w in words)]
    return iter(every[at - 1 :: of])


def _show(result: Result) -> None:
    theirs = "-" if result.theirs is None else f"{result.theirs:.3f}"
    steps = f"{result.python_steps} in Python" if result.python_steps else ""
    name = f"{result.row.family}: {result.row.name}"
    print(
        f"{name:62} {result.threads} {result.ours:8.3f} ms {theirs:>8} ms {result.ratio:6.2f}x "
        f"{result.gap} {steps}",
        flush=True,
    )


def main() -> None:
    """Prints a row per case, slowest first, and how many are slower than 1.2 times onnxruntime."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--filter", default="")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--slice", default="1/1", help="K/N: every N-th row, from the K-th on")
    parser.add_argument("--all", action="store_true", help="print rows that are fast enough too")
    args = parser.parse_args()
    counts = [int(n) for n in args.threads.split(",")]
    results = []
    for row in _chosen(args.filter.split(), args.slice):
        results += [measure(row, n) for n in counts]
        print(f"{len(results)} {row.family}: {row.name}", end="\033[K\r", file=sys.stderr)
    results.sort(key=lambda r: (r.theirs is not None, r.ratio if r.theirs else -r.ours))
    for result in results:
        is_slow = result.theirs is None or result.ratio < GOAL
        if args.all or is_slow or result.gap or result.python_steps:
            _show(result)
    ratios = [r.ratio for r in results if r.theirs is not None] or [float("nan")]
    slow = sum(r < GOAL for r in ratios)
    print(
        f"{len(ratios)} rows, {slow} below {GOAL}x, median {np.median(ratios):.2f}x, "
        f"least {min(ratios):.2f}x"
    )


if __name__ == "__main__":
    main()
