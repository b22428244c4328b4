"""Schedule: an order of steps, chosen from the graph alone."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.graph.graph import Graph, Node
from sardonyx.place import Placement


@dataclass(frozen=True, slots=True)
class Schedule:
    """The nodes of one graph in the order they run. Bodies have schedules of their own."""

    graph: Graph
    nodes: tuple[Node, ...]


def schedule(placement: Placement) -> Schedule:
    """The default order."""
    return order(placement.graph)


def order(graph: Graph) -> Schedule:
    """Depth-first, back from the outputs, so that a value is made shortly before it is read."""
    done: set[Node] = set()
    nodes: list[Node] = []
    roots = [v.node for v in graph.outputs if v.node is not None and v.node.graph is graph]
    loose = [n for n in graph.nodes if not any(v.is_used for v in n.outputs)]
    for root in (*roots, *loose):
        _visit(root, graph, done, nodes)
    return Schedule(graph, tuple(nodes))


def _visit(root: Node, graph: Graph, done: set[Node], nodes: list[Node]) -> None:
    stack = [(root, False)]
    while stack:
        node, is_ready = stack.pop()
        if node in done:
            continue
        if is_ready:
            done.add(node)
            nodes.append(node)
            continue
        stack.append((node, True))
        makers = [v.node for v in node.reads() if v.node is not None and v.node.graph is graph]
        stack.extend((m, False) for m in reversed(makers) if m not in done)
