"""The nodes of one graph by number, and who waits for whom: what orders are made of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sardonyx.base.records import frozen
from sardonyx.graph.graph import Graph, Node

_LOOKS: Final = frozenset((("", "Shape"), ("", "Size")))  # ops that read no elements
_GIVEN: Final = -1  # what no node of the graph makes


@frozen
class Links:
    """Nodes by their position in `Graph.sorted_nodes`; the numbers in a row are ascending.

    Shape and Size have no number: they run right after what they look at, so that nothing is kept
    for them. Whoever reads them waits for that.
    """

    nodes: list[Node]
    before: list[list[int]]  # by node: those that make what it reads, or what its bodies read
    after: list[list[int]]
    looks: dict[int, list[Node]]  # Shape and Size by the node that they look at, in order

    @staticmethod
    def of(graph: Graph) -> Links:
        """The links of a graph; its bodies have links of their own."""
        nodes: list[Node] = []
        before: list[list[int]] = []
        after: list[list[int]] = []
        looks: dict[int, list[Node]] = {}
        place: dict[Node, int] = {}
        for node in graph.sorted_nodes():
            values = node.reads() if node.op.has_bodies else node.inputs
            makers = {place.get(v.node, _GIVEN) for v in values if v and v.node is not None}
            if node.op.key in _LOOKS:
                place[node] = makers.pop() if makers else _GIVEN
                looks.setdefault(place[node], []).append(node)
                continue
            makers.discard(_GIVEN)
            place[node] = number = len(nodes)
            nodes.append(node)
            before.append(sorted(makers))
            after.append([])
            for maker in makers:
                after[maker].append(number)
        return Links(nodes, before, after, looks)

    def ordered(self, order: Iterable[int]) -> tuple[Node, ...]:
        """The nodes in an order of their numbers, with Shape and Size among them."""
        if not self.looks:
            return tuple([self.nodes[i] for i in order])
        found = list(self.looks.get(_GIVEN, ()))
        for i in order:
            found.append(self.nodes[i])
            found.extend(self.looks.get(i, ()))
        return tuple(found)
