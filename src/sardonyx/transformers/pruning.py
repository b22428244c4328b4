"""Nodes of a GraphProto: dead ones, and their topological order."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from onnx import GraphProto, NodeProto


def reads(node: NodeProto) -> Iterator[str]:
    """Yield the names that a node reads, and those that its bodies may take from outside."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            yield from (output.name for output in body.output)
            for inner in body.node:
                yield from reads(inner)


def prune(graph: GraphProto, outputs: Sequence[str] | None = None) -> None:
    """Keep only nodes that outputs depend on; with `outputs`, only these outputs."""
    if outputs is not None:
        for value in [v for v in graph.output if v.name not in outputs]:
            graph.output.remove(value)
    makers = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    wanted = [v.name for v in graph.output]
    needed: set[int] = set()
    while wanted:
        position = makers.get(wanted.pop())
        if position is not None and position not in needed:
            needed.add(position)
            wanted.extend(reads(graph.node[position]))
    for position in range(len(graph.node) - 1, -1, -1):
        if position not in needed:
            del graph.node[position]


def remove_unused(graph: GraphProto, has_fewer_inputs: bool) -> None:
    """Remove initializers that nothing reads and, if wanted, inputs."""
    used = {name for node in graph.node for name in reads(node)}
    used.update(value.name for value in graph.output)
    if has_fewer_inputs:
        for value in [v for v in graph.input if v.name not in used]:
            graph.input.remove(value)
    # An initializer of an input is its default: without it, runs would have to feed the input.
    used.update(value.name for value in graph.input)
    for tensor in [t for t in graph.initializer if t.name not in used]:
        graph.initializer.remove(tensor)


def sort_graph(graph: GraphProto, by_name: bool = False) -> None:
    """Sort the nodes of a graph topologically, otherwise in their order or by name."""
    nodes = list(graph.node)
    order = _topological_order(nodes, by_name)
    if any(a is not b for a, b in zip(order, nodes, strict=True)):
        set_nodes(graph, order)


def set_nodes(graph: GraphProto, nodes: Sequence[NodeProto]) -> None:
    """Replace the nodes of a graph; some may be its own."""
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _topological_order(nodes: Sequence[NodeProto], by_name: bool) -> list[NodeProto]:
    """Return nodes in topological order (Kahn's algorithm); a heap decides among those ready."""
    makers = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    waits = [{makers[n] for n in reads(node) if n in makers} for node in nodes]
    readers: dict[int, list[int]] = {}
    for position, before in enumerate(waits):
        for maker in before:
            readers.setdefault(maker, []).append(position)
    keys = [(node.name if by_name else "", i) for i, node in enumerate(nodes)]
    ready = [key for key, before in zip(keys, waits, strict=True) if not before]
    heapq.heapify(ready)
    order: list[NodeProto] = []
    while ready:
        _, position = heapq.heappop(ready)
        order.append(nodes[position])
        for reader in readers.get(position, []):
            waits[reader].discard(position)
            if not waits[reader]:
                heapq.heappush(ready, keys[reader])
    if len(order) < len(nodes):
        stuck = next(node for node, before in zip(nodes, waits, strict=True) if before)
        raise RuntimeError(
            f"Graph is not a DAG: the node {stuck.name or stuck.op_type} is in a cycle"
        )
    return order
