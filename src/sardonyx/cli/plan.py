"""`sardonyx plan`: what a run takes in each order of steps, and what would make it less."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from sardonyx.base.atomic_file import writing
from sardonyx.base.records import as_dict, frozen
from sardonyx.cli import targets
from sardonyx.cli.arguments import ORDERS, merged
from sardonyx.cli.inputs import Shapes, bound, settle
from sardonyx.cli.measure import start
from sardonyx.cli.plan_advice import Advice, advise
from sardonyx.cli.term import Progress, clean, say
from sardonyx.reports.memory import Tensor, Timeline
from sardonyx.reports.memory_timeline import open_sizes, timeline
from sardonyx.session import InferenceSession
from sardonyx.session.program_cache import Shared

DEFAULT: Final = ORDERS[0]
_KEY: Final = "sardonyx.execution_order"
_EFFORT: Final = "sardonyx.order_effort"
_HINTS: Final = "sardonyx.dim_hints"
_ASSUMED: Final = 1  # sizes that depend on data, unless the user gives them


@frozen
class Planned:
    """A model's timelines by order, and the sizes that they are for."""

    model: str
    shapes: Shapes
    assumed: dict[str, int]  # sizes that only a run settles
    timelines: dict[str, Timeline]
    advice: list[Advice]

    @property
    def shown(self) -> Timeline:
        """The timeline that is looked at closely: that of the default order, if it is there."""
        return next(iter(self.timelines.values()))


def command(arguments: argparse.Namespace) -> int:
    """Prints what a run of MODEL takes."""
    targets.check([arguments.html], targets.read_by(arguments))
    shown = clean(os.path.basename(arguments.model))
    with Progress(f"loading {shown}") as progress:

        def report(order: str) -> None:
            progress.what = f"planning {shown}, {order}"

        planned = plan(arguments, report)
    if arguments.html is not None:
        from sardonyx.cli.plan_page import page

        with writing(os.fspath(arguments.html)) as file:
            file.write(page(planned).encode())
    if arguments.json:
        say(json.dumps(facts(planned), indent=2))
        return 0
    from sardonyx.cli.plan_text import show

    show(planned, arguments.top)
    if arguments.html is not None:
        say(f"\nthe whole timeline is in {clean(str(arguments.html))}: open it in a browser")
    return 0


def plan(arguments: argparse.Namespace, report: Callable[[str], None]) -> Planned:
    """The timelines of all orders that were asked for."""
    orders = ORDERS if arguments.order == "all" else (arguments.order,)
    dims, shapes = merged(arguments.dims), merged(arguments.shapes)
    report(orders[0])
    entries = {_KEY: orders[0], _EFFORT: str(arguments.effort)}
    # Sessions live together, so that they share their weights.
    sessions = [start(arguments.model, entries=entries).session]
    program = sessions[0]._compiled.program
    given, assumed = _settled(sessions[0], dims, shapes)
    if program.python_steps:  # then the order is found before sizes are bound, for these
        entries[_HINTS] = _hints(bound(program.inputs, given))
        sessions = [start(arguments.model, entries=entries).session]
    timelines = {orders[0]: _timeline(sessions[0], given, assumed, orders[0])}
    for order in orders[1:]:
        report(order)
        sessions.append(start(arguments.model, entries=entries | {_KEY: order}).session)
        timelines[order] = _timeline(sessions[-1], given, assumed, order)
    report("what would shrink it")
    program = sessions[0]._compiled.program
    sizes = bound(program.inputs, given)

    def at(changed: Mapping[str, int]) -> Timeline:
        return timeline(program, {**sizes, **assumed, **changed}, orders[0])

    advice = advise(timelines, sizes, at)
    return Planned(os.fspath(arguments.model), given, assumed, timelines, advice)


def _hints(sizes: Mapping[str, int]) -> str:
    """Sizes as a config entry has them; what it cannot hold is left out: odd names, sizes of 0."""
    fit = (n for n, s in sizes.items() if s and n.strip() == n and not {",", "="} & set(n))
    return ",".join(f"{name}={sizes[name]}" for name in fit)


def _settled(
    session: InferenceSession, dims: Mapping[str, int], shapes: Shapes
) -> tuple[Shapes, dict[str, int]]:
    """Shapes of all inputs, and sizes that no input gives."""
    compiled = session._compiled
    open_names = open_sizes(compiled.program)
    given = {n: s for n, s in dims.items() if n not in open_names}
    settled = settle(compiled.model.inputs, given, shapes)
    return settled, {name: dims.get(name, _ASSUMED) for name in open_names}


def _timeline(
    session: InferenceSession, shapes: Shapes, assumed: Mapping[str, int], order: str
) -> Timeline:
    """As a run would go: where the sizes break what was assumed, the model is made anew."""

    def attempt(made: Shared) -> Timeline:
        program = made.compiled.program
        return timeline(program, {**bound(program.inputs, shapes), **assumed}, order)

    return session._with_program(attempt, lambda: shapes)


def facts(planned: Planned) -> dict[str, Any]:
    """Everything for machines."""
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


def _order(found: Timeline) -> dict[str, Any]:
    return {
        "order": found.order,
        "peak_bytes": found.peak_bytes,
        "arena_bytes": found.arena_bytes,
        "lower_bound_bytes": found.lower_bound,
        "output_bytes": found.output_bytes,
        "scratch_bytes": found.scratch_bytes,
        "thread_bytes": found.local_bytes,
        "steps": len(found.steps),
        "peak_step": found.peak_step,
        "peak_node": found.steps[found.peak_step].name if found.steps else None,
    }


def _tensor(tensor: Tensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "made_by": tensor.maker,
        "kind": tensor.kind,
        "type": tensor.dtype,
        "shape": None if tensor.shape is None else list(tensor.shape),
        "bytes": tensor.bytes,
        "made": tensor.made,
        "start": tensor.start,
        "end": tensor.end,
        "idle": tensor.idle,
        "part": tensor.part,
        "offset": tensor.offset,
    }
