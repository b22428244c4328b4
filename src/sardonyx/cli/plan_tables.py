"""Tables of `sardonyx plan` that models and training steps have in common."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

from sardonyx.base.atomic_file import writing
from sardonyx.base.records import as_dict
from sardonyx.base.units import format_bytes
from sardonyx.cli.console import format_shape, heading, note, printable, say, short_name, table
from sardonyx.cli.plan_advice import Advice
from sardonyx.reports.timeline import Tensor, Timeline


def write_and_print(
    arguments: argparse.Namespace,
    page: Callable[[], str],
    facts: Callable[[], dict[str, Any]],
    show: Callable[[], None],
) -> None:
    """Write the page if --html names a file; print the facts with --json, else show the text."""
    if arguments.html is not None:
        with writing(os.fspath(arguments.html)) as file:
            file.write(page().encode())
    if arguments.json:
        print(json.dumps(facts(), indent=2))
        return
    show()
    if arguments.html is not None:
        say(f"\nthe whole timeline is in {printable(str(arguments.html))}: open it in a browser")


def show_peak(shown: Timeline, top: int, by: str) -> None:
    """Print the tensors that are live at a timeline's peak; `by` is the label of the run."""
    if not shown.steps:
        heading("live at the peak", "nothing: the program has no steps")
        say()
        return
    step = shown.steps[shown.peak_step]
    where = f"step {shown.peak_step + 1} of {len(shown.steps)}"
    what = f"{short_name(step.name)} ({printable(step.op)})"
    total = format_bytes(shown.lower_bound)
    heading("live at the peak", f"{total} in {where}, {what}, {by}")
    live = shown.alive(shown.peak_step)
    titles = ("bytes", "tensor", "type", "made by", "steps", "idle")
    rows = [_row(t) for t in live[:top]]
    table(rows, titles, right=(0, 5), styles={1: "cyan"}, names=(1, 3))
    if rest := live[top:]:
        total = format_bytes(sum(t.bytes for t in rest))
        note(f"{total} in {len(rest)} more: --top lists them")
    note("steps: the first and the last that need it; idle: the most in a row that do not touch it")
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


def show_advice(advice: Sequence[Advice]) -> None:
    """Print advice with its savings."""
    heading("what would lower the peak", "" if advice else "nothing stands out")
    rows = [[format_bytes(a.saves_bytes) if a.saves_bytes else "", a.text] for a in advice]
    table(rows, right=(0,))


def tensor_facts(tensor: Tensor) -> dict[str, Any]:
    """Return what JSON has of a tensor."""
    facts = as_dict(tensor)
    return {"made_by": facts.pop("maker"), "type": facts.pop("dtype"), **facts}
