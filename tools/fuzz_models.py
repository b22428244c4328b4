#!/usr/bin/env python3
"""Runs hostile models without end, or a given number of them, and reports what went wrong.

    fuzz_models.py --count 10000            the models of seeds 0 to 9999
    fuzz_models.py --seconds 300 --seed 7   as many as fit, from seed 7 on
    fuzz_models.py --count 1000000 --jobs 8 by eight workers at once
    fuzz_models.py --one 1234               one model again, here, with its traceback
    fuzz_models.py --one 1234 --save FILE   and kept in a file

A model is a valid one (those of tests/seed_models.py, the node cases of the ONNX backend suite, and
tests/cases), mostly with bytes or parts changed; its feeds are mostly what it declares. It must
give a session or an error of ours, and so must a run of it, the same by the fast path as by the
checked one. Found are: other exceptions, paths that differ, processes that died, work that does not
end in time, and workers that grow. Models run in worker processes with a limit on their memory.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import os
import re
import resource
import sys
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # before numpy is imported
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.hostile_runs import Hang, bounded_memory, load_and_run  # noqa: E402  # needs the path above
from tests.mutate import change_bytes, change_model  # noqa: E402
from tests.seed_models import seeds  # noqa: E402
from tests.two_paths import Disagree  # noqa: E402
from tests.workers import Plan, Result, Task, hunt, told  # noqa: E402

HANG_SECONDS = 10.0
DEATH_SECONDS = 60.0  # one step of a run cannot be interrupted; after this the worker is killed
DIGITS = re.compile(r"[-+.\d]+")
GROWTH_BYTES = 96 << 20  # of a worker from its second tenth to its last; pools keep up to 50 MiB
SIZED = 16  # one in so many models has the worker look at its size
MIN_SIZES = 10  # in a tenth: before that, what is imported on first use counts more


@dataclass(frozen=True)
class Corpus:
    """The valid models by name; `own` are the names of those that use most of the format."""

    models: dict[str, bytes]
    names: list[str] = field(init=False)
    own: list[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", sorted(self.models))
        own = [n for n in self.names if n.startswith("seed_")]
        object.__setattr__(self, "own", own or self.names)


def our_corpus() -> Corpus:
    """Our own models, those of the ONNX backend suite, and the cases of the op tests."""
    from onnx.backend.test.loader import load_model_tests

    from tests.op_cases import all_cases
    from tests.oracle import feeds_of, model_of

    warnings.simplefilter("ignore")
    models = {f"seed_{number:02}": data for number, data in enumerate(seeds())}
    models |= {c.name: c.model.SerializeToString() for c in load_model_tests(kind="node")}
    for number, case in enumerate(all_cases()):
        # Half of the cases have their inputs as constants: what is known of them guides compiling.
        known = [*feeds_of(case)][1:] if number % 2 else []
        models[f"case_{number:04}"] = model_of(case, constants=known).SerializeToString()
    return Corpus(models)


def read_corpus(folder: Path | None) -> Corpus:
    """The models of a folder, or else our own."""
    if folder is None:
        return our_corpus()
    return Corpus({path.stem: path.read_bytes() for path in folder.glob("*.onnx")})


def make(seed: int, corpus: Corpus) -> tuple[bytes, Random, str]:
    """The hostile model of a seed, the generator for its inputs, and what it was made from."""
    rng = Random(seed)
    name = rng.choice(corpus.own if rng.random() < 0.3 else corpus.names)
    data = corpus.models[name]
    kind = rng.random()
    if kind < 0.1:
        return data, rng, name  # only its feeds are hostile
    if kind < 0.28:
        other = corpus.models[rng.choice(corpus.names)]
        return change_bytes(rng, data, other), rng, name
    return change_model(rng, data), rng, name


def try_one(seed: int, corpus: Corpus) -> Result:
    """Return the outcome of one seed; `where` and `trace` are set only for a fault."""
    data, rng, name = make(seed, corpus)
    invalid_feed_rate = 1.0 if data is corpus.models[name] else 0.3
    began = time.monotonic()
    try:
        outcome = load_and_run(data, rng, HANG_SECONDS, invalid_feed_rate)
    except Disagree as error:
        place = f"{DIGITS.sub('#', str(error))[:120]}"
        return {
            "seed": seed,
            "outcome": "disagree",
            "where": place,
            "from": name,
            "trace": str(error),
        }
    except (Exception, Hang) as error:
        what = "hang" if isinstance(error, Hang) else type(error).__name__
        place, trace = told(error, ROOT)
        return {"seed": seed, "outcome": what, "where": place, "from": name, "trace": trace}
    return {"seed": seed, "outcome": outcome, "seconds": time.monotonic() - began}


def started(corpus: Corpus, memory: int) -> Task:
    """Return the function by which a worker runs a seed."""
    warnings.simplefilter("ignore")  # numpy warns of absurd numbers
    limit = contextlib.ExitStack()
    limit.enter_context(bounded_memory(memory))
    pid = os.getpid()

    def task(seed: int, _limit: object = limit) -> Result:  # held until the process ends
        result = try_one(seed, corpus)
        if seed % SIZED == 0:
            result |= {"pid": pid, "bytes": anonymous_bytes()}
        return result

    return task


def anonymous_bytes() -> int:
    """Return the anonymous memory of this process."""
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return (resident - shared) * resource.getpagesize()


class Tally:
    """The outcomes so far."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._outcomes: collections.Counter[str] = collections.Counter()
        self._slowest = (0.0, 0)
        self._sizes: dict[int, list[int]] = {}
        self.found: dict[tuple[str, str], list[Result]] = {}  # by outcome and place

    def add(self, result: Result) -> None:
        """Counts a model, and prints the first of each kind of finding."""
        if "died" in result:
            result |= {"outcome": "died", "where": result["died"], "from": ""}
            result["trace"] = result["said"]
        seed = result["seed"]
        self._outcomes[result["outcome"]] += 1
        self._slowest = max(self._slowest, (result.get("seconds", 0.0), seed))
        if "bytes" in result:
            self._sizes.setdefault(result["pid"], []).append(result["bytes"])
        if self._outcomes.total() % 10_000 == 0:
            print(self, flush=True)
        if "where" not in result:
            return
        key = (result["outcome"], result["where"])
        if key not in self.found:
            print(f"\nseed {seed}, from {result['from']}: {key[0]} at {key[1]}")
            print(result["trace"], flush=True)
        self.found.setdefault(key, []).append(result)

    def check_growth(self) -> None:
        """A worker that ends larger than it was when everything it needs was loaded leaks."""
        for pid, sizes in self._sizes.items():
            tenth = len(sizes) // 10
            if tenth < MIN_SIZES:
                continue
            # The least: what one large run leaves behind goes back in time.
            early, late = (min(p) for p in (sizes[tenth : 2 * tenth], sizes[-tenth:]))
            said = f"{early / 1e6:.0f} MB early, {late / 1e6:.0f} MB late"
            print(f"the worker {pid}: {said}")
            if late - early > GROWTH_BYTES:
                result = {"seed": pid, "outcome": "grew", "where": said}
                self.found.setdefault(("grew", said), []).append(result)

    def __str__(self) -> str:
        took, count = time.monotonic() - self._began, self._outcomes.total()
        shown = ", ".join(f"{n} {outcome}" for outcome, n in self._outcomes.most_common())
        return f"{count} models in {took:.0f} s: {shown}"

    def show(self) -> None:
        """What was found, the most frequent first, and a summary as the last line."""
        self.check_growth()
        for (outcome, where), results in sorted(self.found.items(), key=lambda f: -len(f[1])):
            print(f"{len(results):5}  {outcome} at {where}, first with seed {results[0]['seed']}")
        print(f"the slowest took {self._slowest[0]:.1f} s: seed {self._slowest[1]}")
        print(self)


def report(args: argparse.Namespace, corpus: Corpus) -> int:
    """Hunts, and prints what was found; 1 if anything was."""
    count: Iterable[int] = itertools.count(args.seed)
    wanted = count if args.count is None else range(args.seed, args.seed + args.count)
    plan = Plan(wanted, args.jobs, args.seconds, patience=DEATH_SECONDS)
    tally = Tally()
    for result in hunt(lambda: started(corpus, args.memory), plan):
        tally.add(result)
    tally.show()
    return int(bool(tally.found))


def one(args: argparse.Namespace, corpus: Corpus) -> int:
    """One seed in this process, with its traceback."""
    if args.save is not None:
        args.save.write_bytes(make(args.one, corpus)[0])
    warnings.simplefilter("ignore")
    with bounded_memory(args.memory):
        result: dict[str, Any] = try_one(args.one, corpus)
    print(result.pop("trace", ""), result, sep="\n")
    return int("where" in result)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, help="models to try; without end if not given")
    parser.add_argument("--seconds", type=float, help="stop after this time")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="workers at once")
    parser.add_argument("--memory", type=int, default=1 << 29, help="bytes that a worker may take")
    parser.add_argument("--corpus", type=Path, help="folder of valid models instead of ours")
    parser.add_argument("--one", type=int, metavar="SEED", help="try one seed in this process")
    parser.add_argument("--save", type=Path, help="with --one: keep the model in this file")
    return parser.parse_args()


def main() -> int:
    """Run the command line; return the exit status."""
    args = parse()
    corpus = read_corpus(args.corpus)
    return report(args, corpus) if args.one is None else one(args, corpus)


if __name__ == "__main__":
    sys.exit(main())
