"""The memory of a training step: saved activations, and live tensors over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from sardonyx.base.printable import format_shape, printable
from sardonyx.base.records import as_dict, frozen, replace
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

    @property
    def saved_bytes(self) -> int:
        """The bytes of `saved`."""
        return sum(t.bytes for t in self.saved)


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


@frozen
class StepMemory:
    """The graphs of a step, in the order of their runs."""

    graphs: tuple[GraphMemory, ...]

    @property
    def backward(self) -> list[GraphMemory]:
        """The backward graphs."""
        return [g for g in self.graphs if g.kind == "backward"]

    @property
    def argument_bytes(self) -> int:
        """Parameters, buffers and data."""
        return sum(g.argument_bytes for g in self.graphs if g.kind == "forward")

    @property
    def gradient_bytes(self) -> int:
        """The results of backward graphs."""
        return sum(g.result_bytes for g in self.backward)

    @property
    def recomputed_bytes(self) -> int:
        """The activations that backward graphs recompute."""
        return sum(g.recomputed_bytes for g in self.backward)

    @property
    def saved_bytes(self) -> int:
        """The activations that forward graphs save."""
        return sum(g.saved_bytes for g in self.backward)

    @property
    def n_recomputed(self) -> int:
        """How many steps of backward graphs recompute activations."""
        return sum(g.n_recomputed for g in self.backward)

    def peak_of(self, kind: str) -> int:
        """The highest peak of the graphs of a kind."""
        pairs = zip(self.graphs, self._peaks(), strict=True)
        return max((peak for graph, peak in pairs if graph.kind == kind), default=0)

    @property
    def saved(self) -> list[tuple[Tensor, str]]:
        """The saved activations, the largest first, and the module that returned each."""
        saved = [(t, g.modules[t.name]) for g in self.backward for t in g.saved]
        return sorted(saved, key=lambda s: -s[0].bytes)

    @property
    def peak_graph(self) -> int:
        """The index of the graph that has the peak of the step; there is at least one."""
        peaks = self._peaks()
        return peaks.index(max(peaks))

    @property
    def peak_bytes(self) -> int:
        """The most live bytes: a graph's, and what the step holds for other graphs meanwhile."""
        return max(self._peaks(), default=0)

    def _peaks(self) -> list[int]:
        pairs = zip(self.graphs, self.held_elsewhere(), strict=True)
        return [g.timeline.lower_bound + held for g, held in pairs]

    def held_elsewhere(self) -> list[int]:
        """Return what is live while each graph runs, and not in its timeline.

        That is what was saved for backward graphs that run later, and gradients returned by earlier
        ones. Backward graphs run in the reverse order of their forward graphs.
        """
        backward = self.backward
        is_paired = 2 * len(backward) == len(self.graphs)
        saved = [g.saved_bytes if is_paired else 0 for g in reversed(backward)]
        held: list[int] = []
        n_waiting, gradients = 0, 0  # forward graphs that ran and whose backward graph did not
        for graph in self.graphs:
            is_backward = graph.kind == "backward"
            n_waiting -= is_backward
            held.append(gradients + sum(saved[: max(0, n_waiting)]))
            n_waiting += not is_backward
            gradients += graph.result_bytes if is_backward else 0
        return held


def _counted(tensor: Tensor, is_consumed: bool) -> Tensor:
    """Return a tensor whose bytes count while it is live, if they belong to the step."""
    if tensor.kind != "output" and not is_consumed:
        return tensor
    return Tensor(**{**as_dict(tensor), "kind": "value", "offset": OWN, "part": -1})


def memory_text(step: StepMemory) -> str:
    """Return a summary: sums over all graphs, then the peak of each."""
    if not step.graphs:
        return "no step has run, or its graphs are split by calls that run in torch"
    return "\n".join([*_sums(step), *(line for g in step.graphs for line in _peak(g))])


def _sums(step: StepMemory) -> Iterator[str]:
    yield _line("arguments", step.argument_bytes, "parameters, buffers and data")
    yield _line("gradients", step.gradient_bytes, "what backward graphs return")
    yield _line("saved", step.saved_bytes, f"{len(step.saved)} activations")
    for tensor, module in step.saved[:_LISTED]:
        yield f"    {_described(tensor)}{f'  {printable(module)}' if module else ''}"
    total = sum(len(g.timeline.steps) for g in step.backward)
    yield _line(
        "recomputed",
        step.recomputed_bytes,
        f"{step.n_recomputed} of {total} steps of backward graphs",
    )


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


def memory_page(steps: Mapping[str, StepMemory], shapes: Mapping[str, Sequence[int]]) -> str:
    """Return a page with the timeline of each graph; the key of a step is added to their names."""
    named = {name: _named_timelines(step, name) for name, step in steps.items()}
    first, timelines = next(zip(steps.values(), named.values(), strict=True))
    advice = [
        f"{t.name}, {format_bytes(t.bytes)}, is saved for the backward pass by {module or 'a call'}"
        for t, module in first.saved[:_LISTED]
    ]
    content = PageContent(
        title="Memory of a training step",
        shapes=shapes,
        choice="Graphs",
        default=timelines[first.peak_graph].order if timelines else "",
        timelines=[timeline for each in named.values() for timeline in each],
        advice=advice,
    )
    return page(content)


def _named_timelines(step: StepMemory, name: str) -> list[Timeline]:
    """Return the timelines of a step's graphs, numbered where several are of one kind."""
    kinds = [g.kind for g in step.graphs]
    timelines = []
    for i, graph in enumerate(step.graphs):
        number = f" {1 + kinds[:i].count(graph.kind)}" if kinds.count(graph.kind) > 1 else ""
        order = f"{graph.kind}{number}{', ' if name else ''}{name}"
        timelines.append(replace(graph.timeline, order=order))
    return timelines
