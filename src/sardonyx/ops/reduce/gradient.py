"""Gradients of reductions and CumSum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sardonyx.errors import NotImplemented
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.ops.gradients import GradientBuilder, gradient, ranked
from sardonyx.ops.inference import axes_of


def _axes(node: Node) -> tuple[int, ...]:
    """Return the axes that a node reduces."""
    rank, axes = ranked(input_of(node, 0)).rank, optional_input(node, 1)
    static_axes = () if axes is None else axes.tensor.ints
    if static_axes is None:
        raise NotImplemented(
            f"the axes of {node.op} are known only when it runs, and its gradient needs them",
            hint="make the axes a constant of the model",
        )
    if static_axes:
        return axes_of(static_axes, rank)
    return () if node.attrs["noop_with_empty_axes"] else tuple(range(rank))


def _with_kept_dims(b: GradientBuilder, node: Node, reduced: Value) -> Value:
    """Unsqueeze a reduced value to keepdims form."""
    axes = _axes(node)
    return reduced if node.attrs["keepdims"] or not axes else b.Unsqueeze(reduced, b.ints(*axes))


def _l2(b: GradientBuilder, dy: Value, x: Value, y: Value) -> Value:
    """dy * x / y, and 0 where the norm is 0."""
    norm = b.Where(b.Equal(y, 0.0), b.const(1, y.tensor.dtype), y)
    return b.Mul(b.Div(dy, norm), x)


# dx of y = f(x) from (builder, dy, x, y), with dy and y in keepdims form.
_RULES: Final[dict[str, Callable[[GradientBuilder, Value, Value, Value], Value]]] = {
    "ReduceSum": lambda b, dy, x, y: dy,
    "ReduceL1": lambda b, dy, x, y: b.Mul(dy, b.Sign(x)),
    "ReduceL2": _l2,
    "ReduceSumSquare": lambda b, dy, x, y: b.Mul(b.Mul(dy, 2.0), x),
    "ReduceLogSum": lambda b, dy, x, y: b.Mul(dy, b.Exp(b.Neg(y))),
    "ReduceLogSumExp": lambda b, dy, x, y: b.Mul(dy, b.Exp(b.Sub(x, y))),
}


@gradient(*_RULES)
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    x, y = input_of(node, 0), _with_kept_dims(b, node, node.outputs[0])
    return b.expand(_RULES[node.op.name](b, _with_kept_dims(b, node, dy), x, y), x)


@gradient("ReduceMean")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    x = input_of(node, 0)
    return b.expand(b.Div(_with_kept_dims(b, node, dy), b.size(x, _axes(node))), x)


@gradient("ReduceMax", "ReduceMin")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    """The gradient is split evenly among the elements that attain the extreme."""
    x, axes = input_of(node, 0), _axes(node)
    if not axes:
        return dy
    mask = b.Equal(x, _with_kept_dims(b, node, node.outputs[0]))
    count = b.ReduceSum(b.cast(mask, x.tensor.dtype), b.ints(*axes), keepdims=1)
    return b.where(mask, b.Div(_with_kept_dims(b, node, dy), count))


@gradient("CumSum")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    attrs = {**node.attrs, "reverse": 1 - node.attrs["reverse"]}
    return b.CumSum(dy, input_of(node, 1), **attrs)
