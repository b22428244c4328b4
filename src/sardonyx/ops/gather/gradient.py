"""Gradients of gather and scatter ops: a gather's gradient is a scatter-add, and vice versa."""

from __future__ import annotations

from sardonyx.errors import NotImplemented
from sardonyx.graph.dtype import I64
from sardonyx.graph.graph import Node, Value, input_of
from sardonyx.ops.gradients import GradientBuilder, gradient, ranked
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
        shape_along = b.ints(*(-1 if axis == i else 1 for axis in range(rank)))
        columns.append(b.Expand(b.Reshape(positions, shape_along), outer))
    return b.Concat(*columns, index, axis=-1)


@gradient("ScatterElements")
def _(b: GradientBuilder, node: Node, dy: Value) -> Grads:
    index, updates, axis = input_of(node, 1), input_of(node, 2), node.attrs["axis"]
    gathered = b.GatherElements(dy, index, axis=axis)
    if _adds(node):
        return [dy, None, gathered]
    return [b.ScatterElements(dy, index, b.zeros(updates), axis=axis), None, gathered]


@gradient("ScatterND")
def _(b: GradientBuilder, node: Node, dy: Value) -> Grads:
    index, updates = input_of(node, 1), input_of(node, 2)
    gathered = b.GatherND(dy, index)
    return [dy if _adds(node) else b.ScatterND(dy, index, b.zeros(updates)), None, gathered]


def _adds(node: Node) -> bool:
    """Whether a scatter adds its updates; other reductions have no gradient."""
    reduction = node.attrs["reduction"]
    if reduction not in (b"none", b"add"):
        raise NotImplemented(
            f"{node.op} with reduction {reduction.decode()} has no gradient",
            hint="it has one with none or add",
        )
    return bool(reduction == b"add")


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
