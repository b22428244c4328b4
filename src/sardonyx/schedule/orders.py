"""Fixed execution orders: the names are those of onnxruntime's ExecutionOrder and of its docs.

Every function returns numbers of `Dependencies`. It is deterministic and linear in the number of
edges, up to a logarithm for sorting.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence

from sardonyx.schedule.dependencies import Dependencies


def reverse_depth_first(deps: Dependencies) -> list[int]:
    """Depth-first search backwards from the sinks; the highest number is visited first."""
    search = _DepthFirst(deps.predecessors)
    search.visit(i for i, readers in enumerate(deps.successors) if not readers)
    return search.order


def priority_based(deps: Dependencies) -> list[int]:
    """Kahn's algorithm with a priority queue: ready nodes run by priority, then by number."""
    keys = [(n.priority, i) for i, n in enumerate(deps.nodes)]
    n_pending = [len(producers) for producers in deps.predecessors]
    ready = [keys[i] for i, n in enumerate(n_pending) if not n]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, i = heapq.heappop(ready)
        order.append(i)
        for reader in deps.successors[i]:
            n_pending[reader] -= 1
            if not n_pending[reader]:
                heapq.heappush(ready, keys[reader])
    return order


def memory_efficient(deps: Dependencies) -> list[int]:
    """Longest branches first, then gradients; a recomputed value comes right before its reader.

    The deepest operand is computed first: while its long branch runs, the results of the short
    branches do not exist yet (the Sethi-Ullman argument, with depth in place of registers).
    """
    depths = _depths(deps)
    deepest_last = [
        sorted(producers, key=depths.__getitem__) if len(producers) > 1 else producers
        for producers in deps.predecessors
    ]
    search = _DepthFirst(deepest_last)  # which visits the last of a list first
    if not any(n.is_backward for n in deps.nodes):
        sinks = [i for i, readers in enumerate(deps.successors) if not readers]
        search.visit(sorted(sinks, key=depths.__getitem__))
        return search.order
    forward = _forward_nodes(deps)
    sinks = [
        i
        for i, readers in enumerate(deps.successors)
        if forward[i] and not any(forward[r] for r in readers)
    ]
    search.visit(sorted(sinks, key=depths.__getitem__))
    _append_backward(deps, forward, search)
    return search.order


class _DepthFirst:
    """Post-order depth-first search along predecessors: a node comes after all it depends on."""

    __slots__ = ("_is_visited", "_predecessors", "order")

    def __init__(self, predecessors: Sequence[Sequence[int]]) -> None:
        self._predecessors = predecessors
        self._is_visited = bytearray(len(predecessors))
        self.order: list[int] = []

    def visit(self, roots: Iterable[int]) -> None:
        """Append roots with everything they need; the last root and operand come first."""
        predecessors, is_visited, order = self._predecessors, self._is_visited, self.order
        stack = list(roots)  # explicit: graphs are deeper than Python's recursion limit
        while stack:
            i = stack.pop()
            if i < 0:  # ~i: all predecessors of node i are in the order
                order.append(~i)
            elif not is_visited[i]:
                is_visited[i] = 1
                stack.append(~i)
                stack.extend([p for p in predecessors[i] if not is_visited[p]])


def _depths(deps: Dependencies) -> list[int]:
    """The length of the longest path from a source to each node."""
    depths: list[int] = []
    for producers in deps.predecessors:
        depths.append(1 + max([depths[p] for p in producers], default=0))
    return depths


def _forward_nodes(deps: Dependencies) -> bytearray:
    """Which nodes run before the backward pass: the forward nodes, and all they depend on.

    Whatever depends on a gradient is backward too. Recomputed nodes (priority above 0) are not
    needed before the gradient that reads them.
    """
    nodes = deps.nodes
    is_gradient = bytearray(len(nodes))
    for i, producers in enumerate(deps.predecessors):
        is_gradient[i] = nodes[i].is_backward or any(is_gradient[p] for p in producers)
    forward = bytearray(len(nodes))
    for i in reversed(range(len(nodes))):
        is_needed = any(forward[r] for r in deps.successors[i])
        forward[i] = is_needed or not (is_gradient[i] or nodes[i].priority > 0)
    return forward


def _append_backward(deps: Dependencies, forward: Sequence[int], search: _DepthFirst) -> None:
    """Append the backward pass: gradients first in, first out, each with its deferred inputs."""
    deferred = _deferred_nodes(deps, forward)
    n_pending = [
        len([p for p in producers if not forward[p] and not deferred[p]])
        for producers in deps.predecessors
    ]
    backward = [i for i, is_forward in enumerate(forward) if not is_forward]
    ready = deque(i for i in backward if not n_pending[i] and not deferred[i])
    while ready:
        i = ready.popleft()
        search.visit((i,))
        for reader in deps.successors[i]:
            n_pending[reader] -= 1
            if not n_pending[reader] and not deferred[reader]:
                ready.append(reader)
    search.visit(reversed(backward))  # recomputed values that no gradient reads


def _deferred_nodes(deps: Dependencies, forward: Sequence[int]) -> bytearray:
    """Backward nodes that depend on forward values alone and can wait for their first reader.

    These are recomputed nodes, and nodes with slack: off the critical path to all their readers,
    like the transposed activation that a weight gradient reads at the very end.
    """
    nodes = deps.nodes
    levels = [0] * len(nodes)  # earliest level of each node, as soon as possible (ASAP)
    for i, producers in enumerate(deps.predecessors):
        own = [levels[p] for p in producers if not forward[p] and nodes[p].priority <= 0]
        levels[i] = 1 + max(own, default=0)
    latest = list(levels)  # as late as possible (ALAP); the difference is the slack
    for i in reversed(range(len(nodes))):
        latest[i] = min([latest[r] - 1 for r in deps.successors[i]], default=levels[i])
    deferred = bytearray(len(nodes))
    for i, producers in enumerate(deps.predecessors):
        if not forward[i] and (nodes[i].priority > 0 or latest[i] > levels[i]):
            deferred[i] = all(forward[p] or deferred[p] for p in producers)
    return deferred
