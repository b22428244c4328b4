"""Schedule: an order of steps, chosen by the memory that it needs."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from sardonyx.base.records import field, frozen
from sardonyx.graph.graph import Graph, Node
from sardonyx.place import Placement
from sardonyx.schedule.links import Links
from sardonyx.schedule.orders import breadth_first, depth_first, forward_first
from sardonyx.schedule.peak import lowest
from sardonyx.schedule.sizes import Sizes

NATIVE: Final = "cpu"  # the provider whose steps native code runs

KEPT: Final = -1  # the effort that leaves an order as it is


class Order(Enum):
    """How the order of nodes is chosen; the values are what config keys call them."""

    LEAST_PEAK = "least_peak"
    REVERSE_DEPTH_FIRST = "reverse_depth_first"
    PRIORITY_BASED = "priority_based"
    MEMORY_EFFICIENT = "memory_efficient"


@frozen
class OrderOptions:
    """Which order to take, and for the least peak how hard to look for it and at what sizes."""

    order: Order = Order.LEAST_PEAK
    effort: int = 0
    hints: Mapping[str, int] = field(default_factory=dict)  # sizes of open dims, by name
    branches: bool = False  # small steps that do not need each other run at once


@frozen
class Search:
    """What native code may do with an order when sizes are bound."""

    effort: int = KEPT  # to find a better one
    branches: bool = False


@frozen
class Schedule:
    """The nodes of one graph in the order they run, and the schedules of its nodes' bodies."""

    graph: Graph
    nodes: tuple[Node, ...]
    bodies: Mapping[Graph, Schedule] = field(default_factory=dict)
    search: Search = field(default_factory=Search)


_FIXED: Final = {
    Order.REVERSE_DEPTH_FIRST: depth_first,
    Order.PRIORITY_BASED: breadth_first,
    Order.MEMORY_EFFICIENT: forward_first,
}


def schedule(placement: Placement, options: OrderOptions | None = None) -> Schedule:
    """An order for a graph, and for each body in it."""
    chosen = OrderOptions() if options is None else options
    python: set[Graph] = set()
    if chosen.order is Order.LEAST_PEAK:
        python = _in_python(placement)
    sizes = Sizes(placement.graph, chosen.hints) if python else None
    made = _schedule(placement.graph, chosen, python, sizes)
    if placement.devices:
        from sardonyx.schedule.runs import gathered  # most sessions have no device

        made = gathered(made, placement)
    return made


def _schedule(
    graph: Graph, options: OrderOptions, python: set[Graph], sizes: Sizes | None
) -> Schedule:
    links = Links.of(graph)
    bodies = {
        body: _schedule(body, options, python, sizes)
        for node in links.nodes
        if node.op.has_bodies
        for _, body in node.subgraphs
    }
    fixed = _FIXED.get(options.order)
    if fixed is not None:
        order = fixed(links)
    elif graph in python and sizes is not None:
        order = lowest(graph, links, sizes, options.effort)
    else:  # where native code begins to look
        has_gradients = any(n.is_backward for n in links.nodes)
        order = forward_first(links) if has_gradients else depth_first(links)
    effort = options.effort if fixed is None else KEPT
    return Schedule(graph, links.ordered(order), bodies, Search(effort, options.branches))


def _in_python(placement: Placement) -> set[Graph]:
    """The graphs of which some node runs in Python, or some node of a body."""
    found: set[Graph] = set()
    for node, provider in placement.where.items():
        graph: Graph | None = None if provider.name == NATIVE else node.graph
        while graph is not None and graph not in found:
            found.add(graph)
            graph = None if graph.owner is None else graph.owner.graph
    return found
