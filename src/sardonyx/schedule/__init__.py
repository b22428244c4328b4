"""Schedule: the execution order of every graph, chosen for the least peak memory.

For graphs that run natively this stage only picks the starting order: the search for the order of
least peak memory runs when sizes are bound (native/exec), where sizes, scratch memory, views and
in-place steps are known. Graphs with nodes that run in Python are searched here, at estimated
sizes (`least_peak`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from sardonyx.base.records import field, frozen
from sardonyx.graph.graph import Graph, Node
from sardonyx.place import Placement
from sardonyx.schedule.dependencies import Dependencies
from sardonyx.schedule.least_peak import least_peak_order
from sardonyx.schedule.orders import memory_efficient, priority_based, reverse_depth_first
from sardonyx.schedule.size_estimates import SizeEstimates

NATIVE: Final = "cpu"  # the provider whose steps native code runs

KEPT: Final = -1  # the search effort that leaves the execution order unchanged


class Order(Enum):
    """How the execution order is chosen; the values are those of sardonyx.execution_order."""

    LEAST_PEAK = "least_peak"
    REVERSE_DEPTH_FIRST = "reverse_depth_first"
    PRIORITY_BASED = "priority_based"
    MEMORY_EFFICIENT = "memory_efficient"


@frozen
class OrderOptions:
    """The execution order, and for LEAST_PEAK the search effort and the assumed sizes."""

    order: Order = Order.LEAST_PEAK
    effort: int = 0
    hints: Mapping[str, int] = field(default_factory=dict)  # sizes of open dims, by name
    branches: bool = False  # ORT_PARALLEL: small independent steps run concurrently
    consumes_inputs: bool = False  # inputs are released after their last use
    held_inputs: frozenset[str] = frozenset()  # names of those that the caller keeps all the same


@frozen
class Search:
    """What native code may do with the execution order when sizes are bound."""

    effort: int = KEPT  # of the search for a lower peak
    branches: bool = False
    consumes_inputs: bool = False
    held_inputs: frozenset[str] = frozenset()


@frozen
class Schedule:
    """The nodes of one graph in execution order, and the schedules of its control-flow bodies."""

    graph: Graph
    nodes: tuple[Node, ...]
    bodies: Mapping[Graph, Schedule] = field(default_factory=dict)
    search: Search = field(default_factory=Search)


_FIXED: Final = {
    Order.REVERSE_DEPTH_FIRST: reverse_depth_first,
    Order.PRIORITY_BASED: priority_based,
    Order.MEMORY_EFFICIENT: memory_efficient,
}


def schedule(placement: Placement, options: OrderOptions | None = None) -> Schedule:
    """Choose the execution order of a graph and of each body in it."""
    chosen = OrderOptions() if options is None else options
    python: set[Graph] = set()
    if chosen.order is Order.LEAST_PEAK:
        python = _graphs_in_python(placement)
    sizes = SizeEstimates(placement.graph, chosen.hints) if python else None
    result = _schedule(placement.graph, chosen, python, sizes)
    if placement.devices:
        from sardonyx.schedule.device_runs import group_by_device  # rare: not imported otherwise

        result = group_by_device(result, placement)
    return result


def _schedule(
    graph: Graph, options: OrderOptions, python: set[Graph], sizes: SizeEstimates | None
) -> Schedule:
    deps = Dependencies.of(graph)
    bodies = {
        body: _schedule(body, options, python, sizes)
        for node in deps.nodes
        if node.op.has_bodies
        for _, body in node.subgraphs
    }
    fixed = _FIXED.get(options.order)
    if fixed is not None:
        order = fixed(deps)
    elif graph in python and sizes is not None:
        order = least_peak_order(graph, deps, sizes, options.effort)
    else:  # the starting point of the native search
        has_gradients = any(n.is_backward for n in deps.nodes)
        order = memory_efficient(deps) if has_gradients else reverse_depth_first(deps)
    effort = options.effort if fixed is None else KEPT
    search = Search(effort, options.branches, options.consumes_inputs, options.held_inputs)
    return Schedule(graph, deps.ordered(order), bodies, search)


def _graphs_in_python(placement: Placement) -> set[Graph]:
    """The graphs with a node that does not run natively, in them or in one of their bodies."""
    found: set[Graph] = set()
    for node, provider in placement.where.items():
        graph: Graph | None = None if provider.name == NATIVE else node.graph
        while graph is not None and graph not in found:
            found.add(graph)
            graph = None if graph.owner is None else graph.owner.graph
    return found
