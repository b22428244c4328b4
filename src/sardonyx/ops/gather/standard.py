"""Ops that read or write elements at indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, ShapeError
from sardonyx.graph.dim import product
from sardonyx.graph.dtype import BOOL, IEEE, INDEX, INTS, by_name
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op, optional
from sardonyx.ops.arrays import Array, narrow, wide
from sardonyx.ops.inference import axis_of
from sardonyx.ops.sizes import (
    CLASSIC,
    SIZES,
    STORED,
    allocatable,
    checked,
    moving,
    number_in,
    owned,
)


def counted(indices: Array, size: int, axis: int) -> Array:
    """Indices counted from the front; one outside the axis is an error."""
    indices = indices.astype(np.int64)
    if indices.size:
        low, high = int(indices.min()), int(indices.max())
        if low < -size or high >= size:
            wrong = low if low < -size else high
            raise InvalidArgument(f"index {wrong} is outside [{-size}, {size}) of axis {axis}")
    return np.where(indices < 0, indices + size, indices)


gather = Op(
    "Gather",
    13,
    "data:T indices:I",
    "output:T",
    attrs={"axis": 0},
    types={"T": CLASSIC, "I": INDEX},
)


@gather.infer
def _(g: Scope, x: Fact, indices: Fact, *, axis: int) -> Fact:
    axis = axis_of(axis, x.rank)
    dims = (*x.dims[:axis], *indices.dims, *x.dims[axis + 1 :])
    return x.shaped(checked(g, dims, "the output"))


def _gather(x: Array, indices: Array, *, axis: int) -> Array:
    axis = axis_of(axis, x.ndim)
    where = counted(indices, x.shape[axis], axis)
    return np.asarray(np.take(x, where, axis), x.dtype)


gather.symbolic(moving(gather.reference(_gather)))

gather_elements = Op(
    "GatherElements",
    13,
    "data:T indices:I",
    "output:T",
    attrs={"axis": 0},
    types={"T": CLASSIC, "I": INDEX},
)


def _check_grid(g: Scope, x: Fact, indices: Fact, axis: int) -> None:
    """Indices have the data's rank and, on all axes but one, no more entries than it."""
    if x.rank != indices.rank:
        raise ShapeError(f"indices have rank {indices.rank}, and the data has rank {x.rank}")
    axis = axis_of(axis, x.rank)
    for i, (d, n) in enumerate(zip(x.dims, indices.dims, strict=True)):
        if i != axis:
            g.at_least(d, n, f"dim {i} of the indices is larger than the data's")


@gather_elements.infer
def _(g: Scope, x: Fact, indices: Fact, *, axis: int) -> Fact:
    _check_grid(g, x, indices, axis)
    return x.shaped(indices.dims)


def _gather_elements(x: Array, indices: Array, *, axis: int) -> Array:
    return x[_grid(x, indices, axis_of(axis, x.ndim))]


def _grid(x: Array, indices: Array, axis: int) -> tuple[Array, ...]:
    """Index arrays of every axis: one is given, the others run along the indices' own shape."""
    own = list(np.ogrid[tuple(slice(n) for n in indices.shape)])
    own[axis] = counted(indices, x.shape[axis], axis)
    return tuple(own)


gather_elements.symbolic(moving(gather_elements.reference(_gather_elements)))

gather_nd = Op(
    "GatherND",
    13,
    "data:T indices:I",
    "output:T",
    attrs={"batch_dims": 0},
    types={"T": CLASSIC, "I": SIZES},
)


@gather_nd.infer
def _(g: Scope, x: Fact, indices: Fact, *, batch_dims: int) -> Fact:
    if not 0 <= batch_dims < min(x.rank, indices.rank):
        raise ShapeError(
            f"batch_dims {batch_dims} is outside [0, {min(x.rank, indices.rank)}), "
            f"the lesser rank of {x} and {indices}"
        )
    for i in range(batch_dims):
        g.equal(x.dims[i], indices.dims[i], f"batch dim {i} of data and indices differ")
    width = indices.dims[-1]
    if not isinstance(width, int):
        return x.shaped(None)
    if width > x.rank - batch_dims:  # with 0, as onnxruntime has it, each is all of the data
        raise ShapeError(
            f"index tuples of {width} do not fit {x.rank - batch_dims} dims of the data"
        )
    return x.shaped((*indices.dims[:-1], *x.dims[batch_dims + width :]))


def _columns(x: Array, indices: Array, batch_dims: int) -> tuple[Array, ...]:
    """Index arrays of an axis of size 1, put before all others, and of those that tuples index."""
    shape, width = indices.shape[:-1], indices.shape[-1]
    if width > x.ndim - batch_dims:
        raise InvalidArgument(f"index tuples of {width} do not fit data of shape {x.shape}")
    batch = [
        np.arange(shape[i]).reshape((-1,) + (1,) * (len(shape) - i - 1)) for i in range(batch_dims)
    ]
    given = [
        counted(indices[..., i], x.shape[batch_dims + i], batch_dims + i) for i in range(width)
    ]
    return (np.zeros(shape, np.int64), *batch, *given)


def _gather_nd(x: Array, indices: Array, *, batch_dims: int) -> Array:
    return np.asarray(x[None][_columns(x, indices, batch_dims)], x.dtype)


gather_nd.symbolic(moving(gather_nd.reference(_gather_nd)))

_REDUCTIONS: Final[dict[bytes, Any]] = {
    b"add": np.add,
    b"mul": np.multiply,
    b"max": np.maximum,
    b"min": np.minimum,
}


def _check_reduction(x: Fact, reduction: bytes) -> None:
    if reduction == b"none":
        return
    if reduction not in _REDUCTIONS:
        shown = reduction.decode(errors="replace")
        raise ShapeError(f"there is no reduction {shown}; there are none, add, mul, max and min")
    if x.dtype.kind in ("string", "bool") or (
        x.dtype.kind == "complex" and reduction in (b"max", b"min")
    ):
        raise ShapeError(f"the reduction {reduction.decode()} is not defined on {x.dtype}")


def _write(x: Array, where: tuple[Array, ...], updates: Array, reduction: bytes) -> Array:
    """A copy of x with updates written, or reduced into it one after the other."""
    if reduction == b"none":
        out = owned(x)
        out[where] = updates
        return out
    out = owned(wide(x))
    with np.errstate(all="ignore"):
        _REDUCTIONS[reduction].at(out, where, wide(updates))
    return np.asarray(narrow(out, x.dtype))


scatter_elements = Op(
    "ScatterElements",
    18,
    "data:T indices:I updates:T",
    "output:T",
    attrs={"axis": 0, "reduction": b"none"},
    types={"T": CLASSIC, "I": INDEX},
)


@scatter_elements.infer
def _(g: Scope, x: Fact, indices: Fact, updates: Fact, *, axis: int, reduction: bytes) -> Fact:
    _check_reduction(x, reduction)
    _check_grid(g, x, indices, axis)
    if updates.rank != indices.rank:
        raise ShapeError(f"updates {updates} and indices {indices} differ in rank")
    for i, (a, b) in enumerate(zip(updates.dims, indices.dims, strict=True)):
        g.equal(a, b, f"dim {i} of updates and indices differ")
    return x.plain()


@scatter_elements.reference
def _(x: Array, indices: Array, updates: Array, *, axis: int, reduction: bytes) -> Array:
    return _write(x, _grid(x, indices, axis_of(axis, x.ndim)), updates, reduction)


scatter_nd = Op(
    "ScatterND",
    18,
    "data:T indices:I updates:T",
    "output:T",
    attrs={"reduction": b"none"},
    types={"T": CLASSIC, "I": SIZES},
)


@scatter_nd.infer
def _(g: Scope, x: Fact, indices: Fact, updates: Fact, *, reduction: bytes) -> Fact:
    _check_reduction(x, reduction)
    if x.rank < 1 or indices.rank < 1:
        raise ShapeError(f"data {x} and indices {indices} have rank 1 or more")
    width = indices.dims[-1]
    if not isinstance(width, int):
        return x.plain()
    if width > x.rank:
        raise ShapeError(f"index tuples of {width} do not fit data of rank {x.rank}")
    wanted = (*indices.dims[:-1], *x.dims[width:])
    if updates.rank != len(wanted):
        raise ShapeError(f"updates {updates} have rank {updates.rank}, not {len(wanted)}")
    for i, (a, b) in enumerate(zip(updates.dims, wanted, strict=True)):
        g.equal(a, b, f"dim {i} of the updates does not fit the indices")
    return x.plain()


@scatter_nd.reference
def _(x: Array, indices: Array, updates: Array, *, reduction: bytes) -> Array:
    wanted = indices.shape[:-1] + x.shape[indices.shape[-1] :]
    if updates.shape != wanted:
        raise InvalidArgument(f"updates have the shape {updates.shape}, not {wanted}")
    return _write(x[None], _columns(x, indices, 0), updates, reduction).reshape(x.shape)


def _sizes_written(write: Callable[..., Array]) -> Callable[..., Array | None]:
    """The symbolic rule of a scatter: sizes may be replaced, not reduced."""

    def run(x: Array, indices: Array, updates: Array, *, reduction: bytes, **attrs: Any) -> Any:
        if reduction != b"none":
            return None

        def ordered(data: Array, new: Array, where: Array) -> Array:
            return write(data, where, new, reduction=reduction, **attrs)

        return moving(ordered, data=2)(x, updates, indices)

    return run


for _op in (scatter_elements, scatter_nd):
    assert _op.reference_rule is not None
    _op.symbolic(_sizes_written(_op.reference_rule))

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
    if mode not in (b"linear", b"circular"):
        raise ShapeError(
            f"there is no mode {mode.decode(errors='replace')}: linear and circular are"
        )
    axis = axis_of(axis, x.rank)
    if axis == 0 or update.rank != x.rank:
        raise ShapeError(f"axis {axis} of {x} takes no update {update}; axis 0 is the batch")
    for i, (d, n) in enumerate(zip(x.dims, update.dims, strict=True)):
        if i == axis:
            g.at_least(d, n, "the update is longer than the cache")
        else:
            g.equal(d, n, f"dim {i} of cache and update differ")
    if starts is not None:
        g.equal(product(starts.dims), x.dims[0], "write_indices has one index per batch entry")
    return x.plain()


@tensor_scatter.reference
def _(x: Array, update: Array, starts: Array | None, *, axis: int, mode: bytes) -> Array:
    axis = axis_of(axis, x.ndim)
    size, count = x.shape[axis], update.shape[axis]
    first = np.zeros(x.shape[0], np.int64) if starts is None else starts.reshape(-1)
    places = first[:, None] + np.arange(count)
    if mode == b"circular":
        places = places % max(size, 1)
    elif places.size and not (places.min() >= 0 and places.max() < size):
        raise InvalidArgument(
            f"{count} entries from {int(first.min())} to {int(first.max())} on do not fit "
            f"into {size} of axis {axis}"
        )
    out = owned(x)
    rows = np.arange(x.shape[0])[:, None]
    np.moveaxis(out, axis, 1)[rows, places] = np.moveaxis(update, axis, 1)
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
    g.equal(product(values.dims), 2, "values are what is off and what is on")
    g.equal(product(depth.dims), 1, "depth is one number")
    known = number_in(depth)
    if isinstance(known, float):
        known = int(known)
    dims = list(indices.dims)
    dims.insert(axis, g.fresh("depth") if known is None else known)
    return values.shaped(checked(g, dims, "the output"))


@one_hot.reference
def _(indices: Array, depth: Array, values: Array, *, axis: int) -> Array:
    axis = axis_of(axis, indices.ndim + 1)
    count = int(depth.reshape(-1)[0])
    shape = list(indices.shape)
    shape.insert(axis, count)
    allocatable(shape, values.dtype, "the output")
    with np.errstate(invalid="ignore"):
        where = indices.astype(np.int64)
    where = np.expand_dims(np.where(where < 0, where + count, where), axis)
    places = np.arange(count).reshape((-1,) + (1,) * (indices.ndim - axis))
    off, on = values.reshape(-1)
    return np.where(places == where, np.array(on, values.dtype), np.array(off, values.dtype))


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
        raise ShapeError(f"the condition is a vector, not {condition}")
    axis = None if axis is None else axis_of(axis, x.rank)
    size = product(x.dims) if axis is None else x.dims[axis]
    known = condition.ints
    if known is not None and isinstance(size, int):
        kept: Any = sum(known[:size])
    else:
        kept = g.fresh("kept")
    if axis is None:
        return x.shaped((kept,))
    return x.shaped((*x.dims[:axis], kept, *x.dims[axis + 1 :]))


@compress.reference
def _(x: Array, condition: Array, *, axis: int | None) -> Array:
    axis = None if axis is None else axis_of(axis, x.ndim)
    size = x.size if axis is None else x.shape[axis]
    return np.compress(condition[:size], x, axis)


OPS: Final = (
    gather, gather_elements, gather_nd, scatter_elements, scatter_nd, tensor_scatter, one_hot,
    compress,
)  # fmt: skip
