"""The page of `sardonyx profile --html`: the roofline, time by family, a start and a run."""

from __future__ import annotations

import os
from typing import Final

import sardonyx._native as native
from sardonyx.base.units import format_seconds
from sardonyx.cli.console import count
from sardonyx.cli.measure import busy_note
from sardonyx.cli.profile import ModelProfile, ProfiledStep, rates
from sardonyx.cli.profile_start import STAGES
from sardonyx.reports import charts
from sardonyx.reports.html_page import document, figures, paragraph, section, table

_LISTED: Final = 100  # steps in the table
_OUTSIDE: Final = "outside of steps"


def page(report: ModelProfile) -> str:
    """Return the whole page."""
    n, subject = report.roofline.threads, report.subject
    how = f"{count(n, 'thread')}, {native.isa}, median of {count(report.n_runs, 'run')}"
    summary = f"{how}; inputs: {subject.inputs}; precision: {subject.precision}"
    kinds = charts.hues(list(report.families()))
    ideal = sum(step.ideal_s(report.roofline) for step in report.steps)
    body = [
        figures(
            [
                (format_seconds(report.run_s), "a run"),
                (format_seconds(ideal), "its steps at the machine's limits"),
                (format_seconds(report.start.seconds), "start of the session"),
                (str(len(report.steps)), "steps"),
            ]
        ),
        _busy(report),
        section("Time by family", _note(), _families(report, kinds)),
        section("Roofline", *_roofline(report, kinds)),
        section("A run, step by step", charts.legend(kinds), _run(report, kinds)),
        section("Start of the session", _start(report)),
        section("Longest steps", _steps(report)),
    ]
    return document(f"Time of {os.path.basename(subject.model)}", summary, body)


def _busy(report: ModelProfile) -> str:
    note = busy_note(report.others)
    return paragraph(note, "warning") if note else ""


def _note() -> str:
    return paragraph("The shaded part of a bar is the time at the machine's limit.")


def _families(report: ModelProfile, kinds: dict[str, str]) -> str:
    rows = []
    for name, steps in report.families().items():
        figures_ = rates(steps, report.roofline)
        seconds, share = figures_["seconds"], figures_["seconds"] / (report.whole_s or 1.0)
        of_limit = f", {figures_['of_limit']:.0%} of limit" if figures_["bytes"] else ""
        text = f"{format_seconds(seconds)}, {share:.1%}{of_limit}"
        part = min(figures_["at_limit_s"], seconds)
        rows.append(charts.Bar(name, seconds, text, kinds[name], part, title=_titled(steps)))
    outside = f"{format_seconds(report.outside_s)}, {report.outside_s / (report.whole_s or 1):.1%}"
    rows.append(charts.Bar(_OUTSIDE, report.outside_s, outside, "theirs"))
    return charts.bars(rows)


def _titled(steps: list[ProfiledStep]) -> str:
    return f"{count(len(steps), 'step')}, the longest {steps[0].timed.name}"


def _roofline(report: ModelProfile, kinds: dict[str, str]) -> list[str]:
    computing = [s for s in report.steps if s.cost.operations and s.cost.n_bytes and s.seconds]
    if not computing:
        return [paragraph("No step has operations that are counted: all move bytes.")]
    whole = report.whole_s or 1.0
    points = [
        charts.Point(
            step.cost.operations / step.cost.n_bytes,
            step.cost.operations / step.seconds,
            step.seconds / whole,
            kinds[step.family],
            f"{step.timed.name}: {step.timed.kernel}, {format_seconds(step.seconds)}",
        )
        for step in computing
    ]
    used = {step.cost.type for step in computing}
    limits = {t: r for t, r in report.roofline.operations_per_s.items() if t in used}
    note = (
        f"Memory is read at {report.roofline.bytes_read_per_s / 1e9:.0f} GB/s; a circle's area is "
        "its share of the time. Steps above a limit read from caches, or need fewer operations "
        "(Winograd)."
    )
    return [paragraph(note), charts.roofline(points, limits, report.roofline.bytes_read_per_s)]


def _run(report: ModelProfile, kinds: dict[str, str]) -> str:
    families = {step.timed.key: step.family for step in report.steps}
    spans = [
        charts.Span(
            e.step.name,
            e.begin,
            e.end,
            f"{e.step.name}: {format_seconds(e.end - e.begin)}, {families[e.step.key]}",
            kinds[families[e.step.key]],
        )
        for e in report.events
        if e.step is not None and e.step.key in families
    ]
    return charts.strip(spans) if spans else paragraph("The run has no steps.")


def _start(report: ModelProfile) -> str:
    spans = [
        charts.Span(
            name, begin, end, f"{format_seconds(end - begin)}  {STAGES.get(name, '')}", "h0"
        )
        for name, begin, end in report.start.session._compiled.stages.spans
    ]
    return charts.waterfall(spans) if spans else paragraph("No stage was recorded.")


def _steps(report: ModelProfile) -> str:
    rows = []
    for step in report.steps[:_LISTED]:
        figures_ = rates([step], report.roofline)
        rows.append(
            [
                step.timed.name,
                step.timed.kernel,
                step.family,
                format_seconds(step.seconds),
                f"{step.seconds / (report.whole_s or 1.0):.1%}",
                f"{figures_['gflops']:.0f}" if figures_["operations"] else "",
                f"{figures_['gbytes']:.1f}" if figures_["bytes"] else "",
                f"{figures_['of_limit']:.0%}" if figures_["bytes"] else "",
            ]
        )
    titles = ("step", "kernel", "family", "time", "share", "GFLOP/s", "GB/s", "of limit")
    return table(titles, rows, range(3, 8))
