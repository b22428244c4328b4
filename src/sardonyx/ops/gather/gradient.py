"""Gradients of reading and writing at indices: reading becomes writing, and writing reading."""

from __future__ import annotations

from sardonyx.errors import NotImplemented
from sardonyx.graph.dtype import I64
from sardonyx.graph.graph import Node, Value, given
from sardonyx.ops.gradients import GradientBuilder, gradient, ranked
from sardonyx.ops.inference import axis_of

Grads = list[Value | None]


@gradient("Gather")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    x, index = given(node, 0), given(node, 1)
    return put(b, x, index, dy, axis_of(node.attrs["axis"], ranked(x).rank))


def put(b: GradientBuilder, x: Value, index: Value, dy: Value, axis: int) -> Value:
    """Zeros of the shape of `x`, with slices added at indices along an axis."""
    n_index, rank = ranked(index).rank, ranked(x).rank
    places = b.Unsqueeze(b.cast(index, I64), b.ints(-1))
    if axis == 0:
        return b.ScatterND(b.zeros(x), places, dy, reduction=b"add")
    to_front = (axis, *(i for i in range(rank) if i != axis))
    zeros = b.zeros(b.Transpose(x, perm=to_front))
    first = (*range(axis, axis + n_index), *range(axis), *range(axis + n_index, rank - 1 + n_index))
    moved = b.ScatterND(zeros, places, b.Transpose(dy, perm=first), reduction=b"add")
    return b.Transpose(moved, perm=tuple(to_front.index(i) for i in range(rank)))


@gradient("GatherElements")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    x, index = given(node, 0), given(node, 1)
    axis = node.attrs["axis"]
    return b.ScatterElements(b.zeros(x), index, dy, axis=axis, reduction=b"add")


@gradient("GatherND")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    x, index = given(node, 0), given(node, 1)
    n_batch = node.attrs["batch_dims"]
    if n_batch:
        index = _with_batch(b, index, n_batch)
    return b.ScatterND(b.zeros(x), index, dy, reduction=b"add")


def _with_batch(b: GradientBuilder, index: Value, n_batch: int) -> Value:
    """Indices that name their place in the batch too."""
    rank = ranked(index).rank
    sizes = b.shape(index)
    outer = b.Concat(b.Slice(sizes, b.ints(0), b.ints(rank - 1)), b.ints(1), axis=0)
    columns: list[Value] = []
    for i in range(n_batch):
        count = b.Squeeze(b.Slice(sizes, b.ints(i), b.ints(i + 1)), b.ints(0))
        places = b.Range(b.const(0, I64), count, b.const(1, I64))
        beside = [1] * rank
        beside[i] = -1
        columns.append(b.Expand(b.Reshape(places, b.ints(*beside)), outer))
    return b.Concat(*columns, index, axis=-1)


@gradient("ScatterElements")
def _(b: GradientBuilder, node: Node, dy: Value) -> Grads:
    index, updates, axis = given(node, 1), given(node, 2), node.attrs["axis"]
    read = b.GatherElements(dy, index, axis=axis)
    if _adds(node):
        return [dy, None, read]
    return [b.ScatterElements(dy, index, b.zeros(updates), axis=axis), None, read]


@gradient("ScatterND")
def _(b: GradientBuilder, node: Node, dy: Value) -> Grads:
    index, updates = given(node, 1), given(node, 2)
    read = b.GatherND(dy, index)
    return [dy if _adds(node) else b.ScatterND(dy, index, b.zeros(updates)), None, read]


def _adds(node: Node) -> bool:
    """Whether a node adds what it writes; other reductions have no gradient."""
    reduction = node.attrs["reduction"]
    if reduction not in (b"none", b"add"):
        raise NotImplemented(
            f"{node.op} with reduction {reduction.decode()} has no gradient",
            hint="it has one with none or add",
        )
    return bool(reduction == b"add")


@gradient("Compress")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    x, condition, axis = given(node, 0), given(node, 1), node.attrs["axis"]
    index = b.Reshape(b.NonZero(condition), b.ints(-1))
    if axis is not None:
        return put(b, x, index, dy, axis_of(axis, ranked(x).rank))
    flat = b.Reshape(x, b.ints(-1))
    return b.reshape(put(b, flat, index, dy, 0), x)


@gradient("OneHot")
def _(b: GradientBuilder, node: Node, dy: Value) -> Grads:
    """Of the two values: what lies where an index is not, and where it is."""
    index, depth, values = given(node, 0), given(node, 1), given(node, 2)
    hot = b.OneHot(index, depth, b.const([0, 1], values.tensor.dtype), axis=node.attrs["axis"])
    on, whole = (b.ReduceSum(x, keepdims=0) for x in (b.Mul(dy, hot), dy))
    pair = (b.Unsqueeze(x, b.ints(0)) for x in (b.Sub(whole, on), on))
    return [None, None, b.Concat(*pair, axis=0)]
