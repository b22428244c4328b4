"""Recomputation (gradient checkpointing): forward nodes that the backward pass recomputes.

Their results are then not kept in memory between the two passes. Clones have a later priority, so
that the scheduler runs them just before the backward nodes that read them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from sardonyx.base.records import frozen
from sardonyx.errors import InvalidArgument
from sardonyx.graph.copy import copy_nodes
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.infer import infer_node

# The priority of recomputed nodes; above 0: scheduled as late as their readers allow.
RECOMPUTED: Final = 10


@frozen
class FirstLayers:
    """A share of the layers, those at the beginning, whose values the backward pass reads last."""

    share: float


Choice = FirstLayers | str | Callable[[Node], bool] | Iterable[str] | None


def nodes_to_recompute(
    choice: Choice,
    nodes: Sequence[Node],
    active: Collection[Value],
    fused: Mapping[str, Collection[str]] | None = None,
) -> set[Node]:
    """Return the chosen forward nodes, except random ops and nodes with bodies.

    `fused` has names of nodes that were fused, with those of the nodes that replace them.
    """
    if choice is None:
        return set()
    if choice == "layers" or isinstance(choice, FirstLayers):
        share = choice.share if isinstance(choice, FirstLayers) else 1.0
        chosen = _between_checkpoints(nodes, active, share)
    elif isinstance(choice, str):
        raise InvalidArgument(
            f"recompute must be 'layers', names of nodes or a function of a node, got {choice!r}"
        )
    elif callable(choice):
        chosen = {node for node in nodes if choice(node)}
    else:
        chosen = _named(list(choice), nodes, fused or {})
    return {node for node in chosen if node.op.is_pure and not node.op.has_bodies}


def _named(
    names: list[Any], nodes: Sequence[Node], fused: Mapping[str, Collection[str]]
) -> set[Node]:
    """Return the nodes with these names; an unknown name is an error."""
    known = {node.name for node in nodes if node.name}
    wanted = {name: known.intersection((name, *fused.get(name, ()))) for name in names}
    unknown = next((name for name, found in wanted.items() if not found), None)
    if unknown is not None:
        raise InvalidArgument(
            f"recompute names {unknown!r}, but the loss depends on no node of that name"
        )
    chosen = {name for found in wanted.values() for name in found}
    return {node for node in nodes if node.name in chosen}


def _between_checkpoints(
    nodes: Sequence[Node], active: Collection[Value], share: float
) -> set[Node]:
    """Return all nodes but checkpoints: nodes whose output is a single-value cut of the graph.

    Only active values count, so that a mask which all layers read does not connect them; nor is it
    recomputed. Nodes after the last checkpoint are not recomputed: the backward pass reads their
    results first. With a `share` below 1 only the first nodes are.
    """
    position = {node: i for i, node in enumerate(nodes)}
    last_read: dict[Value, int] = {}
    for node in nodes:
        for value in node.reads():
            if value.node in position and value in active:
                last_read[value] = position[node]
    # Count live values along the topological order; one live value is a cut of the graph.
    n_live, n_ending, cuts = 0, [0] * len(nodes), []
    for i, node in enumerate(nodes):
        live = [value for value in node.outputs if value in last_read]
        for value in live:
            n_ending[last_read[value]] += 1
        n_live += len(live) - n_ending[i]
        if n_live == 1 and len(live) == 1:
            cuts.append(i)
    # sqrt(n) segments minimize the peak: checkpoints plus the values of one segment (Chen et al.,
    # Training Deep Nets with Sublinear Memory Cost, 2016).
    checkpoints = _spaced(cuts, math.isqrt(len(nodes)))
    ends = sorted(checkpoints)[: math.ceil(share * len(checkpoints))]
    before_last = enumerate(nodes[: max(ends, default=0)])
    inner = (node for i, node in before_last if i not in checkpoints)
    return {node for node in inner if any(value in active for value in node.outputs)}


def _spaced(cuts: list[int], gap: int) -> set[int]:
    """Return cuts that are at least `gap` apart: in a chain every node is a cut."""
    spaced: set[int] = set()
    last = -1
    for i in cuts:
        if i - last >= gap:
            spaced.add(i)
            last = i
    return spaced


def insert_clones(
    graph: Graph, recomputed: Collection[Node], forward: Sequence[Node], backward: Sequence[Node]
) -> None:
    """Make backward nodes read clones of the recomputed nodes, and clones read clones."""
    needed: set[Node] = set()
    work = list(backward)
    while work:
        for value in work.pop().reads():
            producer = value.node
            if producer is not None and producer in recomputed and producer not in needed:
                needed.add(producer)
                work.append(producer)
    copies: dict[Value, Value] = {}
    for node in forward:
        if node in needed:
            copies.update(zip(node.outputs, _clone(graph, node, copies).outputs, strict=True))
    for node in backward:
        for reader in (node, *(n for _, body in node.subgraphs for n in body.all_nodes())):
            for slot, read in enumerate(reader.inputs):
                if read is not None and read in copies:
                    reader.graph.set_input(reader, slot, copies[read])


def _clone(graph: Graph, node: Node, copies: dict[Value, Value]) -> Node:
    """Add a copy of a forward node that reads the copies of its inputs."""
    inputs = [None if v is None else copies.get(v, v) for v in node.inputs]
    name = f"{node.name}_again" if node.name else ""
    clone = graph.add(node.op, inputs, dict(node.attrs), len(node.outputs), name)
    clone.annotations = (RECOMPUTED, True)
    for new, old in zip(clone.outputs, node.outputs, strict=True):
        new.fact = old.fact
    return clone


def clone_nodes(graph: Graph, nodes: Iterable[Node], copies: dict[Value, Value]) -> list[Node]:
    """Add copies of nodes, with their bodies, to a graph; return them.

    They read the `copies` of values, also of values that the nodes themselves compute, and else the
    same values; `copies` gets their outputs.
    """
    given, added = dict(copies), []
    for node in nodes:
        bodies = (v for _, body in node.subgraphs for v in body.captures(constants=True))
        for value in (*node.inputs, *bodies):
            if value is not None:
                copies.setdefault(value, value)
        copy_nodes([node], graph, copies)
        copies.update(given)
        added.append(next(reversed(graph.nodes)))
        infer_node(graph.scope, added[-1])
        for copy in (added[-1], *(n for _, body in added[-1].subgraphs for n in body.all_nodes())):
            for value in copy.outputs:  # names are unique in a model
                value.name = ""
    return added
