"""Requests for gradients, which `autodiff.nodes` expands: Gradient nodes, and gradient ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sardonyx.errors import InvalidGraph
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import GRADIENT, Op
from sardonyx.ops.builder import Builder

# Inputs: the values at which to differentiate, the differentiated variables, and the result y.
gradient_request: Final = Op(
    "GradientRequest", 1, "inputs:T*", "outputs:T*", domain=GRADIENT, unranked=True
)


@gradient_request.infer
def _(g: Scope, *facts: Fact) -> tuple[Fact, ...]:
    return tuple(f.without_contents() for f in facts[: len(facts) // 2])


def add_gradient_request(
    graph: Graph,
    find: Callable[[str], Value | None],
    attrs: Mapping[str, Any],
    inputs: Sequence[Value | None],
    n_outputs: int,
) -> Node:
    """Add a node that reads the values which a Gradient node names in its attributes."""
    xs, zs, y = (attrs.get(name) for name in ("xs", "zs", "y"))
    if not xs or not y:
        raise InvalidGraph("Gradient needs the attributes xs and y: names of values")
    named = [_named(find, name) for name in (*xs, *(zs or ()))]
    if len(inputs) != len(named) or None in inputs:
        raise InvalidGraph(
            f"Gradient names {len(named)} values in xs and zs, but has {len(inputs)} inputs",
            hint="give a value for each of xs, then for each of zs",
        )
    if n_outputs > len(xs):
        raise InvalidGraph(f"Gradient has {n_outputs} outputs, and names {len(xs)} values in xs")
    return graph.add(gradient_request, [*inputs, *named, _named(find, y)], {}, n_outputs)


def vector_jacobian(
    b: Builder,
    y: Value,
    dy: Value | None,
    xs: Sequence[Value | None],
    others: Sequence[Value | None] = (),
) -> tuple[Value, ...]:
    """Add a request for the gradients of sum(y dy) by xs, with dy and `others` as constants.

    Without dy, y is the sum itself.
    """
    values = [v for v in (*xs, dy, *others) if v is not None]
    loss = y if dy is None else b.Mul(y, dy)
    node = b.graph.add(gradient_request, [*values, *values, loss], {}, len(xs))
    b.new_nodes.append(node)
    return node.outputs


def _named(find: Callable[[str], Value | None], name: bytes) -> Value:
    text = name.decode(errors="replace")
    value = find(text)
    if value is None:
        raise InvalidGraph(
            f"Gradient names {text!r}, which nothing before it makes",
            hint="a Gradient comes after the nodes that it differentiates",
        )
    return value
