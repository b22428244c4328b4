"""`sardonyx plan SCRIPT.py:FUNCTION`: the memory of a training step of a PyTorch module."""

from __future__ import annotations

import argparse
import os
import pathlib
import re
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sardonyx.base.records import as_dict, frozen
from sardonyx.base.units import format_bytes
from sardonyx.cli.arguments import UsageError
from sardonyx.cli.console import (
    activity,
    format_shape,
    heading,
    note,
    printable,
    say,
    short_name,
    table,
)
from sardonyx.cli.inputs import check_outputs
from sardonyx.cli.plan_advice import Advice
from sardonyx.cli.plan_tables import show_advice, show_peak, tensor_facts, write_and_print

if TYPE_CHECKING:
    from sardonyx.dynamo.step_memory import StepMemory

_BUDGETS: Final = (None, 0.5, 0.25)
_SPEC: Final = re.compile(r"(?P<script>.+\.py):(?P<function>\w+)")
_MODEL_OPTIONS: Final = {"dims": [], "shapes": [], "order": "all", "effort": 0}  # with defaults
_HOLDERS: Final = 3  # saved activations that advice names


@frozen
class PlannedStep:
    """A training step under one or several memory budgets, the first one shown in detail."""

    spec: str
    shapes: dict[str, tuple[int, ...]]
    steps: dict[float | None, StepMemory]

    @property
    def shown(self) -> StepMemory:
        """Return the step that is shown in detail."""
        return next(iter(self.steps.values()))


def is_script(model: str) -> bool:
    """Whether MODEL names a Python file, not a model."""
    return model.endswith(".py") or (_SPEC.fullmatch(model) is not None)


def command(arguments: argparse.Namespace) -> int:
    """Print the memory of a training step of the module that SCRIPT.py:FUNCTION returns."""
    found = _SPEC.fullmatch(arguments.model)
    if found is None:
        raise UsageError(
            f"{arguments.model} is a Python file: name its function that returns a module and "
            f"inputs, as in {arguments.model}:example"
        )
    script = found["script"]
    _check_options(arguments)
    if not os.path.isfile(script):
        raise UsageError(f"there is no file {script}")
    check_outputs([arguments.html], [pathlib.Path(script)])
    with activity(f"running {printable(os.path.basename(script))}") as line:
        planned = plan(script, found["function"], arguments.memory_budget, line.describe)
    write_and_print(
        arguments,
        partial(_page, planned),
        partial(facts, planned),
        partial(_show, planned, arguments.top),
    )
    return 0


def _check_options(arguments: argparse.Namespace) -> None:
    """Reject options of models."""
    for name, default in _MODEL_OPTIONS.items():
        if getattr(arguments, name) != default:
            raise UsageError(
                f"--{name} is for ONNX models: sizes of a training step are those of the inputs "
                "that the function returns"
            )


def plan(script: str, function: str, budget: float | None, report: Any) -> PlannedStep:
    """Run a step with each memory budget; `report` is called with each."""
    try:
        import torch  # noqa: F401, TID251
    except ImportError as error:
        raise UsageError(
            "a training step of a PyTorch module needs torch: pip install torch"
        ) from error
    from sardonyx.train.planned_step import load_example, step_memory

    example = load_example(script, function)
    steps = {}
    for each in _BUDGETS if budget is None else (budget,):
        report(f"planning {function}, {_described(each)}")
        steps[each] = step_memory(example, each)
    return PlannedStep(f"{script}:{function}", example.shapes, steps)


def _described(budget: float | None) -> str:
    return "no budget" if budget is None else f"budget {budget:g}"


def _page(planned: PlannedStep) -> str:
    from sardonyx.dynamo.step_memory import memory_page

    steps = {"" if b is None else _described(b): step for b, step in planned.steps.items()}
    return memory_page(steps, planned.shapes)


def facts(planned: PlannedStep) -> dict[str, Any]:
    """Return all figures for JSON."""
    graph = planned.shown.graphs[planned.shown.peak_graph]
    shown = graph.timeline
    return {
        "module": planned.spec,
        "shapes": {name: list(shape) for name, shape in planned.shapes.items()},
        "budgets": [_budget(b, step) for b, step in planned.steps.items()],
        "peak": {
            "graph": graph.kind,
            "step": shown.peak_step,
            "tensors": [tensor_facts(t) for t in shown.alive(shown.peak_step)],
        },
        "saved": [{"module": module, **tensor_facts(t)} for t, module in planned.shown.saved],
        "advice": [as_dict(a) for a in _advice(planned.steps)],
    }


def _budget(budget: float | None, step: StepMemory) -> dict[str, Any]:
    return {
        "memory_budget": budget,
        "peak_bytes": step.peak_bytes,
        "saved_bytes": step.saved_bytes,
        "recomputed_bytes": step.recomputed_bytes,
        "gradient_bytes": step.gradient_bytes,
        "argument_bytes": step.argument_bytes,
        "graphs": [
            {
                "kind": graph.kind,
                "peak_bytes": graph.timeline.lower_bound,
                "scratch_bytes": graph.timeline.scratch_bytes,
                "thread_bytes": graph.timeline.local_bytes,
                "steps": len(graph.timeline.steps),
                "recomputed_steps": graph.n_recomputed,
                "peak_step": graph.timeline.peak_step,
            }
            for graph in step.graphs
        ],
    }


def _show(planned: PlannedStep, top: int) -> None:
    """Print the budgets, the live tensors at the peak, saved activations and advice."""
    sizes = ", ".join(f"{printable(n)} {format_shape(s)}" for n, s in planned.shapes.items())
    heading(printable(planned.spec), sizes)
    say()
    _show_budgets(planned.steps)
    shown = planned.shown
    graph = shown.graphs[shown.peak_graph]
    budget = next(iter(planned.steps))
    show_peak(graph.timeline, top, f"{graph.kind} graph, {_described(budget)}")
    _show_saved(shown, top)
    show_advice(_advice(planned.steps))


def _show_budgets(steps: Mapping[float | None, StepMemory]) -> None:
    heading("memory of a training step by budget", "parameters, buffers and data add to the peak")
    rows = []
    for budget, step in steps.items():
        columns = (
            step.peak_bytes,
            *(step.peak_of(kind) for kind in ("forward", "backward")),
            step.saved_bytes,
            step.gradient_bytes,
            step.recomputed_bytes,
        )
        name = "none" if budget is None else f"{budget:g}"
        n_steps = sum(len(g.timeline.steps) for g in step.graphs)
        rows.append([name, *map(format_bytes, columns), str(n_steps)])
    titles = ("budget", "peak", "forward", "backward", "saved", "gradients", "recomputed", "steps")
    table(rows, titles, right=range(1, 8), styles={0: "cyan"})
    arguments = next(iter(steps.values())).argument_bytes
    note(f"parameters, buffers and data have {format_bytes(arguments)}; optimizers add their state")
    say()


def _show_saved(step: StepMemory, top: int) -> None:
    heading("saved for the backward pass", f"{format_bytes(step.saved_bytes)} in {len(step.saved)}")
    rows = []
    for tensor, module in step.saved[:top]:
        shape = format_shape(tensor.shape).replace(" ", "")
        name = printable(tensor.name)
        rows.append([format_bytes(tensor.bytes), name, f"{tensor.dtype}{shape}", printable(module)])
    titles = ("bytes", "tensor", "type", "module")
    table(rows, titles, right=(0,), styles={1: "cyan"}, names=(1, 3))
    if rest := step.saved[top:]:
        total = format_bytes(sum(t.bytes for t, _ in rest))
        note(f"{total} in {len(rest)} more: --top lists them")
    say()


def _advice(steps: Mapping[float | None, StepMemory]) -> list[Advice]:
    """Return what other budgets save, and the activations that hold most of the peak."""
    shown, *_ = steps.values()
    advice = []
    for budget, step in steps.items():
        saved = shown.peak_bytes - step.peak_bytes
        if saved > 0:
            n_more = step.n_recomputed - shown.n_recomputed
            text = f"wrap(module, memory_budget={budget:g}) recomputes {n_more} more steps"
            advice.append(Advice("budget", text, saved))
    advice.sort(key=lambda a: -a.saves_bytes)
    for tensor, module in shown.saved[:_HOLDERS]:
        by = f" of {short_name(module)}" if module else ""
        size = format_bytes(tensor.bytes)
        text = f"{short_name(tensor.name)}{by}, {size}, is saved for the backward pass"
        advice.append(Advice("saved", text, tensor.bytes))
    if shown.gradient_bytes > shown.peak_bytes // 2:
        size = format_bytes(shown.gradient_bytes)
        advice.append(Advice("gradients", f"gradients are {size}, whatever the budget", 0))
    return advice
