"""The memory of a training step: what is saved for the backward graph, and what is live when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from sardonyx.base.printable import format_shape, printable
from sardonyx.base.records import as_dict, frozen
from sardonyx.base.units import format_bytes
from sardonyx.dynamo.lower import is_primal, is_tangent
from sardonyx.reports.plan_page import PageContent, page
from sardonyx.reports.timeline import OWN, Tensor, Timeline, new_timeline
from sardonyx.reports.timeline_builder import timeline_and_nodes
from sardonyx.session.program_variants import sizes_of

if TYPE_CHECKING:
    from sardonyx.dynamo.executor import Executor

_LISTED: Final = 8  # tensors in the text


@frozen
class GraphMemory:
    """A forward or backward graph of a step.

    Its timeline counts a result from the step that writes it on, and a saved activation that a
    backward graph reads up to the last step that reads it.
    """

    kind: str
    timeline: Timeline
    saved: tuple[Tensor, ...]  # activations that a backward graph reads, the largest first
    modules: dict[str, str]  # of the saved activations
    result_bytes: int  # of a backward graph: gradients
    argument_bytes: int  # parameters, buffers and data
    n_recomputed: int  # steps that recompute activations
    recomputed_bytes: int  # what they return


def graph_memory(kind: str, executor: Executor) -> GraphMemory:
    """Return the memory of a graph, for the sizes of its latest run."""
    program = executor.session._compiled.program
    planned, nodes = timeline_and_nodes(program, sizes_of(program.inputs, executor.shapes), kind)
    is_backward = kind == "backward"
    inputs = [t for t in planned.tensors if t.kind == "input"]
    arguments = [t for t in inputs if is_primal(t.name)]
    consumed = [t for t in inputs if is_backward and not is_primal(t.name)]
    saved = [t for t in consumed if not is_tangent(t.name)]
    recomputed = {i for i, node in enumerate(nodes) if is_backward and node.priority > 0}
    recomputed_bytes = (
        t.bytes for t in planned.tensors if t.kind in ("value", "part") and t.made in recomputed
    )
    counted = [_counted(t, t in consumed) for t in planned.tensors]
    arenas = list(planned.arenas)
    return GraphMemory(
        kind=kind,
        timeline=new_timeline(kind, list(planned.steps), counted, arenas, planned.local_bytes),
        saved=tuple(sorted(saved, key=lambda t: (-t.bytes, t.name))),
        modules={t.name: executor.lowered.modules.get(t.name, "") for t in saved},
        result_bytes=planned.output_bytes,
        argument_bytes=sum(t.bytes for t in arguments),
        n_recomputed=len(recomputed),
        recomputed_bytes=sum(recomputed_bytes),
    )


def _counted(tensor: Tensor, is_consumed: bool) -> Tensor:
    """Return a tensor whose bytes count while it is live, if they belong to the step."""
    if tensor.kind != "output" and not is_consumed:
        return tensor
    return Tensor(**{**as_dict(tensor), "kind": "value", "offset": OWN, "part": -1})


def memory_text(graphs: Sequence[GraphMemory]) -> str:
    """Return a summary: sums over all graphs, then the peak of each."""
    if not graphs:
        return "no step has run, or its graphs are split by calls that run in torch"
    return "\n".join([*_sums(graphs), *(line for g in graphs for line in _peak(g))])


def _sums(graphs: Sequence[GraphMemory]) -> Iterator[str]:
    backward = [g for g in graphs if g.kind == "backward"]
    saved = [(t, g.modules[t.name]) for g in backward for t in g.saved]
    forward_arguments = sum(g.argument_bytes for g in graphs if g.kind == "forward")
    yield _line("arguments", forward_arguments, "parameters, buffers and data")
    yield _line("gradients", sum(g.result_bytes for g in backward), "what backward graphs return")
    yield _line("saved", sum(t.bytes for t, _ in saved), f"{len(saved)} activations")
    for tensor, module in sorted(saved, key=lambda s: -s[0].bytes)[:_LISTED]:
        yield f"    {_described(tensor)}{f'  {printable(module)}' if module else ''}"
    n_steps = sum(g.n_recomputed for g in backward)
    total = sum(len(g.timeline.steps) for g in backward)
    recomputed = sum(g.recomputed_bytes for g in backward)
    yield _line("recomputed", recomputed, f"{n_steps} of {total} steps of backward graphs")


def _peak(graph: GraphMemory) -> Iterator[str]:
    shown = graph.timeline
    if not shown.steps:
        return
    step = shown.steps[shown.peak_step]
    where = f"in step {shown.peak_step + 1} of {len(shown.steps)}, {printable(step.name)}"
    yield _line(f"{graph.kind} peak", shown.lower_bound, where)
    for tensor in shown.alive(shown.peak_step)[:_LISTED]:
        yield f"    {_described(tensor)}"


def _line(name: str, n_bytes: int, remark: str) -> str:
    return f"{name:14} {format_bytes(n_bytes):>8}  {remark}"


def _described(tensor: Tensor) -> str:
    shape = format_shape(tensor.shape).replace(" ", "")
    kind = "scratch" if tensor.kind == "scratch" else f"{tensor.dtype}{shape}"
    name = tensor.maker if tensor.name.startswith("result.") else tensor.name
    return f"{format_bytes(tensor.bytes):>8}  {printable(name)}  {kind}"


def memory_page(graphs: Sequence[GraphMemory]) -> str:
    """Return a page with the timeline of each graph."""
    largest = max(graphs, key=lambda g: g.timeline.lower_bound, default=None)
    advice = [
        f"{t.name}, {format_bytes(t.bytes)}, is saved for the backward pass by {module or 'a call'}"
        for g in graphs
        for t in g.saved[:_LISTED]
        for module in (g.modules[t.name],)
    ]
    return page(
        PageContent(
            title="Memory of a training step",
            shapes={},
            choice="Graphs",
            default="" if largest is None else largest.kind,
            timelines=[g.timeline for g in graphs],
            advice=advice,
        )
    )
