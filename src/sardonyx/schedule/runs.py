"""Orders in which nodes of one device follow each other in long runs."""

from __future__ import annotations

from heapq import heappop, heappush

from sardonyx.base.records import replace
from sardonyx.graph.graph import Node
from sardonyx.place import HOST, Placement, has_device
from sardonyx.schedule import Schedule


def gathered(schedule: Schedule, placement: Placement) -> Schedule:
    """The schedule with few changes of the device: a run goes on as long as any node is ready.

    Within a run nodes keep their order. Control flow ends a run, whatever device it is on.
    """
    nodes = schedule.nodes
    position = {node: i for i, node in enumerate(nodes)}
    kinds = [_kind(placement, node) for node in nodes]
    waits = [0] * len(nodes)
    readers: list[list[int]] = [[] for _ in nodes]
    for i, node in enumerate(nodes):
        makers = {position[v.node] for v in node.reads() if v.node in position}
        waits[i] = len(makers)
        for maker in makers:
            readers[maker].append(i)
    ready: dict[str, list[int]] = {}
    for i, n in enumerate(waits):
        if not n:
            heappush(ready.setdefault(kinds[i], []), i)
    order: list[Node] = []
    kind = ""
    while any(ready.values()):
        if not ready.get(kind):  # the device whose first node waits longest
            kind = min((k for k, heap in ready.items() if heap), key=lambda k: ready[k][0])
        i = heappop(ready[kind])
        order.append(nodes[i])
        for reader in readers[i]:
            waits[reader] -= 1
            if not waits[reader]:
                heappush(ready.setdefault(kinds[reader], []), reader)
    bodies = {graph: gathered(body, placement) for graph, body in schedule.bodies.items()}
    return replace(schedule, nodes=tuple(order), bodies=bodies)


def _kind(placement: Placement, node: Node) -> str:
    provider = placement.where[node]
    if node.op.has_bodies:
        return f"{provider.name} control"
    return provider.device if has_device(provider) else HOST
