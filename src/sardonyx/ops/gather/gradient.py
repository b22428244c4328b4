"""Gradients of gather and scatter ops: a gather's gradient is a scatter-add, and vice versa."""

from __future__ import annotations

from collections.abc import Callable

from sardonyx.base.records import frozen
from sardonyx.graph.dtype import I64
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.ops.gradient_rules import GradientBuilder, gradient, ranked, wider
from sardonyx.ops.inference import axis_of

Grads = list[Value | None]


@gradient("Gather")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    x, index = input_of(node, 0), input_of(node, 1)
    return scatter_add(b, x, index, dy, axis_of(node.attrs["axis"], ranked(x).rank))


def scatter_add(b: GradientBuilder, x: Value, index: Value, dy: Value, axis: int) -> Value:
    """Return zeros of the shape of `x` with slices of dy added at indices along an axis."""
    n_index, rank = ranked(index).rank, ranked(x).rank
    index_tuples = b.Unsqueeze(b.cast(index, I64), b.ints(-1))
    if axis == 0:
        return b.ScatterND(b.zeros(x), index_tuples, dy, reduction=b"add")
    # ScatterND indexes leading axes: scatter into x with `axis` first, then transpose back.
    to_front = (axis, *(i for i in range(rank) if i != axis))
    zeros = b.zeros(b.Transpose(x, perm=to_front))
    first = (*range(axis, axis + n_index), *range(axis), *range(axis + n_index, rank - 1 + n_index))
    scattered = b.ScatterND(zeros, index_tuples, b.Transpose(dy, perm=first), reduction=b"add")
    return b.Transpose(scattered, perm=tuple(to_front.index(i) for i in range(rank)))


@gradient("GatherElements")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    x, index = input_of(node, 0), input_of(node, 1)
    axis = node.attrs["axis"]
    return b.ScatterElements(b.zeros(x), index, dy, axis=axis, reduction=b"add")


@gradient("GatherND")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    x, index = input_of(node, 0), input_of(node, 1)
    n_batch = node.attrs["batch_dims"]
    if n_batch:
        index = _with_batch(b, index, n_batch)
    return b.ScatterND(b.zeros(x), index, dy, reduction=b"add")


def _with_batch(b: GradientBuilder, index: Value, n_batch: int) -> Value:
    """Prepend the batch indices to index tuples, so that batch_dims becomes 0."""
    rank = ranked(index).rank
    sizes = b.shape(index)
    outer = b.Concat(b.Slice(sizes, b.ints(0), b.ints(rank - 1)), b.ints(1), axis=0)
    columns: list[Value] = []
    for i in range(n_batch):
        positions = b.arange(b.Squeeze(b.element(sizes, i), b.ints(0)))
        columns.append(b.Expand(b.along(positions, i, rank), outer))
    return b.Concat(*columns, index, axis=-1)


@frozen
class Scatter:
    """The positions that a scatter writes, and how it reads, adds to and combines them."""

    read: Callable[[Value], Value]
    write: Callable[..., Value]  # (data, updates, reduction)


@gradient("ScatterElements")
def _(b: GradientBuilder, node: Node, dy: Value) -> Grads:
    index, axis = input_of(node, 1), node.attrs["axis"]
    return _scatter_gradients(
        b,
        node,
        dy,
        Scatter(
            lambda x: b.GatherElements(x, index, axis=axis),
            lambda x, updates, reduction: b.ScatterElements(
                x, index, updates, axis=axis, reduction=reduction
            ),
        ),
    )


@gradient("ScatterND")
def _(b: GradientBuilder, node: Node, dy: Value) -> Grads:
    index = input_of(node, 1)
    return _scatter_gradients(
        b,
        node,
        dy,
        Scatter(
            lambda x: b.GatherND(x, index),
            lambda x, updates, reduction: b.ScatterND(x, index, updates, reduction=reduction),
        ),
    )


def _scatter_gradients(b: GradientBuilder, node: Node, dy: Value, at: Scatter) -> Grads:
    """Return the gradients of data and updates."""
    x, updates, y = input_of(node, 0), input_of(node, 2), node.outputs[0]
    reduction = node.attrs["reduction"]
    if reduction == b"none":
        return [at.write(dy, b.zeros(updates), b"none"), None, at.read(dy)]
    if reduction == b"add":
        return [dy, None, at.read(dy)]
    if reduction == b"mul":
        return _product_gradients(b, node, dy, at)
    # The gradient is split evenly among the elements that attain the extreme.
    dtype = wider(x.tensor.dtype)
    chosen = [b.Equal(x, y), b.Equal(updates, at.read(y))]
    share = b.divided(dy, at.write(*(b.cast(mask, dtype) for mask in chosen), b"add"))
    return [b.where(chosen[0], share), None, b.where(chosen[1], at.read(share))]


def _product_gradients(b: GradientBuilder, node: Node, dy: Value, at: Scatter) -> Grads:
    """Return dy times the product of all other factors, which exists if a factor is 0.

    So does its own gradient, unless two factors of one product are 0.
    """
    factors, dtype = (input_of(node, 0), input_of(node, 2)), dy.tensor.dtype
    is_zero = [b.Equal(v, b.const(0, dtype)) for v in factors]
    whole = [b.Where(z, b.const(1, dtype), v) for z, v in zip(is_zero, factors, strict=True)]
    n_zeros = at.write(*(b.cast(z, dtype) for z in is_zero), b"add")
    # Of a factor that is 0, the product of the others; where it is not, the product by itself.
    others = b.where(b.Equal(n_zeros, 1.0), b.Mul(dy, at.write(*whole, b"mul")))
    product = b.Mul(dy, node.outputs[0])
    reads: tuple[Callable[[Value], Value], ...] = (lambda v: v, at.read)
    dx, dupdates = (
        b.Where(z, read(others), b.Div(read(product), v))
        for z, v, read in zip(is_zero, whole, reads, strict=True)
    )
    return [dx, None, dupdates]


@gradient("TensorScatter")
def _(b: GradientBuilder, node: Node, dy: Value) -> Grads:
    cache, update, starts = input_of(node, 0), input_of(node, 1), optional_input(node, 2)
    axis = axis_of(node.attrs["axis"], ranked(cache).rank)
    positions = b.arange(b.length(update, axis))
    rank = ranked(update).rank
    index = b.along(positions, axis, rank)
    if starts is not None:
        index = b.Add(index, b.Reshape(b.cast(starts, I64), b.ints(-1, *(1,) * (rank - 1))))
    if node.attrs["mode"] == b"circular":
        index = b.Mod(index, b.length(cache, axis))
    read = b.GatherElements(dy, b.Expand(index, b.shape(update)), axis=axis)
    return [b.TensorScatter(dy, b.zeros(update), starts, **node.attrs), read]


@gradient("Compress")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    x, condition, axis = input_of(node, 0), input_of(node, 1), node.attrs["axis"]
    index = b.Reshape(b.NonZero(condition), b.ints(-1))
    if axis is not None:
        return scatter_add(b, x, index, dy, axis_of(axis, ranked(x).rank))
    flat = b.Reshape(x, b.ints(-1))
    return b.reshape(scatter_add(b, flat, index, dy, 0), x)


@gradient("OneHot")
def _(b: GradientBuilder, node: Node, dy: Value) -> Grads:
    """The gradients of the off and on values: sums of dy over their positions."""
    index, depth, values = input_of(node, 0), input_of(node, 1), input_of(node, 2)
    one_hot = b.OneHot(index, depth, b.const([0, 1], values.tensor.dtype), axis=node.attrs["axis"])
    on, whole = (b.ReduceSum(x, keepdims=0) for x in (b.Mul(dy, one_hot), dy))
    pair = (b.Unsqueeze(x, b.ints(0)) for x in (b.Sub(whole, on), on))
    return [None, None, b.Concat(*pair, axis=0)]
