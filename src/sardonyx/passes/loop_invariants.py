"""Loop-invariant code motion, and removal of loop-carried values that never change."""

from __future__ import annotations

from collections.abc import Iterable

from sardonyx.graph.fact import refines
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.op import INTERNAL


def drop_invariants(node: Node) -> list[tuple[Value, Value]]:
    """Remove carried values of a Loop that never change or are never read.

    Exporters carry weights through loops; read from outside they are constants in the body. Returns
    pairs of a replaced value and the one read instead.
    """
    if node.op.name != "Loop" or node.op.domain:
        return []
    body: Graph = node.attrs["body"]
    replaced: list[tuple[Value, Value]] = []
    removed: list[int] = []
    for position, outer in enumerate(node.inputs[2:]):
        inner, final = body.inputs[2 + position], node.outputs[position]
        if outer is None:
            continue
        # The body returns the value as it got it, so each iteration sees the initial one.
        if _origin(body.outputs[1 + position]) is inner and _may_replace(outer, (inner, final)):
            body.replace(inner, outer)
            node.graph.replace(final, outer)
            replaced += (inner, outer), (final, outer)
            removed.append(position)
        elif not inner.is_used and not final.is_used:
            removed.append(position)
    if removed:
        drop_carried(node, body, frozenset(removed))
    return replaced


def hoist(node: Node) -> list[Node]:
    """Move nodes whose inputs do not change out of a Loop; return them.

    Only if the Loop runs at least once: otherwise hoisting could add an error or needless work.
    """
    if node.op.name != "Loop" or node.op.domain or not _runs(node):
        return []
    body, graph = node.attrs["body"], node.graph
    varying = set(body.inputs)
    moved: dict[Node, None] = {}
    # One forward data-flow pass: a node varies if it reads a body input or a varying result.
    for inner in body.sorted_nodes():
        # Internal ops may depend on dims that are bound in each iteration, which no input shows.
        is_fixed = inner.op.is_pure and not inner.op.has_bodies and inner.op.domain != INTERNAL
        if not is_fixed or any(v in varying for v in inner.inputs):
            varying.update(inner.outputs)
            continue
        moved[inner] = None
    graph.adopt(moved)
    # Conditions on the sizes of moved nodes are checked where the nodes are now.
    guards = [g for g in body.scope.guards if g.node in moved]
    graph.scope.guards.extend(guards)
    body.scope.guards = [g for g in body.scope.guards if g.node not in moved]
    return list(moved)


def _runs(node: Node) -> bool:
    """Whether trip count and condition guarantee at least one iteration."""
    return all(v is None or (v.tensor.ints or (0,))[0] > 0 for v in node.inputs[:2])


def _origin(value: Value) -> Value:
    """The value before any Identity nodes."""
    while value.op == "Identity" and value.node is not None and value.node.inputs[0] is not None:
        value = value.node.inputs[0]
    return value


def _may_replace(new: Value, old: Iterable[Value]) -> bool:
    """Whether a value has at least as precise a fact as each of the others."""
    return new.fact is not None and all(
        v.fact is not None and refines(new.fact, v.fact) for v in old
    )


def drop_carried(node: Node, body: Graph, positions: frozenset[int]) -> None:
    """Remove the carried values at these positions from a Loop and its body."""
    # Loop inputs are (trip count, condition, carried...), body inputs (iteration, condition,
    # carried...), body outputs (condition, carried..., scans...).
    inputs = [v for slot, v in enumerate(node.inputs) if slot - 2 not in positions]
    node.graph.replace_inputs(node, inputs)
    node.graph.drop_outputs(node, positions)
    body.set_inputs(v for slot, v in enumerate(body.inputs) if slot - 2 not in positions)
    remaining = [i for i in range(len(body.outputs)) if i - 1 not in positions]
    body.set_outputs([body.outputs[i] for i in remaining], [body.declared[i] for i in remaining])
