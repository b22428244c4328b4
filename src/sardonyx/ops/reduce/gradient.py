"""Gradients of reductions, CumSum and CumProd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sardonyx.errors import NotImplemented
from sardonyx.graph.dtype import I64
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.ops.gradient_rules import LAST, GradientBuilder, gradient, ranked
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
    return b.expand(b.divided(_with_kept_dims(b, node, dy), b.size(x, _axes(node))), x)


@gradient("ReduceMax", "ReduceMin")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    """The gradient is split evenly among the elements that attain the extreme."""
    x, axes = input_of(node, 0), _axes(node)
    if not axes:
        return dy
    mask = b.Equal(x, _with_kept_dims(b, node, node.outputs[0]))
    count = b.count(mask, b.ints(*axes), x.tensor.dtype)
    return b.where(mask, b.divided(_with_kept_dims(b, node, dy), count))


@gradient("CumSum")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    attrs = {**node.attrs, "reverse": 1 - node.attrs["reverse"]}
    return b.CumSum(dy, input_of(node, 1), **attrs)


@gradient("ReduceProd")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    """dy times the product of the other elements: of those before and of those after.

    No division: it would fail for zeros, here and in second derivatives.
    """
    x, axes = input_of(node, 0), _axes(node)
    if not axes:
        return dy
    # The reduced axes come last and become one.
    order = (*(a for a in range(ranked(x).rank) if a not in axes), *axes)
    moved = b.Transpose(x, perm=order)
    kept = b.Slice(b.shape(moved), b.ints(0), b.ints(len(order) - len(axes)))
    flat = b.Reshape(moved, b.Concat(kept, b.ints(-1), axis=0))
    before, after = (b.CumProd(flat, b.const(-1, I64), exclusive=1, reverse=r) for r in (0, 1))
    others = b.reshape(b.Mul(before, after), moved)
    back = b.Transpose(others, perm=tuple(order.index(a) for a in range(len(order))))
    return b.Mul(back, _with_kept_dims(b, node, dy))


@gradient("CumProd")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    """dx_i is the product before i times s_i = dy_i + x_(i+1) s_(i+1), without any division."""
    x, axis = input_of(node, 0), input_of(node, 1)
    along = axis.tensor.ints
    if along is None:
        raise NotImplemented(
            "the axis of a CumProd is known only when it runs, and its gradient needs it",
            hint="make the axis a constant of the model",
        )
    (where,) = axes_of(along, ranked(x).rank)
    reverse = node.attrs["reverse"]
    before = b.CumProd(x, axis, exclusive=1, reverse=reverse)
    if node.attrs["exclusive"]:
        dy = _next(b, dy, where, 1, reverse)
    length = ranked(x).dims[where]
    if not isinstance(length, int):
        return b.Mul(before, _sums_of_products(b, x, dy, where, reverse))
    # Recursive doubling (Kogge and Stone, 1973): after k steps, s has the terms of 2^k elements.
    s, factor, n_terms = dy, _next(b, x, where, 1, reverse), 1
    while n_terms < length:
        s = b.Add(s, b.Mul(factor, _next(b, s, where, n_terms, reverse)))
        factor = b.Mul(factor, _next(b, factor, where, n_terms, reverse))
        n_terms *= 2
    return b.Mul(before, s)


def _next(b: GradientBuilder, x: Value, axis: int, count: int, reverse: int) -> Value:
    """Return the elements `count` further along an axis, and 0 beyond its end."""
    start, end, pads = (0, -count, (count, 0)) if reverse else (count, LAST, (0, count))
    along = b.ints(axis)
    return b.Pad(b.Slice(x, b.ints(start), b.ints(end), along), b.ints(*pads), None, along)


def _sums_of_products(b: GradientBuilder, x: Value, dy: Value, axis: int, reverse: int) -> Value:
    """Return s of an axis of dynamic size: by the products between all pairs of elements."""
    rank = ranked(x).rank
    last = (*(a for a in range(rank) if a != axis), axis)
    x, dy = (b.Transpose(v, perm=last) for v in (x, dy))
    position = b.arange(b.length(x, rank - 1))
    row = b.Unsqueeze(position, b.ints(1))
    is_after = b.Less(position, row) if reverse else b.Greater(position, row)
    rows = b.Unsqueeze(x, b.ints(-2))
    factors = b.Where(is_after, rows, b.const(1, x.tensor.dtype))  # [..., element, factor]
    products = b.CumProd(factors, b.const(-1, I64), reverse=reverse)
    is_before = b.Greater(position, row) if reverse else b.Less(position, row)
    terms = b.Mul(b.Unsqueeze(dy, b.ints(-2)), b.where(b.Not(is_before), products))
    total = b.ReduceSum(terms, b.ints(-1), keepdims=0)
    return b.Transpose(total, perm=tuple(last.index(a) for a in range(rank)))
