"""The order of the least peak, where steps run in Python and sizes must be guessed."""

from __future__ import annotations

from typing import Final

from sardonyx._native import least_peak, peak_of
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.schedule.links import Links
from sardonyx.schedule.orders import breadth_first, depth_first, forward_first
from sardonyx.schedule.sizes import Sizes

# Ops whose output is their first input's bytes in another shape.
_VIEWS: Final = frozenset(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"))

Task = tuple[list[int], list[int], list[tuple[int, int]], int]


def viewed(node: Node) -> Value | None:
    """The value whose bytes a node only gives another shape."""
    is_view = node.op.name in _VIEWS and node.op.domain == ""
    return node.inputs[0] if is_view else None


def lowest(graph: Graph, links: Links, sizes: Sizes, effort: int) -> list[int]:
    """The best of all orders by their peaks; reverse depth-first unless another is better."""
    given = depth_first(links)
    if _is_chain(links):
        return given
    bytes_, tasks = tasks_of(graph, links, sizes)
    floor = max([sum([bytes_[b] for b in touched]) for _, touched, _, _ in tasks], default=0)
    best, least = given, peak_of(bytes_, tasks, given)
    for order in (forward_first, breadth_first):
        if least == floor:
            return best
        found = order(links)
        peak = peak_of(bytes_, tasks, found)
        if peak < least:
            best, least = found, peak
    found = least_peak(bytes_, tasks, best, effort)
    return found if peak_of(bytes_, tasks, found) < least else best


def _is_chain(links: Links) -> bool:
    return all(len(makers) < 2 for makers in links.before) and all(
        len(readers) < 2 for readers in links.after
    )


def tasks_of(graph: Graph, links: Links, sizes: Sizes) -> tuple[list[int], list[Task]]:
    """The nodes as the search sees them: bytes of buffers, and who touches which.

    What the graph is given and what it returns are others' bytes.
    """
    known = {v: sizes.bytes_of(v.fact) or 0 for v in graph.inputs}
    returned = set(graph.outputs)
    buffers: dict[Value | None, int] = {}
    bytes_: list[int] = []
    tasks: list[Task] = []
    for node, before in zip(links.nodes, links.before, strict=True):
        read = node.reads() if node.op.has_bodies else node.inputs
        touched = {buffers[v] for v in read if v in buffers}
        source = viewed(node)
        if source in buffers:
            buffers[node.outputs[0]] = buffers[source]
        for value, size in sizes.made(node, known) if source is None else ():
            known[value] = size
            if size and value not in returned:
                touched.add(len(bytes_))
                buffers[value] = len(bytes_)
                bytes_.append(size)
        tasks.append((before, list(touched), [], 0))
    return bytes_, tasks
