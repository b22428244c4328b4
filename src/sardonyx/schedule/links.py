"""The nodes of one graph by number, and who waits for whom: what orders are made of."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.graph.graph import Graph, Node


@dataclass(frozen=True, slots=True)
class Links:
    """Nodes by their position in `Graph.sorted_nodes`; the numbers in a row are ascending."""

    nodes: list[Node]
    before: list[list[int]]  # by node: those that make what it reads, or what its bodies read
    after: list[list[int]]

    @staticmethod
    def of(graph: Graph) -> Links:
        """The links of a graph; its bodies have links of their own."""
        nodes = graph.sorted_nodes()
        place = {node: i for i, node in enumerate(nodes)}
        before: list[list[int]] = []
        after: list[list[int]] = [[] for _ in nodes]
        for i, node in enumerate(nodes):
            values = node.reads() if node.op.has_bodies else node.inputs
            makers = {place.get(v.node, -1) for v in values if v is not None and v.node is not None}
            makers.discard(-1)  # of a graph around this one
            before.append(sorted(makers))
            for maker in makers:
                after[maker].append(i)
        return Links(nodes, before, after)
