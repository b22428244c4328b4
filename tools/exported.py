#!/usr/bin/env python3
"""Exports torch modules in every way, runs them, and reports where results are not torch's.

    exported.py --jobs 2            every case of tests/exported, by every installed exporter
    exported.py --only attention    cases whose names have this in them
    exported.py --only conv --all   and what became of each of them

The exporter over torch.export (dynamo) needs onnxscript; without it, only the other one is asked.
What an exporter refuses, and models that onnxruntime does not find right either, are counted and
listed, and are not failures.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402  # as all that follow, after the path above

from tests.exported import CASES  # noqa: E402
from tests.exported.exporters import DYNAMO, HAS_DYNAMO, SCRIPT, Outcome, outcomes  # noqa: E402
from tests.random_graphs.onnxruntime_process import OrtProcess  # noqa: E402

WAYS = (*SCRIPT, *(DYNAMO if HAS_DYNAMO else ()))


def try_some(numbers: range) -> list[Outcome]:
    """Return the outcomes of some cases of the table."""
    torch.set_num_threads(1)
    ort = OrtProcess()
    found = [o for i in numbers for o in outcomes(CASES[i], ort, WAYS)]
    ort.stop()
    return found


def main() -> int:
    """Tries cases in processes of their own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows with this in their names")
    parser.add_argument("--all", action="store_true", help="shows what became of every row")
    arguments = parser.parse_args()
    os.nice(10)
    chosen = [i for i, case in enumerate(CASES) if arguments.only in case.name]
    parts = [range(i, i + 1) for i in chosen]
    counts: collections.Counter[str] = collections.Counter()
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        for found in pool.imap(try_some, parts):
            for o in found:
                counts[o.kind] += 1
                if o.kind != "same" or arguments.all:
                    detail = " ".join(o.detail.split())[:300]
                    print(f"{o.kind:<8} {o.case} | {o.way} | {detail}", flush=True)
    told = ", ".join(f"{counts[k]} {k}" for k in ("same", "refused", "exporter", "differs"))
    print(f"{len(chosen)} modules in {counts.total()} ways: {told}")
    return bool(counts["differs"])


if __name__ == "__main__":
    sys.exit(main())
