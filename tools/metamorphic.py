#!/usr/bin/env python3
"""Runs models in other forms, which must give the same answers, and reports where they do not.

    metamorphic.py --source cases                     every case by every transform
    metamorphic.py --source conformance --jobs 16     every case of the ONNX backend suite
    metamorphic.py --source models                    small whole models
    metamorphic.py --source random --count 20000      random graphs, each by 10 drawn chains
    metamorphic.py --source cases--transform if_then  one transform, or some: a,b,c
    metamorphic.py --source random --one 1234         one variant again, here, with its model
    metamorphic.py --source cases--one 1234 --save F  and kept in a file

A variant is numbered: by its case and its transform, or in random graphs by its seed, so that
`--seed` goes on where a run stopped. What a variant refuses counts as the same only where the
original is refused, or where onnxruntime refuses the variant. Variants are run by the fast path and
by the checked one, in worker processes: one that dies is a finding.
"""

from __future__ import annotations

import argparse
import collections
import functools
import os
import sys
import time
from pathlib import Path
from random import Random

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # before numpy is imported
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from sardonyx import _native as native  # noqa: E402  # as all that follow, needs the path above
from tests.metamorphic import isas  # noqa: E402
from tests.metamorphic.check import GOOD, Original, Outcome, check, original, transformed  # noqa: E402
from tests.metamorphic.sources import SOURCES, Source  # noqa: E402
from tests.metamorphic.table import TRANSFORMS, drawn  # noqa: E402
from tests.random_graphs.onnxruntime_process import OrtProcess  # noqa: E402
from tests.workers import Plan, Result, Task, hunt, told  # noqa: E402

CHAINS = 10  # variants of a random graph
DEATH_SECONDS = 120.0


class Numbered:
    """Variants by number: a case, and the transforms that make it."""

    def __init__(self, source: Source, transforms: list[str]) -> None:
        self._source, self._transforms = source, transforms
        self._each = len(transforms) or CHAINS
        self.count = None if source.count is None else source.count * self._each
        self.original = functools.lru_cache(2)(self._original)

    def _original(self, number: int) -> Original | None:
        case = self._source.case(number)
        return None if case is None else original(case)

    def case(self, seed: int) -> Original | None:
        """The case of a variant, run."""
        return self.original(seed // self._each)

    def transforms(self, seed: int) -> list[str]:
        """The transforms of a variant: one, or a chain that its seed draws."""
        if self._transforms:
            return [self._transforms[seed % self._each]]
        return drawn(Random(seed))


def try_one(seed: int, variants: Numbered, ort: OrtProcess) -> Result:
    """Return the outcome of a variant as plain data."""
    names = variants.transforms(seed)
    try:
        it = variants.case(seed)
        if it is None:
            outcome = Outcome("", names, "no case")
        else:
            outcome = check(it, names, Random(seed), ort, _say)
    except Exception as error:
        place, trace = told(error, ROOT)
        detail = f"{type(error).__name__} at {place}: {error}\n{trace}"
        outcome = Outcome("", names, "exception", detail)
    return {**vars(outcome), "seed": seed}


def _say(text: str) -> None:
    """Into the log of the worker: its last words, should it die of what follows."""
    os.write(2, f"{text}\n".encode())


def started(variants: Numbered, kernels: list[str]) -> Task:
    """Return the function by which a worker runs a seed."""
    isas.start(kernels)  # before any kernel runs in this process
    ort = OrtProcess()
    return lambda seed: try_one(seed, variants, ort)


class Tally:
    """The outcomes so far."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._kinds: collections.Counter[str] = collections.Counter()
        self._by_transform: dict[str, collections.Counter[str]] = {}
        self._reasons: collections.Counter[str] = collections.Counter()
        self.findings: list[Result] = []

    def add(self, result: Result) -> None:
        """Counts a variant, and prints it if something is wrong with it."""
        if "died" in result:
            said = result["said"][-1500:]
            result |= vars(Outcome("", [], "died", f"{result['died']}\n{said}"))
        kind = result["kind"]
        self._kinds[kind] += 1
        for name in result["transforms"] or ["-"]:
            self._by_transform.setdefault(name, collections.Counter())[kind] += 1
        if result["reason"]:
            self._reasons[f"{kind}: {result['reason']}"] += 1
        if kind not in GOOD:
            self.findings.append(result)
            shown = f"{result['case']}, {' '.join(result['transforms'])}"
            print(f"seed {result['seed']}: {kind}: {shown}\n  {result['detail']}\n", flush=True)
        if self._kinds.total() % 10_000 == 0:
            print(self, flush=True)

    def show(self) -> None:
        """Counts by transform, reasons of refusals, and a summary as the last line."""
        for name, kinds in sorted(self._by_transform.items()):
            print(f"{name:16}", ", ".join(f"{n} {kind}" for kind, n in kinds.most_common()))
        for reason, count in self._reasons.most_common():
            print(f"{count:6}  {reason}")
        print(self)

    def __str__(self) -> str:
        took = time.monotonic() - self._began
        shown = ", ".join(f"{n} {kind}" for kind, n in self._kinds.most_common())
        return f"{self._kinds.total()} variants in {took:.0f} s: {shown}"


def report(args: argparse.Namespace, variants: Numbered, kernels: list[str]) -> int:
    """Runs the variants; 1 if anything was found."""
    ends = [args.seed + args.count] if args.count is not None else []
    ends += [variants.count] if variants.count is not None else []
    seeds = range(args.seed, min(ends, default=args.seed + 20 * CHAINS))
    plan = Plan(seeds, args.jobs, args.seconds, renew=args.renew, patience=DEATH_SECONDS)
    tally = Tally()
    for result in hunt(lambda: started(variants, kernels), plan):
        tally.add(result)
    tally.show()
    return int(bool(tally.findings))


def one(args: argparse.Namespace, variants: Numbered, kernels: list[str]) -> int:
    """One variant in this process."""
    isas.start(kernels)
    it = variants.case(args.one)
    if it is None:
        print("this seed has no case")
        return 0
    import onnx

    v, _ = transformed(it, variants.transforms(args.one), Random(args.one))
    print(onnx.printer.to_text(v.model)[:20_000])
    print({n: getattr(x, "shape", x) for n, x in v.feeds.items()}, v.settings)
    if args.save is not None:
        args.save.write_bytes(v.model.SerializeToString())
    sys.stdout.flush()  # before what may end the process
    result = try_one(args.one, variants, OrtProcess())
    isas.stop()
    print(*(f"{k}: {x}" for k, x in result.items()), sep="\n")
    return int(result["kind"] not in GOOD)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", choices=SOURCES, required=True, help="where cases come from")
    parser.add_argument("--transform", help="some transforms by name; all, or chains, if not given")
    parser.add_argument("--count", type=int, help="variants to try; all there are if not given")
    parser.add_argument("--seconds", type=float, help="stop after this time")
    parser.add_argument("--seed", type=int, default=0, help="the first variant")
    parser.add_argument("--jobs", type=int, default=1, help="processes at work")
    parser.add_argument("--renew", type=int, default=5000, help="variants before one is renewed")
    parser.add_argument("--one", type=int, metavar="SEED", help="try one variant in this process")
    parser.add_argument("--save", type=Path, help="with --one: keep its model in this file")
    return parser.parse_args()


def main() -> int:
    """Run the command line; return the exit status."""
    args = parse()
    chosen = args.transform.split(",") if args.transform else []
    unknown = [name for name in chosen if name not in TRANSFORMS]
    if unknown:
        print(f"no transform {unknown[0]}; there are {', '.join(TRANSFORMS)}", file=sys.stderr)
        return 2
    if not chosen and args.source != "random":
        chosen = list(TRANSFORMS)
    variants = Numbered(SOURCES[args.source](), chosen)
    kernels = [isa for isa in isas.ISAS if isa in native.isas]
    return report(args, variants, kernels) if args.one is None else one(args, variants, kernels)


if __name__ == "__main__":
    sys.exit(main())
