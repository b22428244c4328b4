"""Prints what `plan` found, for people."""

from __future__ import annotations

from sardonyx.cli.plan import DEFAULT, Planned
from sardonyx.cli.plan_advice import short
from sardonyx.cli.term import clean, heading, paint, say, shape, size, table
from sardonyx.memory.report import Tensor, Timeline


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
    best = min(t.peak_bytes for t in planned.timelines.values())
    rows = [["order", "peak", "arena", "alive", "outputs", "scratch", "steps", ""]]
    for order, found in planned.timelines.items():
        figures = (
            found.peak_bytes,
            found.arena_bytes,
            found.lower_bound,
            found.output_bytes,
            found.scratch_bytes,
        )
        note = "default" if order == DEFAULT else ""
        if found.peak_bytes > best:
            more = found.peak_bytes / best - 1 if best else 0
            note = f"{note}, +{more:.1%}".removeprefix(", ")
        rows.append([order, *map(size, figures), str(len(found.steps)), note])
    table(rows, right=(1, 2, 3, 4, 5, 6), styles={0: "cyan", 7: "dim"})
    threads = planned.shown.local_bytes
    if threads:
        say(paint(f"  each thread works in {size(threads)} of its own", "dim"))
    say()


def _peak(shown: Timeline, top: int) -> None:
    if not shown.steps:
        heading("alive at the peak", "nothing: no step is left to run")
        say()
        return
    step = shown.steps[shown.peak_step]
    where = f"step {shown.peak_step + 1} of {len(shown.steps)}, {clean(step.name)} ({step.op})"
    heading("alive at the peak", f"{size(shown.lower_bound)} in {where}, by {shown.order}")
    alive = shown.alive(shown.peak_step)
    rows = [["bytes", "tensor", "type", "made by", "steps", "idle"]]
    rows.extend(_row(t) for t in alive[:top])
    if len(alive) > top:
        rest = alive[top:]
        rows.append([size(sum(t.bytes for t in rest)), f"{len(rest)} more: --top shows them"])
    table(rows, right=(0, 5), styles={1: "cyan"})
    say()


def _row(tensor: Tensor) -> list[str]:
    kind = "scratch" if tensor.kind == "scratch" else f"{tensor.dtype} {shape(tensor.shape)}"
    return [
        size(tensor.bytes),
        short(tensor.name),
        kind,
        short(tensor.maker),
        f"{tensor.start + 1}-{tensor.end + 1}",
        str(tensor.idle),
    ]


def _advice(planned: Planned) -> None:
    heading("what would shrink it", "" if planned.advice else "nothing stands out")
    table([[size(a.saves_bytes) if a.saves_bytes else "", a.text] for a in planned.advice], (0,))
