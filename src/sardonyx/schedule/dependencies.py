"""The dependencies between the nodes of one graph, by number: the input of every order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sardonyx.base.records import frozen
from sardonyx.graph.graph import Graph, Node

_SHAPE_OPS: Final = frozenset((("", "Shape"), ("", "Size")))  # they read no elements
_OUTSIDE: Final = -1  # the producer of graph inputs and constants


@frozen
class Dependencies:
    """Nodes numbered by their position in `Graph.sorted_nodes`, a topological order.

    Shape and Size have no number: each runs right after the node that produces its input, so that
    it never extends the lifetime of that input. Their readers depend on that producer instead.
    """

    nodes: list[Node]
    predecessors: list[list[int]]  # by node, ascending; what its bodies capture is included
    successors: list[list[int]]  # by node, ascending
    shape_readers: dict[int, list[Node]]  # Shape and Size nodes by the producer of their input

    @staticmethod
    def of(graph: Graph) -> Dependencies:
        """The dependencies inside one graph; bodies of control flow have their own."""
        nodes: list[Node] = []
        predecessors: list[list[int]] = []
        successors: list[list[int]] = []
        shape_readers: dict[int, list[Node]] = {}
        numbers: dict[Node, int] = {}  # of a Shape or Size: that of the producer of its input
        for node in graph.sorted_nodes():
            values = node.reads() if node.op.has_bodies else node.inputs
            producers = {numbers.get(v.node, _OUTSIDE) for v in values if v and v.node is not None}
            if node.op.updates:
                producers.update(numbers.get(n, _OUTSIDE) for n in graph.predecessors(node))
            if node.op.key in _SHAPE_OPS:
                numbers[node] = producers.pop() if producers else _OUTSIDE
                shape_readers.setdefault(numbers[node], []).append(node)
                continue
            producers.discard(_OUTSIDE)
            numbers[node] = number = len(nodes)
            nodes.append(node)
            predecessors.append(sorted(producers))
            successors.append([])
            for producer in producers:
                successors[producer].append(number)
        return Dependencies(nodes, predecessors, successors, shape_readers)

    def ordered(self, order: Iterable[int]) -> tuple[Node, ...]:
        """The nodes in an order of their numbers, with Shape and Size inserted."""
        if not self.shape_readers:
            return tuple([self.nodes[i] for i in order])
        ordered = list(self.shape_readers.get(_OUTSIDE, ()))
        for i in order:
            ordered.append(self.nodes[i])
            ordered.extend(self.shape_readers.get(i, ()))
        return tuple(ordered)
