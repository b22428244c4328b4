"""TopK, NonZero and Unique."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument
from sardonyx.graph.dim import Shape, product
from sardonyx.graph.dtype import I64, NUMBERS
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value, input_of
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op, optional
from sardonyx.ops.arrays import Array, one_int, wide
from sardonyx.ops.builder import Builder
from sardonyx.ops.decomposition import Outputs, need
from sardonyx.ops.inference import axis_of
from sardonyx.ops.sizes import DATA_SIZES, SIZES, checked_shape

top_k = Op(
    "TopK",
    24,
    "X:T K:I",
    "Values:T Indices:I",
    attrs={"axis": -1, "largest": 1, "sorted": 1},
    types={"T": NUMBERS, "I": SIZES},
)


@top_k.infer
def _(g: Scope, x: Fact, k: Fact, *, axis: int, largest: int, sorted: int) -> tuple[Fact, Fact]:
    axis = axis_of(axis, x.rank)
    g.equal(product(k.dims), 1, "K is one number")
    if k.sym is None:
        count: Any = g.new_dim("top")
    else:
        (count,) = k.sym
        g.at_least(x.dims[axis], count, f"K is more than axis {axis} has")
    dims = checked_shape(g, (*x.dims[:axis], count, *x.dims[axis + 1 :]), "the output")
    return x.shaped(dims), Fact(I64, dims)


@top_k.reference
def _(x: Array, k: Array, *, axis: int, largest: int, sorted: int) -> tuple[Array, Array]:
    axis = axis_of(axis, x.ndim)
    count, size = one_int(k, "K"), x.shape[axis]
    if not 0 <= count <= size:
        raise InvalidArgument(f"K is {count}, and axis {axis} has {size} elements")
    keys = wide(x)
    if largest:
        # A stable ascending sort of the flipped axis, flipped back, is descending with the lower
        # index first among equals.
        order = size - 1 - np.flip(np.argsort(np.flip(keys, axis), axis, kind="stable"), axis)
    else:
        order = np.argsort(keys, axis, kind="stable")
    order = np.take(order, np.arange(count), axis)
    return np.take_along_axis(x, order, axis), order.astype(np.int64)


non_zero = Op("NonZero", 13, "X:T", "Y:I", types=DATA_SIZES, unranked=True)


@non_zero.infer
def _(g: Scope, x: Fact) -> Fact:
    if x.shape is None:
        return Fact(I64, (g.new_dim("rank"), g.new_dim("nonzero")))
    if x.ints is not None:
        return Fact(I64, (x.rank, sum(1 for v in x.ints if v)))
    return Fact(I64, (x.rank, g.new_dim("nonzero")))


@non_zero.reference
def _(x: Array) -> Array:
    mask = x != "" if x.dtype.kind == "O" else x.astype(bool)
    return np.argwhere(mask).T.astype(np.int64, order="C")


@non_zero.symbolic
def _(x: Array) -> Array | None:
    if not all(isinstance(v, int) for v in x.flat):
        return None
    return np.argwhere(x.astype(bool)).T


unique = Op(
    "Unique",
    28,
    "X:T",
    "Y:T indices:I? inverse_indices:I? counts:I?",
    attrs={"axis": optional("int"), "sorted": 1},
    types=DATA_SIZES,
    unranked=True,
)


@unique.infer
def _(g: Scope, x: Fact, *, axis: int | None, sorted: int) -> tuple[Fact, ...]:
    count = g.new_dim("unique")
    one_each = Fact(I64, (count,))
    shape: Shape | None = (count,)
    if x.shape is None:
        inverse = Fact(I64, (g.new_dim("inverse"),))
        return x.shaped(None if axis is not None else shape), one_each, inverse, one_each
    if axis is None:
        return x.shaped(shape), one_each, Fact(I64, (product(x.dims),)), one_each
    axis = axis_of(axis, x.rank)
    shape = (*x.dims[:axis], count, *x.dims[axis + 1 :])
    return x.shaped(shape), one_each, Fact(I64, (x.dims[axis],)), one_each


@unique.reference
def _(x: Array, *, axis: int | None, sorted: int) -> tuple[Array, ...]:
    if axis is None:
        x, axis = x.reshape(-1), 0
    axis = axis_of(axis, x.ndim)
    first, inverse, counts = _unique_slices(_keys(x), axis)
    order = np.arange(len(first)) if sorted else np.argsort(first, kind="stable")
    rank_of = np.empty_like(order)
    rank_of[order] = np.arange(len(order))
    first = first[order]
    return np.take(x, first, axis), first, rank_of[inverse].astype(np.int64), counts[order]


def _keys(x: Array) -> Array:
    """Return numbers in the same order as x's elements, in a type that np.unique can sort."""
    if x.dtype.kind == "O":
        return np.unique(x, return_inverse=True)[1].reshape(x.shape)
    return wide(x)


def _unique_slices(x: Array, axis: int) -> tuple[Array, Array, Array]:
    """Return np.unique's (first index, inverse, counts) of the slices along an axis."""
    if x.shape[axis] and not x.size:  # all slices are empty, and therefore equal
        class_of = np.zeros(x.shape[axis], np.int64)
        return class_of[:1], class_of, np.array([len(class_of)])
    rows = np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1 if x.size else 0)
    rows = rows[:, 0] if rows.shape[1] == 1 else rows
    if not rows.size:
        none = np.empty(0, np.int64)
        return none, none, none
    _, first, inverse, counts = np.unique(
        rows, return_index=True, return_inverse=True, return_counts=True, axis=0
    )
    return first.astype(np.int64), inverse.reshape(-1), counts.astype(np.int64)


_END: Final = (1 << 63) - 1  # as the end of a Slice: to the end


@unique.decompose
def _(b: Builder, node: Node) -> Outputs:
    """Unique: sort, mark each element that differs from the one before, and compress."""
    x, outs = input_of(node, 0), node.outputs
    axis, dtype = node.attrs["axis"], x.tensor.dtype
    need(
        dtype in NUMBERS and (axis is None or x.tensor.rank == 1),
        "elements of this type or axis cannot be sorted",
    )
    flat = x if x.tensor.rank == 1 else b.Reshape(x, b.ints(-1))
    n = b.Shape(flat)
    ordered, order = b.node("TopK", flat, n, largest=0, outputs=2).outputs
    before = b.Slice(ordered, b.ints(0), b.ints(-1))
    differs = b.Not(b.Equal(b.Slice(ordered, b.ints(1), b.ints(_END)), before))
    if dtype.is_float:  # NaNs are sorted last and count as equal
        differs = b.And(differs, b.Not(b.IsNaN(before)))
    is_first = b.Slice(b.Concat(b.const([True]), differs, axis=0), b.ints(0), n)
    per_group = Value("", Fact(I64, (outs[0].tensor.dims[0],)))
    positions = b.Compress(order, is_first, axis=0, like=per_group)
    groups = b.Sub(b.CumSum(b.Cast(is_first, to=I64.onnx), b.const(0, I64)), b.const(1, I64))
    # The group number of each element, scattered back to its position before the sort.
    inverse = b.ScatterElements(order, order, groups)
    counts = _counts(b, is_first, n, per_group)
    if not node.attrs["sorted"]:
        # Not sorted: groups in the order of their first elements.
        by_position = b.node("TopK", positions, b.Shape(positions), largest=0, outputs=2)
        positions, permutation = by_position.outputs
        counts = b.Gather(counts, permutation)
        counted = b.arange(b.Size(permutation))
        inverse = b.Gather(b.ScatterElements(permutation, permutation, counted), inverse)
    results = (b.Gather(flat, positions), positions, inverse, counts)
    for value, out in zip(results, outs, strict=False):
        if value.const is None:
            value.fact = out.tensor.without_contents()
    return results


def _counts(b: Builder, is_first: Value, n: Value, like: Value) -> Value:
    """The number of elements of each group: the distance between first elements."""
    starts = b.Compress(b.arange(b.Squeeze(n)), is_first, axis=0, like=like)
    ends = b.Concat(b.Slice(starts, b.ints(1), b.ints(_END)), n, axis=0)
    return b.Sub(b.Slice(ends, b.ints(0), b.Shape(starts)), starts)


OPS: Final = (top_k, non_zero, unique)
