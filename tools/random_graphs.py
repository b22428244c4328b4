#!/usr/bin/env python3
"""Runs random graphs on Sardonyx and onnxruntime, and reports where they differ.

    random_graphs.py --count 20000 --jobs 16   the graphs of seeds 0 to 19999
    random_graphs.py --seconds 300 --seed 7    as many as fit, from seed 7 on
    random_graphs.py --one 1234                one graph again, here, with all its nodes
    random_graphs.py --one 1234 --save FILE    and its model kept in a file
    random_graphs.py --shrink 1234             the smallest part of it that still differs
    random_graphs.py --count 20000 --coverage  and which ops and types came to be in graphs
    random_graphs.py --count 20000 --keep DIR  keeps models that differ: with other packages, or
                                               other cases of tests/cases, a seed is another graph

Every value of a graph is computed by the numpy references of its nodes, one by one, which is also
how it is known how far rounding may move a result. Sardonyx, with all its passes and kernels, must
give the same, and so must onnxruntime, but for what tests/random_graphs/known.py lists.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from sardonyx.base.atomic_file import writing  # noqa: E402  # as all that follow, needs the path above
from tests.random_graphs.check import check  # noqa: E402
from tests.random_graphs.coverage import Coverage, kinds_of  # noqa: E402
from tests.random_graphs.graph import RandomGraph, make  # noqa: E402
from tests.random_graphs.known import KNOWN  # noqa: E402
from tests.random_graphs.onnxruntime_process import OrtProcess  # noqa: E402
from tests.random_graphs.runs import Outcome  # noqa: E402
from tests.random_graphs.shrink import shrink  # noqa: E402
from tests.workers import Plan, Result, Task, hunt, told  # noqa: E402

GOOD = ("same", "both refuse", "empty")
DEATH_SECONDS = 180.0


def try_one(seed: int, ort: OrtProcess, keep: Path | None = None) -> Result:
    """Return the outcome of a seed as plain data; a model that differs is written to a folder."""
    try:
        graph = make(seed)
        outcome = check(graph, ort)
        ops = kinds_of(graph)
        if keep is not None and outcome.kind not in GOOD:
            save(graph, keep / f"{seed}.onnx")
    except Exception as error:
        place, trace = told(error, ROOT)
        detail = f"{type(error).__name__} at {place}: {error}\n{trace}"
        outcome, ops = Outcome(seed, "exception", detail), []
    return {**vars(outcome), "ops": ops}


def save(graph: RandomGraph, path: Path) -> None:
    """The model, and beside it what it is fed with for each size."""
    with writing(str(path)) as file:
        file.write(graph.model().SerializeToString())
    for number, run in enumerate(graph.runs):
        arrays = {n: x for n, x in run.feeds.items() if isinstance(x, np.ndarray)}
        with writing(str(path.with_suffix(f".{number}.npz"))) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]  # names are not options of it


def started(keep: Path | None) -> Task:
    """Return the function by which a worker runs a seed."""
    ort = OrtProcess()
    return lambda seed: try_one(seed, ort, keep)


def outcomes(args: argparse.Namespace) -> Iterator[Result]:
    """Yield the outcome of each seed, from several processes."""
    seeds = range(args.seed, args.seed + args.count)
    plan = Plan(seeds, args.jobs, args.seconds, renew=args.chunk, patience=DEATH_SECONDS)
    for result in hunt(lambda: started(args.keep), plan):
        if "died" in result:
            detail = f"{result['died']}\n{result['said']}"
            yield {**vars(Outcome(result["seed"], "died", detail)), "ops": []}
        else:
            yield result


class Tally:
    """The outcomes so far."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.kinds: collections.Counter[str] = collections.Counter()
        self.known: collections.Counter[str] = collections.Counter()
        self.unheard: collections.Counter[str] = collections.Counter()
        self.rounded: collections.Counter[str] = collections.Counter()
        self.coverage = Coverage()
        self.findings: list[dict[str, Any]] = []

    def add(self, result: dict[str, Any]) -> None:
        """Counts a graph, and prints it if something is wrong with it."""
        self.kinds[result["kind"]] += 1
        self.known.update(set(result["known"]))
        self.rounded.update(result["rounded"])
        self.coverage.add(result["ops"])
        if result["ort"]:
            self.unheard[result["ort"][:110]] += 1
        if result["kind"] not in GOOD:
            self.findings.append({k: result[k] for k in ("seed", "kind", "detail")})
            print(f"seed {result['seed']}: {result['kind']}: {result['detail']}\n", flush=True)
        if self.kinds.total() % 1000 == 0:
            print(self, flush=True)

    @property
    def unmet(self) -> list[str]:
        """Rows of the table of known differences that nothing needed."""
        return [t for t in (f"{r.op}: {r.why}" for r in KNOWN) if t not in self.known]

    def __str__(self) -> str:
        seconds = time.monotonic() - self.began
        asked = self.kinds.total() - self.unheard.total()
        shown = ", ".join(f"{n} {kind}" for kind, n in self.kinds.most_common())
        return f"{self.kinds.total()} graphs in {seconds:.0f} s, {asked} on onnxruntime: {shown}"

    def show(self) -> None:
        """What was explained, and how."""
        shown = ", ".join(f"{op} {n}" for op, n in self.rounded.most_common())
        print(f"explained by rounding: {shown or 'nothing'}")
        for reason, count in self.known.most_common():
            print(f"{count:6}  known: {reason}")
        for reason in self.unmet:
            print(f"     0  known, not met: {reason}")
        print(self)

    def summary(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {
            "graphs": self.kinds.total(), "seconds": round(time.monotonic() - self.began, 1),
            "kinds": self.kinds, "findings": self.findings, "known": self.known,
            "known_not_met": self.unmet, "rounded": self.rounded,
            "not_on_onnxruntime": self.unheard, "never": self.coverage.missing(),
            "coverage": self.coverage.counts,
        }  # fmt: skip


def report(args: argparse.Namespace) -> int:
    """Hunts, prints findings as they come and a summary; 1 if there is any finding."""
    if args.keep is not None:
        args.keep.mkdir(parents=True, exist_ok=True)
    tally = Tally()
    for result in outcomes(args):
        tally.add(result)
    if args.coverage:
        tally.coverage.show()
    tally.show()
    if args.json is not None:
        with writing(str(args.json)) as file:
            file.write(json.dumps(tally.summary(), indent=1).encode())
    return int(bool(tally.findings))


def show(graph: RandomGraph) -> None:
    """The nodes of a graph, with the types of what they read and make."""
    values = {**graph.constants, **graph.runs[0].feeds, **graph.runs[0].values}

    def brief(name: str) -> str:
        x = values.get(name)
        if hasattr(x, "shape"):
            data = f"={x.tolist()}" if x.size <= 8 else ""
            return f"{name}:{x.dtype}{list(x.shape)}{data}"
        return f"{name}:{type(x).__name__}"

    print(f"opsets {graph.opsets}, {len(graph.runs)} runs, {graph.traits}")
    print("inputs", *(brief(n) for n in graph.inputs))
    print("constants", *(brief(n) for n in graph.constants))
    for node in graph.nodes:
        attrs = {a.name: _plain(a) for a in node.attribute}
        read = " ".join(brief(n) if n else "-" for n in node.input)
        print(f"  {' '.join(map(brief, node.output))} = {node.domain}{node.op_type} {attrs} {read}")
    print("outputs", *graph.outputs)


def _plain(attribute: Any) -> Any:
    import onnx

    if attribute.type == onnx.AttributeProto.GRAPH:
        return [n.op_type for n in attribute.g.node]
    value = onnx.helper.get_attribute_value(attribute)
    return f"{value!s:.100}".replace("\n", " ")


def one(args: argparse.Namespace) -> int:
    """One seed here, in full; shrunk if asked for."""
    ort = OrtProcess()
    graph = make(args.one if args.shrink is None else args.shrink)
    if args.shrink is not None:
        dies = judge_apart(graph) == "died"
        graph = shrink(graph, judge_apart if dies else lambda g: judge(g, ort))
    show(graph)
    if args.save is not None:
        save(graph, args.save)
    sys.stdout.flush()  # before what may end the process
    outcome = check(graph, ort)
    ort.stop()
    print(outcome.kind, outcome.detail, outcome.ort[:300], *outcome.known, sep="\n")
    return int(outcome.kind not in GOOD)


def judge(graph: RandomGraph, ort: OrtProcess) -> str:
    """The kind of difference that a graph has."""
    try:
        return check(graph, ort).kind
    except Exception as error:
        return type(error).__name__


def judge_apart(graph: RandomGraph) -> str:
    """The same in a process of its own, which may die."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        ort = OrtProcess()
        os.write(write, judge(graph, ort).encode())
        ort.stop()
        os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said or "died"


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1000, help="graphs to try")
    parser.add_argument("--seconds", type=float, help="stop after this time")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes at work")
    parser.add_argument("--chunk", type=int, default=500, help="graphs before a process is renewed")
    parser.add_argument("--coverage", action="store_true", help="print ops and types")
    parser.add_argument("--json", type=Path, help="write a summary to this file")
    parser.add_argument("--keep", type=Path, help="folder for models in which something is wrong")
    parser.add_argument("--one", type=int, metavar="SEED", help="try one seed in this process")
    parser.add_argument("--shrink", type=int, metavar="SEED", help="make the graph of a seed small")
    parser.add_argument("--save", type=Path, help="keep the model of --one or --shrink")
    return parser.parse_args()


def main() -> int:
    """Run the command line; return the exit status."""
    args = parse()
    return one(args) if args.one is not None or args.shrink is not None else report(args)


if __name__ == "__main__":
    sys.exit(main())
