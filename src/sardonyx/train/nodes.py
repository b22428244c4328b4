"""Gradient nodes of a model: each gives way to the backward part that it asks for."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.base.records import replace
from sardonyx.errors import InvalidGraph, NotImplemented
from sardonyx.graph.copy import copied
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.infer import infer_node
from sardonyx.load.gradient_nodes import asked
from sardonyx.load.model import Model
from sardonyx.train.backward import Backward, Gradients, flow, takes_gradients
from sardonyx.train.prepare import prepare


def with_gradients(model: Model) -> Model:
    """Replace the Gradient nodes of a loaded model; its graph is not inferred yet."""
    if not model.has_gradient_nodes:
        return model
    expand(model.graph)
    return replace(model, graph=copied(model.graph), has_gradient_nodes=False)


def expand(graph: Graph) -> None:
    """Puts the backward part in the place of each node that asks for one, bodies included."""
    prepare(graph)
    for part in list(graph.family()):
        for node in part.sorted_nodes():
            if node.op is asked:
                _expand(node)


def _expand(node: Node) -> None:
    graph, n = node.graph, len(node.inputs) // 2
    values, variables = _tensors(node.inputs[:n]), _tensors(node.inputs[n : 2 * n])
    (y,) = _tensors(node.inputs[2 * n :])
    wanted = values[: len(node.outputs)]
    for value in (y, *wanted):
        if not takes_gradients(value):
            raise InvalidGraph(f"{value} is not of floats, which alone have gradients", node=node)
    forward = _between(graph, variables, y)
    copies = dict(zip(variables, values, strict=True))
    if any(new is not old for old, new in copies.items()):
        forward = _copied(graph, forward, copies)
        y = copies.get(y, y)
    b = Backward(graph)
    found = _found(b, forward, y, wanted)
    for made in b.made:
        made.is_backward = True
        made.name = made.name or node.name
    for out, value in zip(node.outputs, wanted, strict=True):
        grad = found[value] if value in found else b.zeros(value)
        if grad.node is not None and not grad.name:
            grad.name, out.name = out.name, ""
        graph.replace(out, grad)
    graph.remove(node)


def _found(b: Backward, forward: Sequence[Node], y: Value, wanted: Sequence[Value]) -> Gradients:
    """Gradients of the sum of all elements of `y`."""
    one = b.const(1, y.tensor.dtype)
    return flow(b, forward, {y: b.expand(one, y)}, wanted)


def _tensors(values: Sequence[Value | None]) -> list[Value]:
    return [v for v in values if v is not None]


def _between(graph: Graph, variables: Sequence[Value], y: Value) -> list[Node]:
    """The nodes that make `y` out of the variables, which count as given, and of what else."""
    depends = set(variables)
    found: list[Node] = []
    for node in graph.sorted_nodes():
        if not depends.isdisjoint(node.reads()) and node.op is not asked:
            found.append(node)
            depends.update(v for v in node.outputs if v not in variables)
    needed, kept = {y}, []
    for node in reversed(found):
        if any(v in needed and v not in variables for v in node.outputs):
            kept.append(node)
            needed.update(node.reads())
    return kept[::-1]


def _copied(graph: Graph, nodes: Sequence[Node], copies: dict[Value, Value]) -> list[Node]:
    """The same nodes over other values."""
    made: list[Node] = []
    for node in nodes:
        if node.subgraphs:
            raise NotImplemented(f"{node.op} has no gradient", node=node)
        inputs = [v if v is None else copies.get(v, v) for v in node.inputs]
        twin = graph.add(node.op, inputs, node.attrs, len(node.outputs), node.name)
        infer_node(graph.scope, twin)
        copies.update(
            (old, new)
            for old, new in zip(node.outputs, twin.outputs, strict=True)
            if old not in copies
        )
        made.append(twin)
    return made
