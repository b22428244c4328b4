"""The ONNX gather and scatter ops, OneHot and Compress."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, ShapeError
from sardonyx.graph.dim import product
from sardonyx.graph.dtype import BOOL, IEEE, INTS, by_name
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op, Reference, optional
from sardonyx.ops.arrays import Array, narrow, wide
from sardonyx.ops.inference import axis_of, check_choice
from sardonyx.ops.sizes import (
    CLASSIC,
    DATA_INDEX,
    DATA_SIZES,
    SIZES,
    STORED,
    allocatable,
    checked_shape,
    owned,
    scalar_value,
    symbolic_move,
)


def normalized_indices(indices: Array, size: int, axis: int) -> Array:
    """Return non-negative indices; raise if one is outside the axis."""
    indices = indices.astype(np.int64)
    if indices.size:
        low, high = int(indices.min()), int(indices.max())
        if low < -size or high >= size:
            wrong = low if low < -size else high
            raise InvalidArgument(f"index {wrong} is outside [{-size}, {size}) of axis {axis}")
    return np.where(indices < 0, indices + size, indices)


gather = Op("Gather", 13, "data:T indices:I", "output:T", attrs={"axis": 0}, types=DATA_INDEX)


@gather.infer
def _(g: Scope, x: Fact, indices: Fact, *, axis: int) -> Fact:
    axis = axis_of(axis, x.rank)
    dims = (*x.dims[:axis], *indices.dims, *x.dims[axis + 1 :])
    return x.shaped(checked_shape(g, dims, "the output"))


@gather.symbolic
@symbolic_move
@gather.reference
def _(x: Array, indices: Array, *, axis: int) -> Array:
    axis = axis_of(axis, x.ndim)
    where = normalized_indices(indices, x.shape[axis], axis)
    return np.asarray(np.take(x, where, axis), x.dtype)


gather_elements = Op(
    "GatherElements", 13, "data:T indices:I", "output:T", attrs={"axis": 0}, types=DATA_INDEX
)


def _check_element_indices(g: Scope, x: Fact, indices: Fact, axis: int) -> None:
    """Require indices of the data's rank that are no larger on all axes but `axis`."""
    if x.rank != indices.rank:
        raise ShapeError(f"indices have rank {indices.rank}, and the data has rank {x.rank}")
    axis = axis_of(axis, x.rank)
    for i, (d, n) in enumerate(zip(x.dims, indices.dims, strict=True)):
        if i != axis:
            g.at_least(d, n, f"dim {i} of the indices is larger than the data's")


@gather_elements.infer
def _(g: Scope, x: Fact, indices: Fact, *, axis: int) -> Fact:
    _check_element_indices(g, x, indices, axis)
    return x.shaped(indices.dims)


@gather_elements.symbolic
@symbolic_move
@gather_elements.reference
def _(x: Array, indices: Array, *, axis: int) -> Array:
    return x[_element_indices(x, indices, axis_of(axis, x.ndim))]


def _element_indices(x: Array, indices: Array, axis: int) -> tuple[Array, ...]:
    """Return an index array per axis: the indices for `axis`, positions for the others."""
    own = list(np.ogrid[tuple(slice(n) for n in indices.shape)])
    own[axis] = normalized_indices(indices, x.shape[axis], axis)
    return tuple(own)


gather_nd = Op(
    "GatherND", 13, "data:T indices:I", "output:T", attrs={"batch_dims": 0}, types=DATA_SIZES
)


@gather_nd.infer
def _(g: Scope, x: Fact, indices: Fact, *, batch_dims: int) -> Fact:
    if not 0 <= batch_dims < min(x.rank, indices.rank):
        end = f"{min(x.rank, indices.rank)}), the lesser rank of {x} and {indices}"
        raise ShapeError(f"batch_dims {batch_dims} is outside [0, {end}")
    for i in range(batch_dims):
        g.equal(x.dims[i], indices.dims[i], f"batch dim {i} of data and indices differ")
    width = indices.dims[-1]
    if not isinstance(width, int):
        return x.shaped(None)
    if width > x.rank - batch_dims:  # width 0 is allowed, as in onnxruntime: it selects all
        n_dims = x.rank - batch_dims
        raise ShapeError(f"index tuples of {width} do not fit {n_dims} dims of the data")
    return x.shaped((*indices.dims[:-1], *x.dims[batch_dims + width :]))


def _nd_indices(x: Array, indices: Array, batch_dims: int) -> tuple[Array, ...]:
    """Return index arrays for x[None]: its first axis, the batch axes, and the indexed axes."""
    shape, width = indices.shape[:-1], indices.shape[-1]
    if width > x.ndim - batch_dims:
        raise InvalidArgument(f"index tuples of {width} do not fit data of shape {x.shape}")
    batch = np.ogrid[tuple(slice(n) for n in shape)][:batch_dims]
    indexed = [
        normalized_indices(indices[..., i], x.shape[batch_dims + i], batch_dims + i)
        for i in range(width)
    ]
    return (np.zeros(shape, np.int64), *batch, *indexed)


@gather_nd.symbolic
@symbolic_move
@gather_nd.reference
def _(x: Array, indices: Array, *, batch_dims: int) -> Array:
    return np.asarray(x[None][_nd_indices(x, indices, batch_dims)], x.dtype)


_REDUCTIONS: Final[dict[bytes, Any]] = {
    b"add": np.add, b"mul": np.multiply, b"max": np.maximum, b"min": np.minimum
}  # fmt: skip


def _check_reduction(x: Fact, reduction: bytes) -> None:
    if reduction == b"none":
        return
    check_choice("reduction", reduction, (b"none", *_REDUCTIONS))
    is_unordered = x.dtype.kind == "complex" and reduction in (b"max", b"min")
    if x.dtype.kind in ("string", "bool") or is_unordered:
        raise ShapeError(f"the reduction {reduction.decode()} is not defined on {x.dtype}")


def _write(x: Array, where: tuple[Array, ...], updates: Array, reduction: bytes) -> Array:
    """Return a copy of x with updates written or reduced into it, in sequence."""
    if reduction == b"none":
        out = owned(x)
        out[where] = updates
        return out
    out = owned(wide(x))
    # ufunc.at is unbuffered: updates of one index accumulate.
    with np.errstate(all="ignore"):
        _REDUCTIONS[reduction].at(out, where, wide(updates))
    return np.asarray(narrow(out, x.dtype))


scatter_elements = Op(
    "ScatterElements",
    18,
    "data:T indices:I updates:T",
    "output:T",
    attrs={"axis": 0, "reduction": b"none"},
    types=DATA_INDEX,
)


@scatter_elements.infer
def _(g: Scope, x: Fact, indices: Fact, updates: Fact, *, axis: int, reduction: bytes) -> Fact:
    _check_reduction(x, reduction)
    _check_element_indices(g, x, indices, axis)
    if updates.rank != indices.rank:
        raise ShapeError(f"updates {updates} and indices {indices} differ in rank")
    for i, (a, b) in enumerate(zip(updates.dims, indices.dims, strict=True)):
        g.equal(a, b, f"dim {i} of updates and indices differ")
    return x.without_contents()


@scatter_elements.reference
def _(x: Array, indices: Array, updates: Array, *, axis: int, reduction: bytes) -> Array:
    return _write(x, _element_indices(x, indices, axis_of(axis, x.ndim)), updates, reduction)


scatter_nd = Op(
    "ScatterND",
    18,
    "data:T indices:I updates:T",
    "output:T",
    attrs={"reduction": b"none"},
    types=DATA_SIZES,
)


@scatter_nd.infer
def _(g: Scope, x: Fact, indices: Fact, updates: Fact, *, reduction: bytes) -> Fact:
    _check_reduction(x, reduction)
    if x.rank < 1 or indices.rank < 1:
        raise ShapeError(f"data and indices must have rank 1 or more, got {x} and {indices}")
    width = indices.dims[-1]
    if not isinstance(width, int):
        return x.without_contents()
    if width > x.rank:
        raise ShapeError(f"index tuples of {width} do not fit data of rank {x.rank}")
    expected = (*indices.dims[:-1], *x.dims[width:])
    if updates.rank != len(expected):
        raise ShapeError(f"updates must have rank {len(expected)}, got {updates}")
    for i, (a, b) in enumerate(zip(updates.dims, expected, strict=True)):
        g.equal(a, b, f"dim {i} of the updates does not fit the indices")
    return x.without_contents()


@scatter_nd.reference
def _(x: Array, indices: Array, updates: Array, *, reduction: bytes) -> Array:
    expected = indices.shape[:-1] + x.shape[indices.shape[-1] :]
    if updates.shape != expected:
        raise InvalidArgument(f"updates must have the shape {expected}, got {updates.shape}")
    return _write(x[None], _nd_indices(x, indices, 0), updates, reduction).reshape(x.shape)


def _symbolic_scatter(write: Reference) -> Reference:
    """Return the symbolic rule of a scatter without reduction."""
    # symbolic_move expects the inputs whose elements move before the others.
    move = symbolic_move(lambda x, new, where, **attrs: write(x, where, new, **attrs), data=2)
    return lambda x, where, new, **attrs: (
        move(x, new, where, **attrs) if attrs["reduction"] == b"none" else None
    )


for _op in (scatter_elements, scatter_nd):
    assert _op.reference_rule is not None
    _op.symbolic(_symbolic_scatter(_op.reference_rule))

tensor_scatter = Op(
    "TensorScatter",
    24,
    "past_cache:T update:T write_indices:I?",
    "present_cache:T",
    attrs={"axis": -2, "mode": b"linear"},
    types={"T": STORED - {by_name("u2"), by_name("i2")}, "I": SIZES},
)


@tensor_scatter.infer
def _(g: Scope, x: Fact, update: Fact, starts: Fact | None, *, axis: int, mode: bytes) -> Fact:
    check_choice("mode", mode, (b"linear", b"circular"))
    axis = axis_of(axis, x.rank)
    if axis == 0 or update.rank != x.rank:
        raise ShapeError(f"update {update} does not fit axis {axis} of {x}; axis 0 is the batch")
    for i, (d, n) in enumerate(zip(x.dims, update.dims, strict=True)):
        if i == axis:
            g.at_least(d, n, "the update is longer than the cache")
        else:
            g.equal(d, n, f"dim {i} of cache and update differ")
    if starts is not None:
        g.equal(product(starts.dims), x.dims[0], "write_indices has one index per batch entry")
    return x.without_contents()


@tensor_scatter.reference
def _(x: Array, update: Array, starts: Array | None, *, axis: int, mode: bytes) -> Array:
    axis = axis_of(axis, x.ndim)
    size, count = x.shape[axis], update.shape[axis]
    first = np.zeros(x.shape[0], np.int64) if starts is None else starts.reshape(-1)
    positions = first[:, None] + np.arange(count)
    if mode == b"circular":
        positions = positions % max(size, 1)
    elif positions.size and not (positions.min() >= 0 and positions.max() < size):
        raise InvalidArgument(
            f"{count} entries from {int(first.min())} to {int(first.max())} on do not fit "
            f"into {size} of axis {axis}"
        )
    out = owned(x)
    rows = np.arange(x.shape[0])[:, None]
    np.moveaxis(out, axis, 1)[rows, positions] = np.moveaxis(update, axis, 1)
    return out


_ONE_HOT: Final = IEEE | INTS
one_hot = Op(
    "OneHot",
    28,
    "indices:I depth:D values:T",
    "output:T",
    attrs={"axis": -1},
    types={"I": _ONE_HOT, "D": _ONE_HOT, "T": CLASSIC},
)


@one_hot.infer
def _(g: Scope, indices: Fact, depth: Fact, values: Fact, *, axis: int) -> Fact:
    axis = axis_of(axis, indices.rank + 1)
    g.equal(product(values.dims), 2, "values has two elements: off and on")
    g.equal(product(depth.dims), 1, "depth is one number")
    count = scalar_value(depth)
    size = (
        g.new_dim("depth") if count is None else int(count) if isinstance(count, float) else count
    )
    dims = (*indices.dims[:axis], size, *indices.dims[axis:])
    return values.shaped(checked_shape(g, dims, "the output"))


@one_hot.reference
def _(indices: Array, depth: Array, values: Array, *, axis: int) -> Array:
    axis = axis_of(axis, indices.ndim + 1)
    count = int(depth.reshape(-1)[0])
    shape = (*indices.shape[:axis], count, *indices.shape[axis:])
    allocatable(shape, values.dtype, "the output")
    with np.errstate(invalid="ignore"):
        where = indices.astype(np.int64)
    # Indices outside [-depth, depth) match no position, so that all their values are off.
    where = np.expand_dims(np.where(where < 0, where + count, where), axis)
    positions = np.arange(count).reshape((-1,) + (1,) * (indices.ndim - axis))
    off, on = values.reshape(-1)
    return np.where(positions == where, np.array(on, values.dtype), np.array(off, values.dtype))


compress = Op(
    "Compress",
    28,
    "input:T condition:B",
    "output:T",
    attrs={"axis": optional("int")},
    types={"T": CLASSIC, "B": frozenset((BOOL,))},
)


@compress.infer
def _(g: Scope, x: Fact, condition: Fact, *, axis: int | None) -> Fact:
    if condition.rank != 1:
        raise ShapeError(f"the condition must be a vector, got {condition}")
    axis = None if axis is None else axis_of(axis, x.rank)
    size = product(x.dims) if axis is None else x.dims[axis]
    if condition.ints is not None and isinstance(size, int):
        count: Any = sum(condition.ints[:size])
    else:
        count = g.new_dim("kept")
    if axis is None:
        return x.shaped((count,))
    return x.shaped((*x.dims[:axis], count, *x.dims[axis + 1 :]))


@compress.reference
def _(x: Array, condition: Array, *, axis: int | None) -> Array:
    axis = None if axis is None else axis_of(axis, x.ndim)
    size = x.size if axis is None else x.shape[axis]
    return np.compress(condition[:size], x, axis)


OPS: Final = (
    gather, gather_elements, gather_nd, scatter_elements, scatter_nd, tensor_scatter, one_hot,
    compress,
)  # fmt: skip
