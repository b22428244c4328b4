"""`sardonyx plan`: the memory of a run in each execution order, and how to lower it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import sardonyx._native as native
from sardonyx.base.records import as_dict, frozen
from sardonyx.base.units import format_bytes
from sardonyx.cli import plan_step
from sardonyx.cli.arguments import ORDERS, UsageError, merged
from sardonyx.cli.console import (
    activity,
    count,
    format_shape,
    heading,
    note,
    printable,
    say,
    table,
)
from sardonyx.cli.inputs import Shapes, check_outputs, input_files, input_shapes
from sardonyx.cli.measure import start
from sardonyx.cli.plan_advice import Advice, advise
from sardonyx.cli.plan_tables import show_advice, show_peak, tensor_facts, write_and_print
from sardonyx.ort.config_keys import Keys
from sardonyx.reports.timeline import Timeline
from sardonyx.reports.timeline_builder import open_sizes, timeline
from sardonyx.session import InferenceSession
from sardonyx.session.program_cache import SharedProgram
from sardonyx.session.program_variants import sizes_of

DEFAULT: Final = ORDERS[0]
_ASSUMED: Final = 1  # size of data-dependent dims that --dims does not name


@frozen
class PlannedModel:
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
    """Print the planned memory of a run of MODEL, or of a training step of a PyTorch module."""
    if plan_step.is_script(arguments.model):
        return plan_step.command(arguments)
    if arguments.memory_budget is not None:
        raise UsageError("--memory-budget is for a training step: name SCRIPT.py:FUNCTION")
    check_outputs([arguments.html], input_files(arguments))
    name = printable(os.path.basename(arguments.model))
    with activity(f"loading {name}") as line:
        planned = plan(arguments, lambda what: line.describe(f"planning {name}, {what}"))
    write_and_print(
        arguments,
        partial(_page, planned),
        partial(facts, planned),
        partial(_show, planned, arguments.top),
    )
    return 0


def plan(arguments: argparse.Namespace, report: Callable[[str], None]) -> PlannedModel:
    """Return the timelines of the requested orders; `report` is called with what is planned."""
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
    return PlannedModel(os.fspath(arguments.model), settled, assumed, timelines, advice)


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
    settled = input_shapes(compiled.model.inputs, of_inputs, shapes)
    return settled, {name: dims.get(name, _ASSUMED) for name in open_names}


def _timeline(
    session: InferenceSession, shapes: Shapes, assumed: Mapping[str, int], order: str
) -> Timeline:
    """Return the timeline of a run, recompiling the model if the sizes violate assumptions."""

    def attempt(shared: SharedProgram) -> Timeline:
        program = shared.compiled.program
        return timeline(program, {**sizes_of(program.inputs, shapes), **assumed}, order)

    return session._with_program(attempt, lambda: shapes)


def _page(planned: PlannedModel) -> str:
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


def facts(planned: PlannedModel) -> dict[str, Any]:
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
            "tensors": [tensor_facts(t) for t in shown.alive(shown.peak_step)],
        },
        "advice": [as_dict(a) for a in planned.advice],
        "timeline": {
            "order": shown.order,
            "steps": [as_dict(s) for s in shown.steps],
            "tensors": [tensor_facts(t) for t in shown.tensors],
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


def _show(planned: PlannedModel, top: int) -> None:
    """Print the execution orders, the live tensors at the peak, and advice."""
    sizes = ", ".join(f"{printable(n)} {format_shape(s)}" for n, s in planned.shapes.items())
    heading(printable(planned.model), sizes)
    if planned.assumed:
        assumed = ", ".join(f"{printable(n)}={s}" for n, s in planned.assumed.items())
        note(f"sizes that depend on data, assumed: {assumed} (--dims sets others)")
    say()
    _show_orders(planned)
    show_peak(planned.shown, top, f"by {planned.shown.order}")
    show_advice(planned.advice)


def _show_orders(planned: PlannedModel) -> None:
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
