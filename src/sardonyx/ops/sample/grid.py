"""GridSample and AffineGrid: sampling of images at positions of a grid."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, ShapeError
from sardonyx.graph.dtype import FLOATS, STRING
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op
from sardonyx.ops.arrays import Array, as_ints, narrow, wide
from sardonyx.ops.inference import check_choice
from sardonyx.ops.sample.interpolate import (
    Taps,
    clamp_positions,
    cubic_weights,
    from_interpolable,
    interpolable,
    weighted_sum,
    zero_outside,
)
from sardonyx.ops.sizes import CLASSIC, SIZES

CUBIC_A: Final = -0.75  # fixed by the spec of GridSample
MAX_POINTS: Final = 1 << 40

grid = Op(
    "GridSample",
    22,
    "x:T grid:G",
    "y:T",
    attrs={"align_corners": 0, "mode": b"linear", "padding_mode": b"zeros"},
    types={"T": CLASSIC, "G": FLOATS},
)


@grid.infer
def _(g: Scope, x: Fact, grid: Fact, *, mode: bytes, padding_mode: bytes, **_: Any) -> Fact:
    check_choice("mode", mode, (b"linear", b"nearest", b"cubic"))
    check_choice("padding_mode", padding_mode, (b"zeros", b"border", b"reflection"))
    if x.rank < 3 or grid.rank != x.rank:
        raise ShapeError(
            f"x and grid must have the same rank, at least 3, got {x.rank} and {grid.rank}"
        )
    if x.dtype is STRING and mode != b"nearest":
        raise ShapeError("strings cannot be interpolated: only mode nearest samples them")
    g.equal(x.dims[0], grid.dims[0], "x and grid differ in batch")
    g.equal(grid.dims[-1], x.rank - 2, "the grid holds one position per spatial axis")
    return Fact(x.dtype, (*x.dims[:2], *grid.dims[1:-1]))


@grid.reference
@np.errstate(all="ignore")
def _(x: Array, grid: Array, **attrs: Any) -> Array:
    sizes, outs = x.shape[2:], grid.shape[1:-1]
    if 0 in sizes and math.prod(outs):
        raise InvalidArgument(f"an image of sizes {sizes} has nothing to sample")
    modes = (attrs["mode"], attrs["padding_mode"])
    is_nearest = modes[0] == b"nearest"
    value = x if is_nearest else interpolable(x)
    y = np.empty((*x.shape[:2], math.prod(outs)), value.dtype)
    for image in range(x.shape[0] if y.size else 0):
        points = wide(grid[image]).reshape(-1, len(sizes))
        axes = []
        for i, size in enumerate(sizes):
            span = (0.0, size - 1.0) if attrs["align_corners"] else (-0.5, size - 0.5)
            # The grid's last axis is (x, y, ...): the innermost axis first.
            position = _unnormalize(points[:, len(sizes) - 1 - i], span)
            axes.append(_taps(position, size, span, modes))
        y[image] = _pick(value[image], axes) if is_nearest else weighted_sum(value[image], axes)
    return from_interpolable(y.reshape(*x.shape[:2], *outs), x)


def _unnormalize(point: Array, span: tuple[float, float]) -> Array:
    """Map positions from [-1, 1] to a span."""
    kind = point.dtype.type
    return np.asarray((point + kind(1)) / kind(2) * kind(span[1] - span[0]) + kind(span[0]))


def _taps(
    position: Array, size: int, span: tuple[float, float], modes: tuple[bytes, bytes]
) -> Taps:
    """Return the neighbours of each position along one axis, and their weights."""
    mode, padding = modes
    if mode == b"nearest":
        position = np.rint(position)
    outside = (position < span[0]) | (position > span[1])
    if padding == b"border" and mode != b"cubic":  # cubic clamps each of its neighbours instead
        position = np.where(outside, np.clip(position, 0, size - 1), position)
    elif padding == b"reflection":
        position = np.where(outside, _reflect(position, span), position)
    position = clamp_positions(position, size)
    low = np.floor(position)
    fraction = position - low
    index = low.astype(np.int64)
    if mode == b"nearest":
        taps = [(index, np.ones_like(fraction))]
    elif mode == b"linear":
        taps = [(index, 1 - fraction), (index + 1, fraction)]
    else:
        weights = cubic_weights(fraction, CUBIC_A)
        taps = [(index + i - 1, w.astype(fraction.dtype)) for i, w in enumerate(weights)]
    if padding == b"zeros":
        return [zero_outside(i, w, size) for i, w in taps]
    if padding == b"reflection":
        taps = [(_reflect(i, span).astype(np.int64), w) for i, w in taps]
    return [(np.clip(i, 0, size - 1), w) for i, w in taps]


def _reflect(position: Array, span: tuple[float, float]) -> Array:
    """Reflect positions at the borders, repeatedly, into the span."""
    low, high = span
    width = high - low
    if width <= 0:
        return np.zeros_like(position)
    # A reflected axis is periodic with twice its width; the second half runs backwards.
    folded = np.mod(position - low, 2 * width)
    return np.where(folded > width, 2 * width - folded, folded) + low


def _pick(x: Array, axes: list[Taps]) -> Array:
    """Return the nearest neighbour of each position, or zero ("" for strings) outside."""
    index: Any = 0
    is_inside: Any = True
    for size, ((i, w),) in zip(x.shape[1:], axes, strict=True):
        index, is_inside = index * size + np.maximum(i, 0), is_inside & (w != 0)
    zero: Any = "" if x.dtype == object else x.dtype.type(0)
    return np.where(is_inside, x.reshape(x.shape[0], -1)[:, index], zero)


affine = Op(
    "AffineGrid",
    20,
    "theta:T size:I",
    "grid:T",
    attrs={"align_corners": 0},
    types={"T": FLOATS, "I": SIZES},
)


@affine.infer
def _(g: Scope, theta: Fact, size: Fact, *, align_corners: int) -> Fact:
    if theta.rank != 3 or size.rank != 1:
        raise ShapeError(f"theta must have rank 3 and size rank 1, got {theta} and {size}")
    rank, count = theta.dims[1], size.dims[0]
    n = rank if isinstance(rank, int) else count - 2 if isinstance(count, int) else None
    if n is None:
        return Fact(theta.dtype, None)
    if n not in (2, 3):
        raise ShapeError(f"theta maps {n} axes, and AffineGrid supports 2 and 3")
    g.equal(rank, n, "theta and size differ in the number of axes")
    g.equal(count, n + 2, "size holds batch, channels and the spatial sizes")
    g.equal(theta.dims[2], n + 1, "theta's last axis")
    if size.sym is None:
        return Fact(theta.dtype, (theta.dims[0], *(g.new_dim("grid") for _ in range(n)), n))
    for s in size.sym:
        g.at_least(s, 0, "size holds a negative number")
    g.equal(size.sym[0], theta.dims[0], "size and theta differ in batch")
    return Fact(theta.dtype, (theta.dims[0], *size.sym[2:], n))


@affine.reference
@np.errstate(all="ignore")
def _(theta: Array, size: Array, *, align_corners: int) -> Array:
    sizes = as_ints(size)[2:]
    if any(s < 0 for s in sizes) or math.prod(sizes) > MAX_POINTS:
        raise InvalidArgument(f"a grid of sizes {sizes} is not possible")
    if theta.shape[1:] != (len(sizes), len(sizes) + 1):
        raise InvalidArgument(f"theta of {theta.shape} does not map {len(sizes)} axes")
    matrix = wide(theta)
    lines = [_line(s, bool(align_corners), matrix.dtype) for s in sizes]
    meshed = np.meshgrid(*lines, indexing="ij")
    base = np.stack((*reversed(meshed), np.ones_like(meshed[0])), axis=-1)
    points = base.reshape(-1, len(sizes) + 1) @ matrix.transpose(0, 2, 1)
    return np.asarray(narrow(points.reshape(theta.shape[0], *sizes, len(sizes)), theta.dtype))


def _line(count: int, align_corners: bool, dtype: Any) -> Array:
    steps = np.arange(count, dtype=np.float64)
    if align_corners:
        return (steps * (2 / max(1, count - 1)) - 1).astype(dtype)
    return ((2 * steps + 1) / max(1, count) - 1).astype(dtype)


OPS: Final = (grid, affine)
