"""References of GridSample and AffineGrid."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument
from sardonyx.ops.arrays import Array, as_ints, narrow, wide
from sardonyx.ops.sample.interpolate import (
    Taps,
    clamp_positions,
    cubic_weights,
    from_interpolable,
    interpolable,
    weighted_sum,
    zero_outside,
)

CUBIC_A: Final = -0.75  # fixed by the spec of GridSample
MAX_POINTS: Final = 1 << 40


def grid_sample(x: Array, grid: Array, **attrs: Any) -> Array:
    """The reference of GridSample."""
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


def affine_grid(theta: Array, size: Array, *, align_corners: int) -> Array:
    """The reference of AffineGrid."""
    sizes = (as_ints(size) or ())[2:]
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
