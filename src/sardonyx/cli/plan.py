"""`sardonyx plan`: the memory of a run in each execution order, and how to lower it."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

import sardonyx._native as native
from sardonyx.base.atomic_file import writing
from sardonyx.base.records import as_dict, frozen
from sardonyx.base.units import format_bytes
from sardonyx.cli.arguments import ORDERS, merged
from sardonyx.cli.console import (
    activity,
    count,
    format_shape,
    heading,
    note,
    printable,
    say,
    short_name,
    table,
)
from sardonyx.cli.inputs import Shapes, check_outputs, input_files, settle
from sardonyx.cli.measure import start
from sardonyx.cli.plan_advice import Advice, advise
from sardonyx.ort.config_keys import Keys
from sardonyx.reports.timeline import Tensor, Timeline
from sardonyx.reports.timeline_builder import open_sizes, timeline
from sardonyx.session import InferenceSession
from sardonyx.session.program_cache import SharedProgram
from sardonyx.session.program_variants import sizes_of

DEFAULT: Final = ORDERS[0]
_ASSUMED: Final = 1  # size of data-dependent dims that --dims does not name


@frozen
class Planned:
    """A model's timelines by execution order, and the sizes that they hold for."""

    model: str
    shapes: Shapes
    assumed: dict[str, int]  # data-dependent sizes
    timelines: dict[str, Timeline]
    advice: list[Advice]

    @property
    def shown(self) -> Timeline:
        """Return the timeline that is shown in detail, that of the first order."""
        return next(iter(self.timelines.values()))


def command(arguments: argparse.Namespace) -> int:
    """Print the planned memory of a run of MODEL."""
    check_outputs([arguments.html], input_files(arguments))
    name = printable(os.path.basename(arguments.model))
    with activity(f"loading {name}") as line:
        planned = plan(arguments, lambda what: line.describe(f"planning {name}, {what}"))
    if arguments.html is not None:
        with writing(os.fspath(arguments.html)) as file:
            file.write(_page(planned).encode())
    if arguments.json:
        print(json.dumps(facts(planned), indent=2))
        return 0
    _show(planned, arguments.top)
    if arguments.html is not None:
        say(f"\nthe whole timeline is in {printable(str(arguments.html))}: open it in a browser")
    return 0


def plan(arguments: argparse.Namespace, report: Callable[[str], None]) -> Planned:
    """Return the timelines of the requested orders; `report` is told what is planned."""
    orders = ORDERS if arguments.order == "all" else (arguments.order,)
    dims, shapes = merged(arguments.dims), merged(arguments.shapes)
    report(orders[0])
    entries = {Keys.EXECUTION_ORDER: orders[0], Keys.ORDER_EFFORT: str(arguments.effort)}
    # All sessions stay alive, so that they share their weights.
    sessions = [start(arguments.model, entries=entries).session]
    check_outputs([arguments.html], sessions[0]._source.files.states())
    program = sessions[0]._compiled.program
    settled, assumed = _settled(sessions[0], dims, shapes)
    if program.python_steps:  # then the order is searched at load time, for sizes given as hints
        entries[Keys.DIM_HINTS] = _hints(sizes_of(program.inputs, settled))
        sessions = [start(arguments.model, entries=entries).session]
    timelines = {orders[0]: _timeline(sessions[0], settled, assumed, orders[0])}
    for order in orders[1:]:
        report(order)
        entries[Keys.EXECUTION_ORDER] = order
        sessions.append(start(arguments.model, entries=entries).session)
        timelines[order] = _timeline(sessions[-1], settled, assumed, order)
    report("advice")
    program = sessions[0]._compiled.program
    sizes = sizes_of(program.inputs, settled)

    def at(changed: Mapping[str, int]) -> Timeline:
        return timeline(program, {**sizes, **assumed, **changed}, orders[0])

    advice = advise(timelines, sizes, at)
    return Planned(os.fspath(arguments.model), settled, assumed, timelines, advice)


def _hints(sizes: Mapping[str, int]) -> str:
    """Return sizes as a config entry, without names and sizes that its syntax cannot express."""
    valid = (n for n, s in sizes.items() if s and n.strip() == n and not {",", "="} & set(n))
    return ",".join(f"{name}={sizes[name]}" for name in valid)


def _settled(
    session: InferenceSession, dims: Mapping[str, int], shapes: Shapes
) -> tuple[Shapes, dict[str, int]]:
    """Return the shapes of all inputs, and the sizes that do not follow from them."""
    compiled = session._compiled
    open_names = open_sizes(compiled.program)
    of_inputs = {n: s for n, s in dims.items() if n not in open_names}
    settled = settle(compiled.model.inputs, of_inputs, shapes)
    return settled, {name: dims.get(name, _ASSUMED) for name in open_names}


def _timeline(
    session: InferenceSession, shapes: Shapes, assumed: Mapping[str, int], order: str
) -> Timeline:
    """Return the timeline of a run, recompiling the model if the sizes violate assumptions."""

    def attempt(shared: SharedProgram) -> Timeline:
        program = shared.compiled.program
        return timeline(program, {**sizes_of(program.inputs, shapes), **assumed}, order)

    return session._with_program(attempt, lambda: shapes)


def _page(planned: Planned) -> str:
    from sardonyx.reports.plan_page import PageContent, page

    content = PageContent(
        title=f"Memory of {os.path.basename(planned.model)}",
        shapes=planned.shapes,
        choice="Orders",
        default=DEFAULT,
        timelines=planned.timelines.values(),
        advice=[a.text for a in planned.advice],
    )
    return page(content)


def facts(planned: Planned) -> dict[str, Any]:
    """Return all figures for JSON."""
    shown = planned.shown
    return {
        "model": planned.model,
        "shapes": {name: list(shape) for name, shape in planned.shapes.items()},
        "assumed_sizes": planned.assumed,
        "default_order": DEFAULT,
        "orders": [_order(t) for t in planned.timelines.values()],
        "peak": {
            "order": shown.order,
            "step": shown.peak_step,
            "tensors": [_tensor(t) for t in shown.alive(shown.peak_step)],
        },
        "advice": [as_dict(a) for a in planned.advice],
        "timeline": {
            "order": shown.order,
            "steps": [as_dict(s) for s in shown.steps],
            "tensors": [_tensor(t) for t in shown.tensors],
            "needs": list(shown.needs),
        },
    }


def _order(order: Timeline) -> dict[str, Any]:
    return {
        "order": order.order,
        "peak_bytes": order.peak_bytes,
        "arena_bytes": order.arena_bytes,
        "lower_bound_bytes": order.lower_bound,
        "output_bytes": order.output_bytes,
        "scratch_bytes": order.scratch_bytes,
        "thread_bytes": order.local_bytes,
        "steps": len(order.steps),
        "peak_step": order.peak_step,
        "peak_node": order.steps[order.peak_step].name if order.steps else None,
    }


def _tensor(tensor: Tensor) -> dict[str, Any]:
    facts = as_dict(tensor)
    return {"made_by": facts.pop("maker"), "type": facts.pop("dtype"), **facts}


def _show(planned: Planned, top: int) -> None:
    """Print the execution orders, the live tensors at the peak, and advice."""
    sizes = ", ".join(f"{printable(n)} {format_shape(s)}" for n, s in planned.shapes.items())
    heading(printable(planned.model), sizes)
    if planned.assumed:
        assumed = ", ".join(f"{printable(n)}={s}" for n, s in planned.assumed.items())
        note(f"sizes that depend on data, assumed: {assumed} (--dims sets others)")
    say()
    _show_orders(planned)
    _show_peak(planned.shown, top)
    _show_advice(planned)


def _show_orders(planned: Planned) -> None:
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
    for i, order in enumerate(timelines):
        figures = [format_bytes(column[i]) for column in columns.values()]
        rows.append([order.order, *figures, str(len(order.steps)), _remark(order, best)])
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


def _remark(order: Timeline, best: int) -> str:
    remarks = ["default"] if order.order == DEFAULT else []
    if order.peak_bytes > best > 0:
        remarks.append(f"+{order.peak_bytes / best - 1:.1%}")
    return ", ".join(remarks)


def _show_peak(shown: Timeline, top: int) -> None:
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


def _show_advice(planned: Planned) -> None:
    heading("what would shrink it", "" if planned.advice else "nothing stands out")
    rows = [[format_bytes(a.saves_bytes) if a.saves_bytes else "", a.text] for a in planned.advice]
    table(rows, right=(0,))
