#!/usr/bin/env python3
"""Runs random chains of shape arithmetic in every way, and reports where results or facts differ.

shape_graphs.py --count 4000 --jobs 2     the graphs of seeds 0 to 3999
shape_graphs.py --count 500 --seed 9000   500 more, from seed 9000 on
shape_graphs.py --one 1234                one graph again: its nodes, and what is wrong with it
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import onnx  # noqa: E402  # as all that follow, after the path above

from tests.random_graphs.onnxruntime_process import OrtProcess  # noqa: E402
from tests.shape_graphs.check import findings  # noqa: E402
from tests.shape_graphs.spellings import make  # noqa: E402

AT_ONCE = 50


def try_some(seeds: range) -> list[tuple[int, list[str]]]:
    """The seeds with findings, each with what was found."""
    ort = OrtProcess()
    wrong = []
    for seed in seeds:
        try:
            found = findings(make(seed), ort)
        except Exception:
            found = [traceback.format_exc()[-2000:]]
        if found:
            wrong.append((seed, found))
    ort.stop()
    return wrong


def show(seed: int) -> int:
    """One graph as text, and what is wrong with it."""
    graph = make(seed)
    print(onnx.printer.to_text(onnx.load_from_string(graph.model("named"))))
    for name in graph.outputs:
        print(f"{name}: {[a.tolist() for a in graph.values[name]]!r:.300}")
    found = findings(graph, OrtProcess())
    print("\n".join(found) or "nothing is wrong")
    return bool(found)


def main() -> int:
    """Tries seeds in processes of their own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000, help="how many graphs")
    parser.add_argument("--seed", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--one", type=int, metavar="SEED", help="one graph, with its nodes")
    arguments = parser.parse_args()
    if arguments.one is not None:
        return show(arguments.one)
    os.nice(10)
    first, last = arguments.seed, arguments.seed + arguments.count
    parts = [range(at, min(at + AT_ONCE, last)) for at in range(first, last, AT_ONCE)]
    n_wrong = 0
    with multiprocessing.get_context("spawn").Pool(arguments.jobs, maxtasksperchild=4) as pool:
        for wrong in pool.imap(try_some, parts):
            n_wrong += len(wrong)
            for seed, found in wrong:
                print(f"seed {seed}:", *found[:3], sep="\n    ", flush=True)
    print(f"{arguments.count} graphs of shape arithmetic, {n_wrong} with differences")
    return bool(n_wrong)


if __name__ == "__main__":
    sys.exit(main())
