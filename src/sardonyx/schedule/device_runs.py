"""Execution orders in which nodes of one device are adjacent, so that regions are large."""

from __future__ import annotations

from heapq import heappop, heappush

from sardonyx.base.records import replace
from sardonyx.graph.graph import Node
from sardonyx.place import HOST, Placement, has_device
from sardonyx.schedule import Schedule


def group_by_device(schedule: Schedule, placement: Placement) -> Schedule:
    """Reorder a schedule so that the device changes rarely, bodies included.

    Kahn's algorithm with one queue per device: it stays on a device as long as that has a ready
    node. Inside a run nodes keep their relative order. Control flow is a run of its own.
    """
    nodes = schedule.nodes
    position = {node: i for i, node in enumerate(nodes)}
    kinds = [_kind(placement, node) for node in nodes]
    n_pending = [0] * len(nodes)
    readers: list[list[int]] = [[] for _ in nodes]
    for i, node in enumerate(nodes):
        producers = {position[v.node] for v in node.reads() if v.node in position}
        if node.op.updates:
            producers.update(position[n] for n in schedule.graph.predecessors(node))
        n_pending[i] = len(producers)
        for producer in producers:
            readers[producer].append(i)
    ready: dict[str, list[int]] = {}
    for i, n in enumerate(n_pending):
        if not n:
            heappush(ready.setdefault(kinds[i], []), i)
    order: list[Node] = []
    kind = ""
    while any(ready.values()):
        if not ready.get(kind):  # switch to the device with the earliest ready node
            kind = min((k for k, heap in ready.items() if heap), key=lambda k: ready[k][0])
        i = heappop(ready[kind])
        order.append(nodes[i])
        for reader in readers[i]:
            n_pending[reader] -= 1
            if not n_pending[reader]:
                heappush(ready.setdefault(kinds[reader], []), reader)
    bodies = {graph: group_by_device(body, placement) for graph, body in schedule.bodies.items()}
    return replace(schedule, nodes=tuple(order), bodies=bodies)


def _kind(placement: Placement, node: Node) -> str:
    provider = placement.where[node]
    if node.op.has_bodies:
        return f"{provider.name} control"
    return provider.device if has_device(provider) else HOST
