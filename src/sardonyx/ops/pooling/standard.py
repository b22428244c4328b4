"""MaxPool, AveragePool, LpPool, their global forms, and MaxUnpool."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, ShapeError
from sardonyx.graph.dim import Shape
from sardonyx.graph.dtype import F32, F64, FLOATS, I8, I64, U8
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value, input_of
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op, Reference, optional, required
from sardonyx.ops.arrays import Array, as_ints, in_wide
from sardonyx.ops.builder import Builder
from sardonyx.ops.decomposition import need
from sardonyx.ops.sizes import SIZES
from sardonyx.ops.sliding_window import (
    MAX_SPAN,
    Window,
    WindowGeometry,
    numbers,
    window_geometry,
    window_of,
)

POOL: Final[dict[str, Any]] = {
    "auto_pad": b"NOTSET",
    "ceil_mode": 0,
    "dilations": optional("ints"),
    "kernel_shape": required("ints"),
    "pads": optional("ints"),
    "strides": optional("ints"),
}


def pool_window(x_rank: int, attrs: Mapping[str, Any]) -> Window:
    """Return the pooling window for an input of this rank."""
    kernel = tuple(attrs["kernel_shape"])
    if x_rank < 3 or len(kernel) != x_rank - 2:
        raise ShapeError(
            f"kernel_shape {kernel} does not fit an input of rank {x_rank}: "
            "it has one number for each axis after batch and channels"
        )
    return window_of(kernel, attrs)


def _pooled_shape(g: Scope, x: Fact, attrs: Mapping[str, Any]) -> Shape:
    window = pool_window(x.rank, attrs)
    window.check(g, x.dims[2:])
    return (*x.dims[:2], *window.outs(x.dims[2:]))


def _geometry(x: Array, attrs: Mapping[str, Any]) -> WindowGeometry:
    return window_geometry(pool_window(x.ndim, attrs), x.shape[2:])


def _along(axis: int, part: slice) -> tuple[Any, ...]:
    """Return an index of a slice of one axis and all of the axes before it."""
    return (slice(None),) * axis + (part,)


def _broadcast_along(axis: int, rank: int, row: Array) -> Array:
    """Reshape a vector to broadcast along one axis of an array of this rank."""
    return row.reshape(-1, *(1,) * (rank - 1 - axis))


max_pool = Op(
    "MaxPool",
    22,
    "x:T",
    "y:T indices:I?",
    attrs={**POOL, "storage_order": 0},
    types={"T": FLOATS | {I8, U8}, "I": SIZES},
)


@max_pool.infer
def _(g: Scope, x: Fact, **attrs: Any) -> tuple[Fact, Fact]:
    shape = _pooled_shape(g, x, attrs)
    return Fact(x.dtype, shape), Fact(I64, shape)


@max_pool.reference
@in_wide
def _(x: Array, **attrs: Any) -> tuple[Array, Array]:
    """Max pooling is separable: axis by axis, the last first.

    In that order the first of equal elements, in row-major order, wins.
    """
    geometry = _geometry(x, attrs)
    sizes = x.shape[2:]
    # storage_order 1 counts indices in column-major order, where the first axis varies fastest.
    order = range(len(sizes)) if attrs["storage_order"] else reversed(range(len(sizes)))
    index_strides, step = {}, 1
    for i in order:
        index_strides[i] = step
        step *= sizes[i]
    images = np.arange(math.prod(x.shape[:2])) * step
    y, index = x, images.reshape(*x.shape[:2], *(1,) * len(sizes))
    for i in reversed(range(len(sizes))):
        offsets = _broadcast_along(i + 2, x.ndim, np.arange(sizes[i]) * index_strides[i])
        y, index = _max_along(y, np.broadcast_to(index + offsets, y.shape), geometry, i)
    window = pool_window(x.ndim, attrs)
    for i in range(len(sizes)):  # a window of padding alone has index 0
        is_met = _window_counts(geometry, window, i, with_pads=False) > 0
        index = index * _broadcast_along(i + 2, x.ndim, is_met)
    return y, index


def _max_along(x: Array, index: Array, geometry: WindowGeometry, i: int) -> tuple[Array, Array]:
    """Return the maximum of each window along one spatial axis, and its flat index."""
    axis = i + 2
    shape = (*x.shape[:axis], geometry.outs[i], *x.shape[axis + 1 :])
    low = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
    y, best_index = np.full(shape, low, x.dtype), np.zeros(shape, np.int64)
    # The first element of a window always wins, even if it is the type's minimum.
    is_empty = np.ones(geometry.outs[i], bool)
    for _, outs, ins in geometry.axis(i):
        new, old = x[_along(axis, ins)], y[_along(axis, outs)]
        better = ~(new <= old) & (old == old)  # NaN is larger than everything
        better |= _broadcast_along(axis, x.ndim, is_empty[outs])
        is_empty[outs] = False
        np.copyto(old, new, where=better)
        np.copyto(best_index[_along(axis, outs)], index[_along(axis, ins)], where=better)
    return y, best_index


def _window_sums(x: Array, geometry: WindowGeometry) -> Array:
    """Return the sum of each window, axis by axis (separable)."""
    for i in range(len(geometry.outs)):
        axis = i + 2
        y = np.zeros((*x.shape[:axis], geometry.outs[i], *x.shape[axis + 1 :]), x.dtype)
        for _, outs, ins in geometry.axis(i):
            y[_along(axis, outs)] += x[_along(axis, ins)]
        x = y
    return x


def _window_counts(geometry: WindowGeometry, window: Window, i: int, with_pads: bool) -> Array:
    """Return the number of elements of the windows along one axis."""
    counts = np.zeros(geometry.outs[i])
    if not with_pads:
        for _, outs, _ in geometry.axis(i):
            counts[outs] += 1
        return counts
    if window.is_same:
        return counts + geometry.kernel[i]
    # In ceil mode a window may reach beyond the padding; those elements are not counted.
    end = geometry.front[i] + geometry.ins[i] + window.ends[i]
    span = end - np.arange(geometry.outs[i]) * geometry.strides[i]
    return np.clip(-(-span // geometry.dilations[i]), 0, geometry.kernel[i])


_AVERAGE: Final = {**POOL, "count_include_pad": 0}
average_pool = Op("AveragePool", 22, "x:T", "y:T", attrs=_AVERAGE, types={"T": FLOATS})


@average_pool.infer
def _(g: Scope, x: Fact, **attrs: Any) -> Fact:
    return Fact(x.dtype, _pooled_shape(g, x, attrs))


@average_pool.reference
@in_wide
def _(x: Array, **attrs: Any) -> Array:
    window = pool_window(x.ndim, attrs)
    geometry = _geometry(x, attrs)
    y = _window_sums(x, geometry)
    count: Any = 1
    for i in range(len(geometry.outs)):
        along = _window_counts(geometry, window, i, bool(attrs["count_include_pad"]))
        count = count * _broadcast_along(i + 2, x.ndim, along)
    y /= count.astype(y.dtype)
    return y


lp_pool = Op("LpPool", 22, "x:T", "y:T", attrs={**POOL, "p": 2}, types={"T": FLOATS})


def _check_p(p: int) -> None:
    if p < 1:
        raise ShapeError(f"p must be at least 1, got {p}")


@lp_pool.infer
def _(g: Scope, x: Fact, **attrs: Any) -> Fact:
    _check_p(attrs["p"])
    return Fact(x.dtype, _pooled_shape(g, x, attrs))


def _power(x: Array, p: int) -> Array:
    return np.abs(x) if p == 1 else x * x if p == 2 else np.abs(x) ** p


def _root(total: Array, p: int) -> Array:
    return total if p == 1 else np.sqrt(total) if p == 2 else total ** total.dtype.type(1 / p)


@lp_pool.reference
@in_wide
def _(x: Array, **attrs: Any) -> Array:
    return _root(_window_sums(_power(x, attrs["p"]), _geometry(x, attrs)), attrs["p"])


# From a node, its image and the spatial axes.
_Reduction = Callable[[Builder, Node, Value, Value], Value]


def _global(name: str, reference: Reference, reduction: _Reduction, **attrs: Any) -> Op:
    """Declare a global pooling op: one window over the whole image."""
    op = Op(name, 22, "x:T", "y:T", attrs=attrs, types={"T": FLOATS})

    @op.infer
    def _(g: Scope, x: Fact, **attrs: Any) -> Fact:
        if x.rank < 2:
            raise ShapeError(f"x has rank {x.rank}, and needs batch and channels")
        _check_p(attrs.get("p", 1))
        return Fact(x.dtype, (*x.dims[:2], *(1,) * (x.rank - 2)))

    def run(x: Array, **attrs: Any) -> Array:
        image = x.reshape(*x.shape[:2], math.prod(x.shape[2:]))
        y: Array = reference(image, **attrs)
        return y.reshape(*x.shape[:2], *(1,) * (x.ndim - 2))

    op.reference(in_wide(run))

    @op.decompose
    def _(b: Builder, node: Node) -> Value:
        """Reduce over the spatial axes, in whichever layout the image has."""
        x = input_of(node, 0)
        need(x.tensor.rank > 2, "there are no spatial axes")
        return reduction(b, node, x, b.ints(*range(2, x.tensor.rank)))

    return op


def _norm(b: Builder, node: Node, x: Value, axes: Value) -> Value:
    p = node.attrs["p"]
    if p <= 2:
        return b.ReduceL1(x, axes) if p == 1 else b.ReduceL2(x, axes)
    # In float16 the powers of numbers above 40 overflow.
    wide = F64 if x.tensor.dtype is F64 else F32
    powers = b.Pow(b.Abs(b.cast(x, wide)), b.const(p, wide))
    root = b.Pow(b.ReduceSum(powers, axes), b.const(1 / p, wide))
    return b.cast(root, x.tensor.dtype)


_GLOBAL: Final = (
    _global(
        "GlobalMaxPool",
        lambda x: x.max(axis=2, initial=-np.inf),
        lambda b, node, x, axes: b.ReduceMax(x, axes),
    ),
    _global(
        "GlobalAveragePool",
        lambda x: x.sum(axis=2) / x.dtype.type(x.shape[2]),
        lambda b, node, x, axes: b.ReduceMean(x, axes),
    ),
    _global("GlobalLpPool", lambda x, p: _root(_power(x, p).sum(axis=2), p), _norm, p=2),
)

_UNPOOL: Final = {k: POOL[k] for k in ("kernel_shape", "pads", "strides")}
_TYPES: Final = {"T": FLOATS, "I": SIZES}
max_unpool = Op(
    "MaxUnpool", 22, "x:T indices:I output_shape:I?", "y:T", attrs=_UNPOOL, types=_TYPES
)


@max_unpool.infer
def _(g: Scope, x: Fact, indices: Fact, output_shape: Fact | None, **attrs: Any) -> Fact:
    natural = unpooled_shape(x.dims, attrs)
    if indices.rank != x.rank:
        raise ShapeError(f"indices have rank {indices.rank}, and x has {x.rank}")
    for i, (a, b) in enumerate(zip(x.dims, indices.dims, strict=True)):
        g.equal(a, b, f"x and indices differ along axis {i}")
    for i, size in enumerate(natural):
        g.at_least(size, 0, f"pads remove more than there is along axis {i}")
    if output_shape is None:
        return Fact(x.dtype, natural)
    if output_shape.rank != 1:
        raise ShapeError(f"output_shape must be a vector, got rank {output_shape.rank}")
    g.equal(output_shape.dims[0], x.rank, "output_shape does not have one size per axis")
    if output_shape.sym is None:
        return Fact(x.dtype, tuple(g.new_dim("unpooled") for _ in natural))
    for i, (size, least) in enumerate(zip(output_shape.sym, natural, strict=True)):
        g.at_least(size, least, f"output_shape is too small along axis {i}")
    return Fact(x.dtype, output_shape.sym)


def unpooled_shape(shape: Shape, attrs: Mapping[str, Any]) -> Shape:
    """Return the default output shape, in which indices count: the inverse of pooling."""
    window = pool_window(len(shape), attrs)
    axes = zip(shape[2:], window.strides, window.kernel, window.begins, window.ends, strict=True)
    return (*shape[:2], *((size - 1) * s + k - b - e for size, s, k, b, e in axes))


@max_unpool.reference
def _(x: Array, indices: Array, output_shape: Array | None = None, **attrs: Any) -> Array:
    natural = numbers(unpooled_shape(x.shape, attrs))
    flat = np.zeros(math.prod(natural), x.dtype)
    if indices.size and not 0 <= indices.min() <= indices.max() < flat.size:
        raise InvalidArgument(
            f"indices reach from {indices.min()} to {indices.max()}, outside [0, {flat.size})"
        )
    # Indices count in the default output shape, even if output_shape is larger.
    flat[indices.reshape(-1)] = x.reshape(-1)
    flat = flat.reshape(natural)
    shape = natural if output_shape is None else as_ints(output_shape)
    if shape == natural:
        return flat
    if any(not low <= size <= MAX_SPAN for size, low in zip(shape, natural, strict=True)):
        raise InvalidArgument(f"output_shape {shape} has a size below {natural} or over {MAX_SPAN}")
    y = np.zeros(shape, x.dtype)
    y[tuple(slice(0, n) for n in natural)] = flat
    return y


OPS: Final = (max_pool, average_pool, lp_pool, *_GLOBAL, max_unpool)
