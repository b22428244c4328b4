"""TopK, NonZero and Unique."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument
from sardonyx.graph.dim import Shape, product
from sardonyx.graph.dtype import I64, NUMBERS
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op, optional
from sardonyx.ops.arrays import Array, one_int, wide
from sardonyx.ops.inference import axis_of
from sardonyx.ops.sizes import CLASSIC, SIZES, checked_shape

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
        count: Any = g.fresh("top")
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


non_zero = Op("NonZero", 13, "X:T", "Y:I", types={"T": CLASSIC, "I": SIZES}, unranked=True)


@non_zero.infer
def _(g: Scope, x: Fact) -> Fact:
    if x.shape is None:
        return Fact(I64, (g.fresh("rank"), g.fresh("nonzero")))
    if x.ints is not None:
        return Fact(I64, (x.rank, sum(1 for v in x.ints if v)))
    return Fact(I64, (x.rank, g.fresh("nonzero")))


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
    types={"T": CLASSIC, "I": SIZES},
    unranked=True,
)


@unique.infer
def _(g: Scope, x: Fact, *, axis: int | None, sorted: int) -> tuple[Fact, ...]:
    count = g.fresh("unique")
    one_each = Fact(I64, (count,))
    shape: Shape | None = (count,)
    if x.shape is None:
        return x.shaped(None if axis is not None else shape), one_each, _open_vector(g), one_each
    if axis is None:
        return x.shaped(shape), one_each, Fact(I64, (product(x.dims),)), one_each
    axis = axis_of(axis, x.rank)
    shape = (*x.dims[:axis], count, *x.dims[axis + 1 :])
    return x.shaped(shape), one_each, Fact(I64, (x.dims[axis],)), one_each


def _open_vector(g: Scope) -> Fact:
    return Fact(I64, (g.fresh("inverse"),))


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


OPS: Final = (top_k, non_zero, unique)
