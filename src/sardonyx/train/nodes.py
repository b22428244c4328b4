"""Gradient nodes of a model: each gives way to the backward part that it asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sardonyx.errors import InvalidGraph, NotImplemented
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.guard import Scope
from sardonyx.graph.infer import infer_node
from sardonyx.graph.op import GRADIENT, Op
from sardonyx.train.backward import Backward, Gradients, flow, takes_gradients
from sardonyx.train.prepare import prepare

# Inputs: the values to differentiate at, the variables that they stand for, and what they make.
asked: Final = Op("Asked", 1, "inputs:T*", "outputs:T*", domain=GRADIENT, unranked=True)


@asked.infer
def _(g: Scope, *facts: Fact) -> tuple[Fact, ...]:
    return tuple(f.plain() for f in facts[: len(facts) // 2])


def add_asked(
    graph: Graph,
    find: Callable[[str], Value | None],
    attrs: Mapping[str, Any],
    inputs: Sequence[Value | None],
    n_outputs: int,
) -> Node:
    """A node for what a Gradient of the model names; `expand` makes it."""
    xs, zs, y = (attrs.get(name) for name in ("xs", "zs", "y"))
    if not xs or not y:
        raise InvalidGraph("Gradient needs the attributes xs and y: names of values")
    named = [_named(find, name) for name in (*xs, *(zs or ()))]
    if len(inputs) != len(named) or None in inputs:
        raise InvalidGraph(
            f"Gradient names {len(named)} values in xs and zs, and has {len(inputs)} inputs",
            hint="give a value for each of xs, then for each of zs",
        )
    if n_outputs > len(xs):
        raise InvalidGraph(f"Gradient has {n_outputs} outputs, and names {len(xs)} values in xs")
    return graph.add(asked, [*inputs, *named, _named(find, y)], {}, n_outputs)


def _named(find: Callable[[str], Value | None], name: bytes) -> Value:
    text = name.decode(errors="replace")
    value = find(text)
    if value is None:
        raise InvalidGraph(
            f"Gradient names {text!r}, which nothing before it makes",
            hint="a Gradient comes after the nodes that it differentiates",
        )
    return value


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
