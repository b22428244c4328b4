"""The execution order of least peak memory for graphs that run in Python, at estimated sizes.

The search itself is native (native/exec/execution_order.h), and shared with native segments, which
call it with exact sizes once these are known.
"""

from __future__ import annotations

from typing import Final

from sardonyx._native import least_peak, order_peak
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.schedule.dependencies import Dependencies
from sardonyx.schedule.orders import memory_efficient, priority_based, reverse_depth_first
from sardonyx.schedule.size_estimates import SizeEstimates

# Ops whose output aliases their first input.
_VIEWS: Final = frozenset(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"))

# Predecessors, buffers that are touched, pairs of buffers that may share bytes, scratch bytes.
Task = tuple[list[int], list[int], list[tuple[int, int]], int]


def aliased_input(node: Node) -> Value | None:
    """The input that the output of a node is a view of; None if it has bytes of its own."""
    is_view = node.op.name in _VIEWS and node.op.domain == ""
    return node.inputs[0] if is_view else None


def least_peak_order(
    graph: Graph, deps: Dependencies, sizes: SizeEstimates, effort: int
) -> list[int]:
    """The order of the lowest estimated peak; ties go to reverse depth-first."""
    default = reverse_depth_first(deps)
    if _is_chain(deps):
        return default
    bytes_, tasks = search_tasks(graph, deps, sizes)
    # No order is below the largest working set of one task: there the search can stop.
    floor = max([sum([bytes_[b] for b in touched]) for _, touched, _, _ in tasks], default=0)
    best, least = default, order_peak(bytes_, tasks, default)
    for order in (memory_efficient, priority_based):
        if least == floor:
            return best
        found = order(deps)
        peak = order_peak(bytes_, tasks, found)
        if peak < least:
            best, least = found, peak
    found = least_peak(bytes_, tasks, best, effort)
    return found if order_peak(bytes_, tasks, found) < least else best


def _is_chain(deps: Dependencies) -> bool:
    return all(len(producers) < 2 for producers in deps.predecessors) and all(
        len(readers) < 2 for readers in deps.successors
    )


def search_tasks(
    graph: Graph, deps: Dependencies, sizes: SizeEstimates
) -> tuple[list[int], list[Task]]:
    """The input of the search: bytes of buffers, and the buffers that each node touches.

    Inputs and outputs of the graph are not counted: the caller owns them in any order.
    """
    known = {v: sizes.bytes_of(v.fact) or 0 for v in graph.inputs}
    returned = set(graph.outputs)
    buffers: dict[Value | None, int] = {}
    bytes_: list[int] = []
    tasks: list[Task] = []
    for node, before in zip(deps.nodes, deps.predecessors, strict=True):
        read = node.reads() if node.op.has_bodies else node.inputs
        touched = {buffers[v] for v in read if v in buffers}
        source = aliased_input(node)
        if source in buffers:
            buffers[node.outputs[0]] = buffers[source]
        for value, size in sizes.outputs_of(node, known) if source is None else ():
            known[value] = size
            if size and value not in returned:
                touched.add(len(bytes_))
                buffers[value] = len(bytes_)
                bytes_.append(size)
        tasks.append((before, list(touched), [], 0))
    return bytes_, tasks
