"""The same nodes written otherwise: other names, another order, more of them, more outputs."""

from __future__ import annotations

from random import Random

from onnx import GraphProto, NodeProto, ValueInfoProto, helper

from tests.metamorphic.variant import Variant, captured, opset, own_names, rename

IDENTITY_OF_ALL = 16  # the opset since which Identity takes lists and optionals


def renamed(v: Variant, rng: Random) -> Variant:
    """Every value and node has another name; inputs too."""
    model = v.copy()
    graph = model.graph
    given = [*graph.input, *graph.initializer]
    names = [*(x.name for x in given), *(s.values.name for s in graph.sparse_initializer)]
    table = {n: f"{v.name('/')}:{i}" for i, n in enumerate([*names, *own_names(graph)])}
    rename(graph, table)
    for i, node in enumerate(graph.node):
        node.name = v.name(f"node {i}") if rng.random() < 0.5 else ""
    feeds = {table[n]: x for n, x in v.feeds.items()}
    return v.changed(model, feeds=feeds, exact=True)


def identities(v: Variant, rng: Random) -> Variant | None:
    """An Identity on what nodes read: on all of it, or on inputs and constants."""
    model = v.copy()
    version = opset(model)
    given = {x.name for x in (*model.graph.input, *model.graph.initializer)}
    nodes: list[NodeProto] = []
    for i, node in enumerate(list(model.graph.node)):
        for j, name in enumerate(node.input):
            if name and (version >= IDENTITY_OF_ALL or name in given):
                made = v.name(f"{i}_{j}")
                nodes.append(helper.make_node("Identity", [name], [made]))
                node.input[j] = made
        nodes.append(node)
    if version < IDENTITY_OF_ALL and any(
        not i.type.HasField("tensor_type") for i in model.graph.input
    ):
        return None
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return v.changed(model)


def shown(v: Variant, rng: Random) -> Variant | None:
    """Every value is an output, so that none is fused away."""
    model = v.copy()
    have = {o.name for o in model.graph.output}
    made = [n for node in model.graph.node for n in node.output if n and n not in have]
    if not made:
        return None
    model.graph.output.extend(ValueInfoProto(name=n) for n in made)
    return v.changed(model)


def reordered(v: Variant, rng: Random) -> Variant | None:
    """The nodes in another order that keeps makers before readers."""
    model = v.copy()
    left = list(model.graph.node)
    pending = {n for node in left for n in node.output}
    nodes: list[NodeProto] = []
    while left:
        ready = [node for node in left if not captured(node) & (pending - set(node.output))]
        if not ready:
            return None
        node = rng.choice(ready)
        left.remove(node)
        pending -= set(node.output)
        nodes.append(node)
    if len(nodes) < 2:
        return None
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return v.changed(model)


def twice(v: Variant, rng: Random) -> Variant | None:
    """Every node twice, with the outputs of both."""
    model = v.copy()
    graph = model.graph
    again = GraphProto()
    again.CopyFrom(graph)
    rename(again, {n: v.name(n) for n in own_names(graph)})
    if {o.name for o in again.output} & {o.name for o in graph.output}:
        return None  # an output that is an input or a constant
    graph.node.extend(again.node)
    graph.output.extend(again.output)
    del graph.value_info[:]
    return v.changed(model, wanted=[*v.wanted, *v.wanted])
