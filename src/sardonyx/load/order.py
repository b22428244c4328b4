"""Topological sort of node records that a model lists in another order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sardonyx._native import FunctionRecord, GraphRecord, NodeRecord
from sardonyx.errors import InvalidGraph


def in_order(record: GraphRecord | FunctionRecord) -> Sequence[NodeRecord]:
    """Return the nodes in topological order, as listed if that is one."""
    return record.nodes if record.is_sorted else sort_records(record.nodes)


def sort_records(nodes: Sequence[NodeRecord]) -> list[NodeRecord]:
    """Return the records in topological order (Kahn's algorithm); a cycle is an error."""
    makers = {name: i for i, node in enumerate(nodes) for name in node.outputs if name}
    needs = [{makers[r] for r in _reads(node) if r in makers} for node in nodes]
    readers: list[list[int]] = [[] for _ in nodes]
    for i, needed in enumerate(needs):
        for j in needed:
            readers[j].append(i)
    ready = [i for i, needed in enumerate(needs) if not needed]
    order: list[NodeRecord] = []
    for i in ready:  # grows during the loop
        order.append(nodes[i])
        for j in readers[i]:
            needs[j].discard(i)
            if not needs[j]:
                ready.append(j)
    if len(order) < len(nodes):
        stuck = [n for n, needed in zip(nodes, needs, strict=True) if needed]
        names = ", ".join(n.name or n.op_type for n in stuck[:8])
        raise InvalidGraph(
            f"the graph has a cycle among {len(stuck)} nodes: {names}",
            hint="a node may read only what earlier nodes make",
        )
    return order


def _reads(node: NodeRecord) -> Iterator[str]:
    yield from node.inputs
    for attribute in node.attributes if node.has_bodies else ():
        if isinstance(attribute.value, GraphRecord):
            yield from _captures(attribute.value)


def _captures(graph: GraphRecord) -> set[str]:
    made = {i.name for i in graph.inputs} | {t.name for t in graph.initializers}
    read: set[str] = {o.name for o in graph.outputs}
    for node in graph.nodes:
        read.update(_reads(node))
        made.update(node.outputs)
    return read - made
