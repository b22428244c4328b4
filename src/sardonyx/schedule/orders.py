"""Orders: functions from a graph to its nodes in the order they run.

All are deterministic and take time in proportion to the edges, or nearly. Those that end in `first`
give the numbers of `Links`.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence

from sardonyx.graph.graph import Graph, Node
from sardonyx.schedule.links import Links


def reverse_depth_first(graph: Graph) -> tuple[Node, ...]:
    """Back from the last node that nobody reads, along the highest numbers first."""
    links = Links.of(graph)
    return links.ordered(depth_first(links))


def priority_based(graph: Graph) -> tuple[Node, ...]:
    """Whatever can run, by priority and then by number: forward, breadth first."""
    links = Links.of(graph)
    return links.ordered(breadth_first(links))


def memory_efficient(graph: Graph) -> tuple[Node, ...]:
    """Longest branches first, then gradients, with what is computed again right before its use."""
    links = Links.of(graph)
    return links.ordered(forward_first(links))


def depth_first(links: Links) -> list[int]:
    """`reverse_depth_first` as numbers."""
    walk = _Walk(links.before)
    walk.back_from(i for i, readers in enumerate(links.after) if not readers)
    return walk.order


def breadth_first(links: Links) -> list[int]:
    """`priority_based` as numbers."""
    keys = [(n.priority, i) for i, n in enumerate(links.nodes)]
    waits = [len(makers) for makers in links.before]
    ready = [keys[i] for i, n_waits in enumerate(waits) if not n_waits]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, i = heapq.heappop(ready)
        order.append(i)
        for reader in links.after[i]:
            waits[reader] -= 1
            if not waits[reader]:
                heapq.heappush(ready, keys[reader])
    return order


def forward_first(links: Links) -> list[int]:
    """`memory_efficient` as numbers."""
    depths = _depths(links)
    deepest_last = [
        sorted(makers, key=depths.__getitem__) if len(makers) > 1 else makers
        for makers in links.before
    ]
    walk = _Walk(deepest_last)
    if not any(n.is_backward for n in links.nodes):
        ends = [i for i, readers in enumerate(links.after) if not readers]
        walk.back_from(sorted(ends, key=depths.__getitem__))
        return walk.order
    forward = _forward(links)
    ends = [
        i
        for i, readers in enumerate(links.after)
        if forward[i] and not any(forward[r] for r in readers)
    ]
    walk.back_from(sorted(ends, key=depths.__getitem__))
    _backward(links, forward, walk)
    return walk.order


class _Walk:
    """Depth-first walks back from nodes: each is met once, after those that it waits for."""

    __slots__ = ("_before", "_is_met", "order")

    def __init__(self, before: Sequence[Sequence[int]]) -> None:
        self._before = before
        self._is_met = bytearray(len(before))
        self.order: list[int] = []

    def back_from(self, ends: Iterable[int]) -> None:
        """Goes back from the last of the ends first, and from each by the last of its makers."""
        before, is_met, order = self._before, self._is_met, self.order
        stack = list(ends)
        while stack:
            i = stack.pop()
            if i < 0:  # all that the node waits for is met
                order.append(~i)
            elif not is_met[i]:
                is_met[i] = 1
                stack.append(~i)
                stack.extend([m for m in before[i] if not is_met[m]])


def _depths(links: Links) -> list[int]:
    """The length of the longest way to each node."""
    depths: list[int] = []
    for makers in links.before:
        depths.append(1 + max([depths[m] for m in makers], default=0))
    return depths


def _forward(links: Links) -> bytearray:
    """Which nodes run before any gradient: those that are no gradients, and all they wait for.

    What follows from a gradient is one; what computes again is not needed until it is read.
    """
    nodes, before = links.nodes, links.before
    is_gradient = bytearray(len(nodes))
    for i, makers in enumerate(before):
        is_gradient[i] = nodes[i].is_backward or any(is_gradient[m] for m in makers)
    forward = bytearray(len(nodes))
    for i in reversed(range(len(nodes))):
        is_needed = any(forward[r] for r in links.after[i])
        forward[i] = is_needed or not (is_gradient[i] or nodes[i].priority > 0)
    return forward


def _backward(links: Links, forward: Sequence[int], walk: _Walk) -> None:
    """Gradients first come, first served; what can wait is made for the first that reads it."""
    late = _late(links, forward)
    waits = [len([m for m in makers if not forward[m] and not late[m]]) for makers in links.before]
    own = [i for i, is_forward in enumerate(forward) if not is_forward]
    ready = deque(i for i in own if not waits[i] and not late[i])
    while ready:
        i = ready.popleft()
        walk.back_from((i,))
        for reader in links.after[i]:
            waits[reader] -= 1
            if not waits[reader] and not late[reader]:
                ready.append(reader)
    walk.back_from(reversed(own))  # what is computed again, and read by no gradient


def _late(links: Links, forward: Sequence[int]) -> bytearray:
    """Nodes that follow from forward values alone and are not needed at once.

    Those with a priority above 0 compute something again. Others lie beside the longest way to
    whatever reads them, like a transposed activation that waits for its gradient.
    """
    nodes, before = links.nodes, links.before
    levels = [0] * len(nodes)
    for i, makers in enumerate(before):
        own = [levels[m] for m in makers if not forward[m] and nodes[m].priority <= 0]
        levels[i] = 1 + max(own, default=0)
    due = list(levels)
    for i in reversed(range(len(nodes))):
        due[i] = min([due[r] - 1 for r in links.after[i]], default=levels[i])
    late = bytearray(len(nodes))
    for i, makers in enumerate(before):
        if not forward[i] and (nodes[i].priority > 0 or due[i] > levels[i]):
            late[i] = all(forward[m] or late[m] for m in makers)
    return late
