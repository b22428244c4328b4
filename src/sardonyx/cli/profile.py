"""`sardonyx profile`: where the time of a run goes, against what the machine could do."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import sardonyx._native as native
from sardonyx.base.atomic_file import writing
from sardonyx.base.records import frozen
from sardonyx.cli import targets
from sardonyx.cli.arguments import UsageError, precision_entry
from sardonyx.cli.inputs import chosen
from sardonyx.cli.limits import Limits
from sardonyx.cli.measure import Start, start
from sardonyx.cli.profile_work import Work, family, work
from sardonyx.cli.term import Progress, clean, say
from sardonyx.reports.trace import Event, TimedStep
from sardonyx.session import InferenceSession

_TURNS: Final = 3  # of measuring the limits, spread over the runs


@frozen
class Step:
    """A step of a run, with its median time over the runs."""

    timed: TimedStep
    family: str
    seconds: float  # of all passes
    passes: int  # more than one in a loop
    work: Work  # of all passes

    def ideal(self, limits: Limits) -> float:
        """The seconds that its work takes at the limits."""
        return max(self.computing(limits), self.work.n_bytes / limits.reads)

    def computing(self, limits: Limits) -> float:
        """The seconds that its operations take at the limit."""
        return self.work.operations / limits.rates[self.work.type]


@frozen
class Given:
    """What was profiled, on what, and how exactly."""

    model: str = ""
    inputs: str = ""
    precision: str = "exact"


@frozen
class Report:
    """All that was measured of a model."""

    given: Given
    start: Start
    limits: Limits
    steps: tuple[Step, ...]  # the longest first
    run_s: float  # the median of runs that nobody watches, where there are such
    outside_s: float  # of a run that no step explains
    n_runs: int
    events: tuple[Event, ...]  # of a run of about the median length

    @property
    def whole_s(self) -> float:
        """The steps and what is outside of them: what shares are of."""
        return sum(s.seconds for s in self.steps) + self.outside_s

    def families(self) -> dict[str, list[Step]]:
        """The steps by family, the longest first."""
        found: dict[str, list[Step]] = {}
        for step in self.steps:
            found.setdefault(step.family, []).append(step)
        return dict(sorted(found.items(), key=lambda item: -sum(s.seconds for s in item[1])))


def command(arguments: argparse.Namespace) -> int:
    """Profiles MODEL and prints tables; writes a trace if that is asked for."""
    path = pathlib.Path(arguments.model)
    targets.check([arguments.trace], targets.read_by(arguments))
    if arguments.starts is not None and not arguments.start:
        raise UsageError("--starts is for --start, which is not given")
    if arguments.start:
        if arguments.trace is not None:
            raise UsageError("--trace is of a run, and --start shows none: leave one out")
        from sardonyx.cli.profile_start import show_start

        return show_start(arguments, path)
    with Progress(f"profiling {clean(path.name)}"):
        report = profiled(arguments, path)
    if arguments.trace is not None:
        from sardonyx.cli.profile_trace import trace

        with writing(os.fspath(arguments.trace)) as file:
            file.write(json.dumps(trace(report)).encode())
    if arguments.json:
        say(json.dumps(facts(report), indent=2))
        return 0
    from sardonyx.cli.profile_text import show

    show(report, arguments.top)
    if arguments.trace is not None:
        say(f"\nthe trace is in {clean(str(arguments.trace))}: open it in https://ui.perfetto.dev")
    return 0


def profiled(arguments: argparse.Namespace, path: pathlib.Path) -> Report:
    """A model's report, with inputs and threads as the arguments say."""
    entries, providers = precision_entry(arguments), arguments.provider
    begun = start(path, arguments.threads, os.devnull, entries=entries, providers=providers)
    targets.check([arguments.trace], begun.session._source.files.states())
    feed, source = chosen(arguments, path, begun.session._compiled.model.inputs)
    limits = Limits(threads_of(arguments.threads))
    given = Given(str(path), source, arguments.precision)
    return measured(begun, feed, arguments.runs, limits, given)


def threads_of(asked: int) -> int:
    """How many threads a session takes that was asked for so many."""
    return asked or native.usable_cpus()


def measured(
    begun: Start, feed: Mapping[str, Any], n_runs: int, limits: Limits, given: Given | None = None
) -> Report:
    """Runs that are watched, others that are not and the limits, all in turns."""
    session = begun.session
    watched: list[tuple[float, list[Event]]] = []
    plain: list[float] = []
    every = max(1, n_runs // _TURNS)
    for turn in range(n_runs):
        if turn % every == 0:
            limits.turn()
            # Binds sizes, and reads again what the limits drove out of the caches.
            session.run(None, feed)
        watched.append(_watch(session, feed))
        plain.extend(_unwatched(session, feed))
    steps = merged([events for _, events in watched])
    middle = statistics.median_low(seconds for seconds, _ in watched)
    events = next(e for seconds, e in watched if seconds == middle)
    times = plain or [seconds for seconds, _ in watched]
    # The best of both: what else the machine does falls on one of them, and only adds.
    outside_s = max(0.0, min(times) - min(_in_steps(e) for _, e in watched))
    run_s = statistics.median(times)
    return Report(given or Given(), begun, limits, steps, run_s, outside_s, n_runs, tuple(events))


def _in_steps(events: Sequence[Event]) -> float:
    return sum(e.end - e.begin for e in events if e.step is not None)


def _watch(session: InferenceSession, feed: Mapping[str, Any]) -> tuple[float, list[Event]]:
    """The seconds of a run, and its events."""
    profile = session._profile
    assert profile is not None
    profile.events.clear()
    began = time.perf_counter()
    session.run(None, feed)
    return time.perf_counter() - began, list(profile.events)


def _unwatched(session: InferenceSession, feed: Mapping[str, Any]) -> list[float]:
    """The seconds of a run as users have it; nothing where only watched ones can be had."""
    fast = session._compiled.program.fast_path
    if fast is None:
        return []
    began = time.perf_counter()
    made = fast.call(dict(feed))
    return [time.perf_counter() - began] if isinstance(made, list) else []


def merged(runs: Sequence[Sequence[Event]]) -> tuple[Step, ...]:
    """Each step once, with its median time over runs; passes of a loop are added up."""
    seconds: dict[Any, list[float]] = {}
    passes: dict[Any, list[TimedStep]] = {}
    for number, events in enumerate(runs):
        for event in events:
            if event.step is not None:
                times = seconds.setdefault(event.step.key, [0.0] * len(runs))
                times[number] += event.end - event.begin
                if not number:
                    passes.setdefault(event.step.key, []).append(event.step)
    found = [_step(passed, seconds[key]) for key, passed in passes.items()]
    return tuple(sorted(found, key=lambda s: -s.seconds))


def _step(passed: Sequence[TimedStep], times: Sequence[float]) -> Step:
    works = [work(step) for step in passed]
    total = Work(sum(w.operations for w in works), works[0].type, sum(w.n_bytes for w in works))
    first = passed[0]
    return Step(first, family(first), statistics.median(times), len(passed), total)


def rates(steps: Sequence[Step], limits: Limits) -> dict[str, Any]:
    """What steps did, and how near to the limits that is."""
    seconds = sum(s.seconds for s in steps)
    operations = sum(s.work.operations for s in steps)
    n_bytes = sum(s.work.n_bytes for s in steps)
    ideal = sum(s.ideal(limits) for s in steps)
    return {
        "seconds": seconds,
        "operations": operations,
        "bytes": n_bytes,
        "gflops": operations / seconds / 1e9 if seconds else 0.0,
        "gbytes": n_bytes / seconds / 1e9 if seconds else 0.0,
        "of_limit": ideal / seconds if seconds else 0.0,
        "at_limit_s": ideal,
    }


def described(step: Step, limits: Limits) -> dict[str, Any]:
    """A step for machines."""
    found = step.timed.operands()
    shapes = ([[o.type, list(o.dims)] for o in side if o is not None] for side in found)
    inputs, outputs = shapes
    is_computing = step.computing(limits) >= step.work.n_bytes / limits.reads
    return {
        "name": step.timed.name,
        "op": step.timed.nodes[0].op.name,
        "nodes": [n.name or n.op.name for n in step.timed.nodes],
        "family": step.family,
        "kernel": step.timed.kernel,
        "provider": step.timed.provider,
        "passes": step.passes,
        "inputs": inputs,
        "outputs": outputs,
        **rates([step], limits),
        "type": step.work.type,
        "bound": "compute" if is_computing else "memory",
    }


def facts(report: Report) -> dict[str, Any]:
    """Everything for machines."""
    limits = report.limits
    return {
        "model": report.given.model,
        "inputs_from": report.given.inputs,
        "precision": report.given.precision,
        "isa": native.isa,
        "threads": limits.threads,
        "runs": report.n_runs,
        "run_s": report.run_s,
        "outside_s": report.outside_s,
        "limits": {
            "operations_per_s": limits.rates,
            "bytes_read_per_s": limits.reads,
        },
        "families": [
            {"family": name, "steps": len(steps), **rates(steps, limits)}
            for name, steps in report.families().items()
        ],
        "steps": [described(step, limits) for step in report.steps],
        "start": {"seconds": report.start.seconds, "stages": report.start.stages},
    }
