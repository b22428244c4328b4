"""The text output of `sardonyx plan`."""

from __future__ import annotations

import sardonyx._native as native
from sardonyx.base.units import format_bytes
from sardonyx.cli.console import (
    count,
    format_shape,
    heading,
    note,
    printable,
    say,
    short_name,
    table,
)
from sardonyx.cli.plan import DEFAULT, Planned
from sardonyx.reports.timeline import Tensor, Timeline


def show(planned: Planned, top: int) -> None:
    """Print the execution orders, the live tensors at the peak, and advice."""
    sizes = ", ".join(f"{printable(n)} {format_shape(s)}" for n, s in planned.shapes.items())
    heading(printable(planned.model), sizes)
    if planned.assumed:
        assumed = ", ".join(f"{printable(n)}={s}" for n, s in planned.assumed.items())
        note(f"sizes that depend on data, assumed: {assumed} (--dims sets others)")
    say()
    _orders(planned)
    _peak(planned.shown, top)
    _advice(planned)


def _orders(planned: Planned) -> None:
    heading("memory of a run by order", "outputs and threads' workspaces add to the peak")
    timelines = planned.timelines.values()
    best = min(t.peak_bytes for t in timelines)
    columns = {
        "peak": [t.peak_bytes for t in timelines],
        "arena": [t.arena_bytes for t in timelines],
        "live": [t.lower_bound for t in timelines],
        "outputs": [t.output_bytes for t in timelines],
        "scratch": [t.scratch_bytes for t in timelines],
    }
    if columns["arena"] == columns["peak"]:  # one arena holds everything
        del columns["arena"]
    rows = []
    for i, timeline in enumerate(timelines):
        figures = [format_bytes(column[i]) for column in columns.values()]
        rows.append([timeline.order, *figures, str(len(timeline.steps)), _remark(timeline, best)])
    last = len(columns) + 2
    titles, styles = ("order", *columns, "steps", ""), {0: "cyan", last: "dim"}
    table(rows, titles, right=range(1, last), styles=styles)
    per_thread, cpus = planned.shown.local_bytes, native.usable_cpus()
    if per_thread:
        note(f"each thread has a workspace of {format_bytes(per_thread)}")
    if len(planned.shown.arenas) == 1:
        total = planned.shown.total_bytes(cpus)
        note(f"with {count(cpus, 'thread')} {total:,} bytes, for sardonyx.max_arena_bytes")
    say()


def _remark(timeline: Timeline, best: int) -> str:
    remarks = ["default"] if timeline.order == DEFAULT else []
    if timeline.peak_bytes > best > 0:
        remarks.append(f"+{timeline.peak_bytes / best - 1:.1%}")
    return ", ".join(remarks)


def _peak(shown: Timeline, top: int) -> None:
    if not shown.steps:
        heading("live at the peak", "nothing: the program has no steps")
        say()
        return
    step = shown.steps[shown.peak_step]
    where = f"step {shown.peak_step + 1} of {len(shown.steps)}"
    what = f"{short_name(step.name)} ({printable(step.op)})"
    total = format_bytes(shown.lower_bound)
    heading("live at the peak", f"{total} in {where}, {what}, by {shown.order}")
    live = shown.alive(shown.peak_step)
    titles = ("bytes", "tensor", "type", "made by", "steps", "idle")
    rows = [_row(t) for t in live[:top]]
    table(rows, titles, right=(0, 5), styles={1: "cyan"}, names=(1, 3))
    if rest := live[top:]:
        total = format_bytes(sum(t.bytes for t in rest))
        note(f"{total} in {len(rest)} more: --top lists them")
    say()


def _row(tensor: Tensor) -> list[str]:
    is_scratch = tensor.kind == "scratch"
    shape = format_shape(tensor.shape).replace(" ", "")
    return [
        format_bytes(tensor.bytes),
        printable(tensor.name),
        "scratch" if is_scratch else f"{tensor.dtype}{shape}",
        printable(tensor.maker),
        f"{tensor.start + 1}-{tensor.end + 1}",
        str(tensor.idle),
    ]


def _advice(planned: Planned) -> None:
    heading("what would shrink it", "" if planned.advice else "nothing stands out")
    rows = [[format_bytes(a.saves_bytes) if a.saves_bytes else "", a.text] for a in planned.advice]
    table(rows, right=(0,))
