"""Gradients of reductions and running sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sardonyx.errors import NotImplemented
from sardonyx.graph.graph import Node, Value, given, optional
from sardonyx.ops.gradients import GradientBuilder, gradient, ranked
from sardonyx.ops.inference import axes_of


def _axes(node: Node) -> tuple[int, ...]:
    """The axes that a node reduces."""
    rank, axes = ranked(given(node, 0)).rank, optional(node, 1)
    known = () if axes is None else axes.tensor.ints
    if known is None:
        raise NotImplemented(
            f"the axes of {node.op} are known only when it runs, and its gradient needs them",
            hint="make the axes a constant of the model",
        )
    if known:
        return axes_of(known, rank)
    return () if node.attrs["noop_with_empty_axes"] else tuple(range(rank))


def _kept(b: GradientBuilder, node: Node, reduced: Value) -> Value:
    """A reduced value with the axes that were reduced, each of size 1."""
    axes = _axes(node)
    return reduced if node.attrs["keepdims"] or not axes else b.Unsqueeze(reduced, b.ints(*axes))


def _reduction(name: str, rule: Callable[[GradientBuilder, Value, Value, Value], Value]) -> None:
    """dx of y = f(x), from the builder, dy, x and y; axes are kept."""

    def run(b: GradientBuilder, node: Node, dy: Value) -> Value:
        x = given(node, 0)
        return b.expand(rule(b, _kept(b, node, dy), x, _kept(b, node, node.outputs[0])), x)

    gradient(name)(run)


_RULES: Final[tuple[tuple[str, Callable[[GradientBuilder, Value, Value, Value], Value]], ...]] = (
    ("ReduceSum", lambda b, dy, x, y: dy),
    ("ReduceL1", lambda b, dy, x, y: b.Mul(dy, b.Sign(x))),
    ("ReduceSumSquare", lambda b, dy, x, y: b.Mul(b.Mul(dy, 2.0), x)),
    ("ReduceLogSum", lambda b, dy, x, y: b.Mul(dy, b.Exp(b.Neg(y)))),
    ("ReduceLogSumExp", lambda b, dy, x, y: b.Mul(dy, b.Exp(b.Sub(x, y)))),
)
for _name, _rule in _RULES:
    _reduction(_name, _rule)


@gradient("ReduceMean")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    x = given(node, 0)
    return b.expand(b.Div(_kept(b, node, dy), b.size(x, _axes(node))), x)


@gradient("ReduceL2")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    """x / y, and 0 where all are 0."""
    x, y = given(node, 0), _kept(b, node, node.outputs[0])
    norm = b.Where(b.Equal(y, 0.0), b.const(1, y.tensor.dtype), y)
    return b.Mul(b.Div(_kept(b, node, dy), norm), x)


@gradient("ReduceMax", "ReduceMin")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    """Elements that are equal share the gradient."""
    x, axes = given(node, 0), _axes(node)
    if not axes:
        return dy
    mask = b.Equal(x, _kept(b, node, node.outputs[0]))
    count = b.ReduceSum(b.cast(mask, x.tensor.dtype), b.ints(*axes), keepdims=1)
    return b.where(mask, b.Div(_kept(b, node, dy), count))


@gradient("CumSum")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    attrs = {**node.attrs, "reverse": 1 - node.attrs["reverse"]}
    return b.CumSum(dy, given(node, 1), **attrs)
