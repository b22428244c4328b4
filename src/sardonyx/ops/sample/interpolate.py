"""Values at fractional positions: a few weighted neighbours along each axis."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.ops.arrays import Array, is_half, narrow, wide

Taps = Sequence[tuple[Array, Array]]  # along one axis: indices and weights of the neighbours


def bounded(position: Array, size: int) -> Array:
    """Positions, with those far outside (and NaN) moved to where they still weigh nothing."""
    return np.clip(np.where(np.isnan(position), -3, position), -3, size + 2)


def linear_taps(position: Array, size: int) -> Taps:
    """Both neighbours of each position; outside the axis there is nothing."""
    position = bounded(position, size)
    low = np.floor(position)
    part = position - low
    index = low.astype(np.int64)
    return [inside(index, 1 - part, size), inside(index + 1, part, size)]


def inside(index: Array, weight: Array, size: int) -> tuple[Array, Array]:
    """The tap with no weight and no index (-1) where it lies outside the axis."""
    hit = (index >= 0) & (index < size)
    return np.where(hit, index, -1), np.where(hit, weight, 0).astype(weight.dtype)


def cubic_weights(part: Array, a: float) -> list[Array]:
    """Weights of 4 neighbours, for a position that lies `part` behind the second (Keys, 1981)."""

    def near(t: Array) -> Any:
        return ((a + 2) * t - (a + 3)) * t * t + 1

    def far(t: Array) -> Any:
        return ((a * t - 5 * a) * t + 8 * a) * t - 4 * a

    return [far(part + 1), near(part), near(1 - part), far(2 - part)]


def weigh(x: Array, axes: Sequence[Taps]) -> Array:
    """Sums x (channels, *sizes) over all combinations of the axes' taps: (channels, positions)."""
    sizes = x.shape[1:]
    flat = x.reshape(x.shape[0], -1)
    total: Any = None
    index: Any
    weight: Any
    hit: Any
    for combination in itertools.product(*axes):
        index, weight, hit = 0, 1, True
        for size, (i, w) in zip(sizes, combination, strict=True):
            index, weight, hit = index * size + np.maximum(i, 0), weight * w, hit & (i >= 0)
        # What lies outside is 0, whatever the element that stands in for it holds.
        term = np.where(hit, flat[:, index], flat.dtype.type(0)) * weight
        total = term if total is None else np.add(total, term, out=total)
    return np.asarray(total)


def interpolable(x: Array) -> Array:
    """The numbers in a type that has values in between."""
    if x.dtype.kind in "fc" or is_half(x.dtype):
        return wide(x)
    return x.astype(np.float32 if x.dtype.itemsize < 4 else np.float64)


def restored(y: Array, x: Array, *, rounds: bool = False) -> Array:
    """Interpolated numbers in the type of x; integers are rounded (half up) or cut."""
    if y.dtype == x.dtype:
        return y
    if x.dtype.kind not in "iub":
        return np.asarray(narrow(y, x.dtype))
    # A sum that should be whole may miss by some noise, and must not lose 1 for it.
    y = np.floor(y + 0.5) if rounds else np.trunc(np.round(y, 4))
    if x.dtype.kind != "b":
        y = np.clip(y, np.iinfo(x.dtype).min, np.iinfo(x.dtype).max)
    return y.astype(x.dtype)
