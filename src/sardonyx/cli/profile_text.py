"""A profile as tables for people."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import Final

import sardonyx._native as native
from sardonyx.cli.profile import Report, Step, rates
from sardonyx.cli.term import clean, duration, heading, paint, say, table

_NAME: Final = 10  # columns that a name has at least
_FIGURES: Final = 46  # columns of what stands beside a name
_TINY: Final = 1e-3  # of a run: families below are added up in one line
_HEAD: Final = ("time", "share", "GFLOP/s", "GB/s", "of limit")


def show(report: Report, top: int) -> None:
    """Prints what the machine can do, families, and the longest steps."""
    limits, n = report.limits, report.limits.threads
    runs = f"{report.n_runs} run{'s' * (report.n_runs > 1)}"
    many = f"{n} thread{'s' * (n > 1)}, {native.isa}, median of {runs}"
    given = report.given
    heading(clean(os.path.basename(given.model)), many)
    say(paint(f"  inputs: {clean(given.inputs)}; precision: {given.precision}", "dim"))
    say(paint(f"  this machine: {_machine(report)}\n", "dim"))
    _families(report)
    say()
    _steps(report, top)
    say()
    ideal = sum(s.ideal(limits) for s in report.steps)
    say(
        f"a run takes {duration(report.run_s)}; at the machine's limits its steps would take "
        f"{duration(ideal)}"
    )


def _machine(report: Report) -> str:
    limits = report.limits
    used = {"float32", *(s.work.type for s in report.steps if s.work.operations)}
    figures = [f"{rate / 1e9:.0f} {name}" for name, rate in limits.rates.items() if name in used]
    return f"{', '.join(figures)} GFLOP/s; {limits.reads / 1e9:.0f} GB/s read from memory"


def _row(name: str, steps: Sequence[Step], report: Report) -> list[str]:
    found = rates(steps, report.limits)
    seconds = found["seconds"]
    return [
        name,
        duration(seconds),
        _share(seconds, report.whole_s),
        f"{found['gflops']:.0f}" if found["operations"] else "",
        f"{found['gbytes']:.1f}" if found["bytes"] else "",
        f"{found['of_limit']:.0%}" if found["bytes"] else "",
    ]


def _share(seconds: float, whole: float) -> str:
    return f"{100 * seconds / whole:.1f} %" if whole else ""


def _families(report: Report) -> None:
    rows = [["by family", *_HEAD, "steps"]]
    small: list[Step] = []
    for name, steps in report.families().items():
        if sum(s.seconds for s in steps) < _TINY * report.whole_s:
            small += steps
        else:
            rows.append([*_row(name, steps, report), str(len(steps))])
    if small:
        rows.append([*_row("the rest", small, report), str(len(small))])
    outside = report.outside_s
    rows.append(["outside of steps", duration(outside), _share(outside, report.whole_s)])
    table(rows, right=(1, 2, 3, 4, 5, 6), styles={0: "cyan"})


def _steps(report: Report, top: int) -> None:
    shown = report.steps[:top]
    more = len(report.steps) - len(shown)
    room = shutil.get_terminal_size((120, 24)).columns - _FIGURES
    rows = [["longest steps", *_HEAD]]
    rows += [_row(_named(step, room), [step], report) for step in shown]
    table(rows, right=(1, 2, 3, 4, 5), styles={0: "cyan"})
    if more > 0:
        say(paint(f"  and {more} more (--top {len(report.steps)} lists all)", "dim"))


def _named(step: Step, room: int) -> str:
    """A step by name, kernel and what it makes; the middle of a name gives way."""
    made = next((o for o in step.timed.operands().outputs if o is not None), None)
    shape = "" if made is None else f" {'x'.join(map(str, made.dims))}"
    times = f" {step.passes} times" if step.passes > 1 else ""
    rest = f" ({step.timed.kernel}{shape}{times})"
    name, left = clean(step.timed.name), max(_NAME, room - len(rest))
    if len(name) <= left:
        return name + rest
    half = (left - 3) // 2
    return f"{name[: left - 3 - half]}...{name[-half:]}{rest}"
