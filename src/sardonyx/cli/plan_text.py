"""Prints what `plan` found, for people."""

from __future__ import annotations

import shutil
from typing import Final

import sardonyx._native as native
from sardonyx.cli.info_weights import shortened
from sardonyx.cli.plan import DEFAULT, Planned
from sardonyx.cli.plan_advice import short
from sardonyx.cli.term import clean, heading, paint, say, shape, size, table
from sardonyx.reports.memory import Tensor, Timeline

_NAME, _MAKER = 1, 3  # columns of the table
_LEAST: Final = 16  # characters that a name keeps


def show(planned: Planned, top: int) -> None:
    """Orders, the tensors at the peak, and advice."""
    sizes = ", ".join(f"{clean(n)} {shape(s)}" for n, s in planned.shapes.items())
    heading(clean(planned.model), sizes)
    if planned.assumed:
        taken = ", ".join(f"{clean(n)}={s}" for n, s in planned.assumed.items())
        say(paint(f"  sizes that depend on data, taken as: {taken} (--dims gives others)", "dim"))
    say()
    _orders(planned)
    _peak(planned.shown, top)
    _advice(planned)


def _orders(planned: Planned) -> None:
    heading("memory of a run by order", "outputs and what threads take come on top of the peak")
    found = planned.timelines.values()
    best = min(t.peak_bytes for t in found)
    columns = {
        "peak": [t.peak_bytes for t in found],
        "arena": [t.arena_bytes for t in found],
        "alive": [t.lower_bound for t in found],
        "outputs": [t.output_bytes for t in found],
        "scratch": [t.scratch_bytes for t in found],
    }
    if columns["arena"] == columns["peak"]:  # all of it
        del columns["arena"]
    rows = [["order", *columns, "steps", ""]]
    for i, one in enumerate(found):
        figures = [size(column[i]) for column in columns.values()]
        rows.append([one.order, *figures, str(len(one.steps)), _note(one, best)])
    table(rows, right=range(1, len(rows[0]) - 1), styles={0: "cyan", len(rows[0]) - 1: "dim"})
    own, cpus = planned.shown.local_bytes, native.usable_cpus()
    if own:
        say(paint(f"  each thread works in {size(own)} of its own", "dim"))
    if len(planned.shown.arenas) == 1:
        total = f"{planned.shown.total_bytes(cpus):,} bytes"
        threads = "1 thread" if cpus == 1 else f"{cpus} threads"
        say(paint(f"  with {threads} {total}, for sardonyx.max_arena_bytes", "dim"))
    say()


def _note(found: Timeline, best: int) -> str:
    said = ["default"] if found.order == DEFAULT else []
    if found.peak_bytes > best > 0:
        said.append(f"+{found.peak_bytes / best - 1:.1%}")
    return ", ".join(said)


def _peak(shown: Timeline, top: int) -> None:
    if not shown.steps:
        heading("alive at the peak", "nothing: no step is left to run")
        say()
        return
    step = shown.steps[shown.peak_step]
    where = (
        f"step {shown.peak_step + 1} of {len(shown.steps)}, {short(step.name)} ({clean(step.op)})"
    )
    heading("alive at the peak", f"{size(shown.lower_bound)} in {where}, by {shown.order}")
    alive = shown.alive(shown.peak_step)
    rows = [["bytes", "tensor", "type", "made by", "steps", "idle"]]
    rows.extend(_row(t) for t in alive[:top])
    table(_fitted(rows), right=(0, 5), styles={1: "cyan"})
    if len(alive) > top:
        rest = alive[top:]
        total = size(sum(t.bytes for t in rest))
        say(paint(f"  {total} in {len(rest)} more: --top lists them", "dim"))
    say()


def _fitted(rows: list[list[str]]) -> list[list[str]]:
    """The rows within the width of the terminal: makers are cut first, then tensors."""
    room = max(80, min(160, shutil.get_terminal_size((120, 24)).columns))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    excess = 2 + 2 * (len(widths) - 1) + sum(widths) - room
    for column in (_MAKER, _NAME):
        cut = max(0, min(excess, widths[column] - _LEAST))
        excess -= cut
        names = shortened([row[column] for row in rows], widths[column] - cut)
        for row, name in zip(rows, names, strict=True):
            row[column] = name
    return rows


def _row(tensor: Tensor) -> list[str]:
    is_scratch = tensor.kind == "scratch"
    return [
        size(tensor.bytes),
        clean(tensor.name),
        "scratch" if is_scratch else f"{tensor.dtype}{shape(tensor.shape).replace(' ', '')}",
        clean(tensor.maker),
        f"{tensor.start + 1}-{tensor.end + 1}",
        str(tensor.idle),
    ]


def _advice(planned: Planned) -> None:
    heading("what would shrink it", "" if planned.advice else "nothing stands out")
    table([[size(a.saves_bytes) if a.saves_bytes else "", a.text] for a in planned.advice], (0,))
