"""Sampling at the positions of a grid, and grids made by affine maps."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument
from sardonyx.ops.arrays import Array, as_ints, narrow, wide
from sardonyx.ops.sample.interpolate import (
    Taps,
    bounded,
    cubic_weights,
    inside,
    interpolable,
    restored,
    weigh,
)

CUBIC_A: Final = -0.75  # what ONNX fixes for GridSample
MAX_POINTS: Final = 1 << 40


def grid_sample(x: Array, grid: Array, **attrs: Any) -> Array:
    """The reference of GridSample."""
    sizes, outs = x.shape[2:], grid.shape[1:-1]
    if 0 in sizes and math.prod(outs):
        raise InvalidArgument(f"an image of sizes {sizes} has nothing to sample")
    how = (attrs["mode"], attrs["padding_mode"])
    is_nearest = how[0] == b"nearest"
    value = x if is_nearest else interpolable(x)
    y = np.empty((*x.shape[:2], math.prod(outs)), value.dtype)
    for image in range(x.shape[0] if y.size else 0):
        points = wide(grid[image]).reshape(-1, len(sizes))
        axes = []
        for i, size in enumerate(sizes):
            span = (0.0, size - 1.0) if attrs["align_corners"] else (-0.5, size - 0.5)
            # The innermost axis comes first in the grid.
            place = _denormal(points[:, len(sizes) - 1 - i], span)
            axes.append(_taps(place, size, span, how))
        y[image] = _pick(value[image], axes) if is_nearest else weigh(value[image], axes)
    return restored(y.reshape(*x.shape[:2], *outs), x)


def _denormal(point: Array, span: tuple[float, float]) -> Array:
    """Positions between -1 and 1 as positions between the ends of a span."""
    kind = point.dtype.type
    return np.asarray((point + kind(1)) / kind(2) * kind(span[1] - span[0]) + kind(span[0]))


def _taps(place: Array, size: int, span: tuple[float, float], how: tuple[bytes, bytes]) -> Taps:
    """Neighbours of each position along one axis, and their weights."""
    mode, padding = how
    if mode == b"nearest":
        place = np.rint(place)
    outside = (place < span[0]) | (place > span[1])
    if padding == b"border" and mode != b"cubic":  # its 16 neighbours are clamped one by one
        place = np.where(outside, np.clip(place, 0, size - 1), place)
    elif padding == b"reflection":
        place = np.where(outside, _reflect(place, span), place)
    place = bounded(place, size)
    low = np.floor(place)
    part = place - low
    index = low.astype(np.int64)
    if mode == b"nearest":
        taps = [(index, np.ones_like(part))]
    elif mode == b"linear":
        taps = [(index, 1 - part), (index + 1, part)]
    else:
        weights = cubic_weights(part, CUBIC_A)
        taps = [(index + i - 1, w.astype(part.dtype)) for i, w in enumerate(weights)]
    if padding == b"zeros":
        return [inside(i, w, size) for i, w in taps]
    if padding == b"reflection":
        taps = [(_reflect(i, span).astype(np.int64), w) for i, w in taps]
    return [(np.clip(i, 0, size - 1), w) for i, w in taps]


def _reflect(place: Array, span: tuple[float, float]) -> Array:
    """Positions mirrored at the borders until they lie between them."""
    low, high = span
    width = high - low
    if width <= 0:
        return np.zeros_like(place)
    folded = np.mod(place - low, 2 * width)
    return np.where(folded > width, 2 * width - folded, folded) + low


def _pick(x: Array, axes: list[Taps]) -> Array:
    """The one neighbour of each position, or zero (nothing, for strings) where there is none."""
    index: Any = 0
    hit: Any = True
    for size, ((i, w),) in zip(x.shape[1:], axes, strict=True):
        index, hit = index * size + np.maximum(i, 0), hit & (w != 0)
    nothing: Any = "" if x.dtype == object else x.dtype.type(0)
    return np.where(hit, x.reshape(x.shape[0], -1)[:, index], nothing)


def affine_grid(theta: Array, size: Array, *, align_corners: int) -> Array:
    """The reference of AffineGrid."""
    sizes = (as_ints(size) or ())[2:]
    if any(s < 0 for s in sizes) or math.prod(sizes) > MAX_POINTS:
        raise InvalidArgument(f"size asks for a grid of {sizes}")
    if theta.shape[1:] != (len(sizes), len(sizes) + 1):
        raise InvalidArgument(f"theta of {theta.shape} does not map {len(sizes)} axes")
    matrix = wide(theta)
    lines = [_line(s, bool(align_corners), matrix.dtype) for s in sizes]
    meshed = np.meshgrid(*lines, indexing="ij")
    base = np.stack((*reversed(meshed), np.ones_like(meshed[0])), axis=-1)
    made = base.reshape(-1, len(sizes) + 1) @ matrix.transpose(0, 2, 1)
    return np.asarray(narrow(made.reshape(theta.shape[0], *sizes, len(sizes)), theta.dtype))


def _line(count: int, align_corners: bool, dtype: Any) -> Array:
    steps = np.arange(count, dtype=np.float64)
    if align_corners:
        return (steps * (2 / max(1, count - 1)) - 1).astype(dtype)
    return ((2 * steps + 1) / max(1, count) - 1).astype(dtype)
