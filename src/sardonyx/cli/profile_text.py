"""The text output of `sardonyx profile`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import sardonyx._native as native
from sardonyx.base.units import format_seconds
from sardonyx.cli.console import count, heading, note, printable, say, table
from sardonyx.cli.profile import ProfiledStep, Report, rates

_TINY: Final = 1e-3  # of a run: shorter families are added up in one row
_TITLES: Final = ("time", "share", "GFLOP/s", "GB/s", "of limit")


def show(report: Report, top: int) -> None:
    """Print the machine's roofline, the families, and the longest steps."""
    n, subject = report.roofline.threads, report.subject
    how = f"{count(n, 'thread')}, {native.isa}, median of {count(report.n_runs, 'run')}"
    heading(printable(os.path.basename(subject.model)), how)
    note(f"inputs: {printable(subject.inputs)}; precision: {subject.precision}")
    note(f"this machine: {_machine(report)}")
    say()
    _families(report)
    say()
    _steps(report, top)
    ideal = sum(s.ideal_s(report.roofline) for s in report.steps)
    say(
        f"\na run takes {format_seconds(report.run_s)}; at the machine's limits its steps would "
        f"take {format_seconds(ideal)}"
    )


def _machine(report: Report) -> str:
    roofline = report.roofline
    used = {"float32", *(s.cost.type for s in report.steps if s.cost.operations)}
    peaks = [f"{r / 1e9:.0f} {t}" for t, r in roofline.operations_per_s.items() if t in used]
    reads = f"{roofline.bytes_read_per_s / 1e9:.0f} GB/s read from memory"
    return f"{', '.join(peaks)} GFLOP/s; {reads}"


def _figures(steps: Sequence[ProfiledStep], report: Report) -> list[str]:
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


def _families(report: Report) -> None:
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


def _steps(report: Report, top: int) -> None:
    shown = report.steps[:top]
    rows = [
        [printable(step.timed.name), _kernel(step), *_figures([step], report)] for step in shown
    ]
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
