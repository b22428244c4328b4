"""`sardonyx profile`: the time of each step of a run, compared with the machine's roofline."""

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
from sardonyx.base.units import format_seconds
from sardonyx.cli.arguments import UsageError, precision_entry
from sardonyx.cli.console import activity, count, heading, note, printable, say, table
from sardonyx.cli.inputs import check_outputs, chosen, input_files
from sardonyx.cli.measure import OtherLoad, Start, busy_note, start
from sardonyx.cli.profile_cost import Cost, cost, family
from sardonyx.cli.roofline import Roofline
from sardonyx.reports.trace import Event, TimedStep
from sardonyx.session import InferenceSession

_ROOFLINES: Final = 3  # measurements of the roofline, spread over the runs
_TINY: Final = 1e-3  # of a run: shorter families are added up in one row
_TITLES: Final = ("time", "share", "GFLOP/s", "GB/s", "of limit")


@frozen
class ProfiledStep:
    """A step of a run, with its median time over the runs."""

    timed: TimedStep
    family: str
    seconds: float  # of all passes
    passes: int  # more than one in a loop
    cost: Cost  # of all passes

    def ideal_s(self, roofline: Roofline) -> float:
        """Return the time of the step at the roofline."""
        return max(self.compute_s(roofline), self.memory_s(roofline))

    def compute_s(self, roofline: Roofline) -> float:
        """Return the time of its operations at the peak rate."""
        return self.cost.operations / roofline.operations_per_s[self.cost.type]

    def memory_s(self, roofline: Roofline) -> float:
        """Return the time of its bytes at the peak rate."""
        return self.cost.n_bytes / roofline.bytes_read_per_s


@frozen
class Subject:
    """The profiled model, the source of its inputs, and the precision."""

    model: str
    inputs: str = ""
    precision: str = "exact"


@frozen
class ModelProfile:
    """All measurements of a model."""

    subject: Subject
    start: Start
    roofline: Roofline
    steps: tuple[ProfiledStep, ...]  # the longest first
    run_s: float  # the median of runs without profiling, if the model has a fast path
    outside_s: float  # of a run, outside of its steps
    n_runs: int
    events: tuple[Event, ...]  # of a run of about the median length
    others: float | None = None  # share of the machine's cores that other processes used

    @property
    def whole_s(self) -> float:
        """Return the time of which shares are given: the steps and what is outside of them."""
        return sum(s.seconds for s in self.steps) + self.outside_s

    def families(self) -> dict[str, list[ProfiledStep]]:
        """Return the steps by family, the longest first."""
        families: dict[str, list[ProfiledStep]] = {}
        for step in self.steps:
            families.setdefault(step.family, []).append(step)
        return dict(sorted(families.items(), key=lambda item: -sum(s.seconds for s in item[1])))


def command(arguments: argparse.Namespace) -> int:
    """Profile MODEL, print tables and write --trace."""
    path = pathlib.Path(arguments.model)
    check_outputs([arguments.trace, arguments.html], input_files(arguments))
    if arguments.starts is not None and not arguments.start:
        raise UsageError("--starts needs --start")
    if arguments.start:
        for name in ("trace", "html"):
            if getattr(arguments, name) is not None:
                raise UsageError(f"--{name} is for runs, and --start measures none: leave one out")
        from sardonyx.cli.profile_start import show_start

        return show_start(arguments, path)
    with activity(f"profiling {printable(path.name)}"):
        report = profiled(arguments, path)
    if arguments.trace is not None:
        from sardonyx.cli.profile_trace import trace

        with writing(os.fspath(arguments.trace)) as file:
            file.write(json.dumps(trace(report)).encode())
    if arguments.html is not None:
        from sardonyx.cli.profile_page import page

        with writing(os.fspath(arguments.html)) as file:
            file.write(page(report).encode())
    if arguments.json:
        print(json.dumps(facts(report), indent=2))
        return 0
    _show(report, arguments.top)
    if arguments.trace is not None:
        trace_path = printable(str(arguments.trace))
        say(f"\nthe trace is in {trace_path}: open it in https://ui.perfetto.dev")
    if arguments.html is not None:
        say(f"\nthe page is in {printable(str(arguments.html))}: open it in a browser")
    return 0


def profiled(arguments: argparse.Namespace, path: pathlib.Path) -> ModelProfile:
    """Return the report of a model, with the inputs and threads of the arguments."""
    entries, providers = precision_entry(arguments), arguments.provider
    started = start(path, arguments.threads, os.devnull, entries=entries, providers=providers)
    check_outputs([arguments.trace, arguments.html], started.session._source.files.states())
    feed, source = chosen(arguments, path, started.session._compiled.model.inputs)
    roofline = Roofline(arguments.threads or native.usable_cpus())
    subject = Subject(str(path), source, arguments.precision)
    return measured(started, feed, arguments.runs, roofline, subject)


def measured(
    started: Start, feed: Mapping[str, Any], n_runs: int, roofline: Roofline, subject: Subject
) -> ModelProfile:
    """Alternate runs with profiling, runs without it, and measurements of the roofline."""
    session = started.session
    profiles: list[tuple[float, list[Event]]] = []
    plain: list[float] = []
    interval = max(1, n_runs // _ROOFLINES)
    load = OtherLoad()
    for i in range(n_runs):
        if i % interval == 0:
            roofline.measure()
            # Binds sizes, and reads back what the measurement evicted from the caches.
            session.run(None, feed)
        profiles.append(_profile_run(session, feed))
        plain.extend(_plain_run(session, feed))
    others = load.share()
    steps = merged([events for _, events in profiles])
    middle = statistics.median_low(seconds for seconds, _ in profiles)
    events = next(e for seconds, e in profiles if seconds == middle)
    times = plain or [seconds for seconds, _ in profiles]
    # Minima of both: noise falls on one of them, and only adds.
    outside_s = max(0.0, min(times) - min(_in_steps(e) for _, e in profiles))
    run_s = statistics.median(times)
    return ModelProfile(
        subject, started, roofline, steps, run_s, outside_s, n_runs, tuple(events), others
    )


def _in_steps(events: Sequence[Event]) -> float:
    return sum(e.end - e.begin for e in events if e.step is not None)


def _profile_run(session: InferenceSession, feed: Mapping[str, Any]) -> tuple[float, list[Event]]:
    """Return the seconds of a run, and its events."""
    profile = session._profile
    assert profile is not None
    profile.events.clear()
    began = time.perf_counter()
    session.run(None, feed)
    return time.perf_counter() - began, list(profile.events)


def _plain_run(session: InferenceSession, feed: Mapping[str, Any]) -> list[float]:
    """Return the seconds of a run without profiling, or nothing if the model has no fast path."""
    fast = session._compiled.program.fast_path
    if fast is None:
        return []
    began = time.perf_counter()
    outputs = fast.call(dict(feed))
    # Anything but a list says that the fast path does not accept this feed.
    return [time.perf_counter() - began] if isinstance(outputs, list) else []


def merged(runs: Sequence[Sequence[Event]]) -> tuple[ProfiledStep, ...]:
    """Return each step with its median time over runs; passes of a loop are added up."""
    seconds: dict[Any, list[float]] = {}
    passes: dict[Any, list[TimedStep]] = {}
    for number, events in enumerate(runs):
        for event in events:
            if event.step is not None:
                times = seconds.setdefault(event.step.key, [0.0] * len(runs))
                times[number] += event.end - event.begin
                if not number:
                    passes.setdefault(event.step.key, []).append(event.step)
    steps = [_step(timed, seconds[key]) for key, timed in passes.items()]
    return tuple(sorted(steps, key=lambda s: -s.seconds))


def _step(passes: Sequence[TimedStep], times: Sequence[float]) -> ProfiledStep:
    costs = [cost(step) for step in passes]
    total = Cost(sum(c.operations for c in costs), costs[0].type, sum(c.n_bytes for c in costs))
    first = passes[0]
    return ProfiledStep(first, family(first), statistics.median(times), len(passes), total)


def rates(steps: Sequence[ProfiledStep], roofline: Roofline) -> dict[str, Any]:
    """Return the rates of steps, and their share of the roofline."""
    seconds = sum(s.seconds for s in steps)
    operations = sum(s.cost.operations for s in steps)
    n_bytes = sum(s.cost.n_bytes for s in steps)
    ideal = sum(s.ideal_s(roofline) for s in steps)
    return {
        "seconds": seconds,
        "operations": operations,
        "bytes": n_bytes,
        "gflops": operations / seconds / 1e9 if seconds else 0.0,
        "gbytes": n_bytes / seconds / 1e9 if seconds else 0.0,
        "of_limit": ideal / seconds if seconds else 0.0,
        "at_limit_s": ideal,
    }


def described(step: ProfiledStep, roofline: Roofline) -> dict[str, Any]:
    """Return the facts about a step for JSON."""
    inputs, outputs = (
        [[o.type, list(o.dims)] for o in side if o is not None] for side in step.timed.operands()
    )
    is_computing = step.compute_s(roofline) >= step.memory_s(roofline)
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
        **rates([step], roofline),
        "type": step.cost.type,
        "bound": "compute" if is_computing else "memory",
    }


def facts(report: ModelProfile) -> dict[str, Any]:
    """Return all figures for JSON."""
    roofline, subject = report.roofline, report.subject
    return {
        "model": subject.model,
        "inputs_from": subject.inputs,
        "precision": subject.precision,
        "isa": native.isa,
        "threads": roofline.threads,
        "runs": report.n_runs,
        "run_s": report.run_s,
        "outside_s": report.outside_s,
        "others_share": report.others,
        "limits": {
            "operations_per_s": roofline.operations_per_s,
            "bytes_read_per_s": roofline.bytes_read_per_s,
        },
        "families": [
            {"family": name, "steps": len(steps), **rates(steps, roofline)}
            for name, steps in report.families().items()
        ],
        "steps": [described(step, roofline) for step in report.steps],
        "start": {"seconds": report.start.seconds, "stages": report.start.stages},
    }


def _show(report: ModelProfile, top: int) -> None:
    """Print the machine's roofline, the families, and the longest steps."""
    n, subject = report.roofline.threads, report.subject
    how = f"{count(n, 'thread')}, {native.isa}, median of {count(report.n_runs, 'run')}"
    heading(printable(os.path.basename(subject.model)), how)
    note(f"inputs: {printable(subject.inputs)}; precision: {subject.precision}")
    note(f"this machine: {_machine(report)}")
    if busy := busy_note(report.others):
        say(f"  {busy}", "yellow")
    say()
    _show_families(report)
    say()
    _show_steps(report, top)
    ideal = sum(s.ideal_s(report.roofline) for s in report.steps)
    say(
        f"\na run takes {format_seconds(report.run_s)}; at the machine's limits its steps would "
        f"take {format_seconds(ideal)}"
    )


def _machine(report: ModelProfile) -> str:
    roofline = report.roofline
    used = {"float32", *(s.cost.type for s in report.steps if s.cost.operations)}
    peaks = [f"{r / 1e9:.0f} {t}" for t, r in roofline.operations_per_s.items() if t in used]
    reads = f"{roofline.bytes_read_per_s / 1e9:.0f} GB/s read from memory"
    return f"{', '.join(peaks)} GFLOP/s; {reads}"


def _figures(steps: Sequence[ProfiledStep], report: ModelProfile) -> list[str]:
    figures = rates(steps, report.roofline)
    seconds = figures["seconds"]
    return [
        format_seconds(seconds),
        _share(seconds, report.whole_s),
        f"{figures['gflops']:.0f}" if figures["operations"] else "",
        f"{figures['gbytes']:.1f}" if figures["bytes"] else "",
        f"{figures['of_limit']:.0%}" if figures["bytes"] else "",
    ]


def _share(seconds: float, whole: float) -> str:
    return f"{100 * seconds / whole:.1f} %" if whole else ""


def _show_families(report: ModelProfile) -> None:
    rows: list[list[str]] = []
    tiny: list[ProfiledStep] = []
    for name, steps in report.families().items():
        if sum(s.seconds for s in steps) < _TINY * report.whole_s:
            tiny += steps
        else:
            rows.append([name, *_figures(steps, report), str(len(steps))])
    if tiny:
        rows.append(["the rest", *_figures(tiny, report), str(len(tiny))])
    outside = report.outside_s
    rows.append(["outside of steps", format_seconds(outside), _share(outside, report.whole_s)])
    table(rows, ("by family", *_TITLES, "steps"), right=range(1, 7), styles={0: "cyan"})


def _show_steps(report: ModelProfile, top: int) -> None:
    shown = report.steps[:top]
    rows = [[printable(s.timed.name), _kernel(s), *_figures([s], report)] for s in shown]
    titles = ("longest steps", "kernel", *_TITLES)
    table(rows, titles, right=range(2, 7), styles={0: "cyan"}, names=(0,))
    more = len(report.steps) - len(shown)
    if more > 0:
        note(f"and {more} more (--top {len(report.steps)} lists all)")


def _kernel(step: ProfiledStep) -> str:
    """Return the kernel of a step, the shape of its output and its passes."""
    output = next((o for o in step.timed.operands().outputs if o is not None), None)
    shape = "" if output is None else f" {'x'.join(map(str, output.dims))}"
    times = f" {step.passes} times" if step.passes > 1 else ""
    return f"{step.timed.kernel}{shape}{times}"
