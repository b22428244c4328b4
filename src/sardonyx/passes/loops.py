"""Loops: what never changes is neither carried nor computed again, nor is what nobody reads."""

from __future__ import annotations

from collections.abc import Iterable

from sardonyx.graph.fact import refines
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.op import INTERNAL


def trim(node: Node) -> list[tuple[Value, Value]]:
    """Lets a Loop carry only what changes and is read; returns values and those now read instead.

    Exporters carry weights through loops. Taken from outside they are constants in the body.
    """
    if node.op.name != "Loop" or node.op.domain:
        return []
    body: Graph = node.attrs["body"]
    freed: list[tuple[Value, Value]] = []
    dropped: list[int] = []
    for position, outer in enumerate(node.inputs[2:]):
        inner, final = body.inputs[2 + position], node.outputs[position]
        if outer is None:
            continue
        if _origin(body.outputs[1 + position]) is inner and _may_replace(outer, (inner, final)):
            body.replace(inner, outer)
            node.graph.replace(final, outer)
            freed += (inner, outer), (final, outer)
            dropped.append(position)
        elif not inner.is_used and not final.is_used:
            dropped.append(position)
    if dropped:
        drop_carried(node, body, frozenset(dropped))
    return freed


def hoist(node: Node) -> list[Node]:
    """Moves what a Loop would compute anew in each pass in front of it; returns those nodes.

    Only out of one that runs at all: else they might fail, or cost, for nothing.
    """
    if node.op.name != "Loop" or node.op.domain or not _runs(node):
        return []
    body, graph = node.attrs["body"], node.graph
    inside = set(body.inputs)
    moved: dict[Node, None] = {}
    for inner in body.sorted_nodes():
        # Sizes of our own ops may be bound in each pass, without any input that says so.
        is_fixed = inner.op.is_pure and not inner.op.has_bodies and inner.op.domain != INTERNAL
        if not is_fixed or any(v in inside for v in inner.inputs):
            inside.update(inner.outputs)
            continue
        moved[inner] = None
    graph.adopt(moved)
    guards = [g for g in body.scope.found if g.node in moved]
    graph.scope.found.extend(guards)
    body.scope.found = [g for g in body.scope.found if g.node not in moved]
    return list(moved)


def _runs(node: Node) -> bool:
    return all(v is None or (v.tensor.ints or (0,))[0] > 0 for v in node.inputs[:2])


def _origin(value: Value) -> Value:
    while value.op == "Identity" and value.node is not None and value.node.inputs[0] is not None:
        value = value.node.inputs[0]
    return value


def _may_replace(new: Value, old: Iterable[Value]) -> bool:
    return new.fact is not None and all(
        v.fact is not None and refines(new.fact, v.fact) for v in old
    )


def drop_carried(node: Node, body: Graph, positions: frozenset[int]) -> None:
    """Takes out carried values that nobody reads, inside or after the loop."""
    # A Loop and its body have two inputs, the trip count and the condition, before the carried.
    inputs = [v for slot, v in enumerate(node.inputs) if slot - 2 not in positions]
    node.graph.replace_inputs(node, inputs)
    node.graph.drop_outputs(node, positions)
    body.set_inputs(v for slot, v in enumerate(body.inputs) if slot - 2 not in positions)
    kept = [i for i in range(len(body.outputs)) if i - 1 not in positions]
    body.set_outputs([body.outputs[i] for i in kept], [body.declared[i] for i in kept])
