"""Interpolation at fractional positions by weighted neighbours (taps) along each axis."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.ops.arrays import Array, is_half, narrow, wide

Taps = Sequence[tuple[Array, Array]]  # along one axis: indices and weights of the neighbours


def clamp_positions(position: Array, size: int) -> Array:
    """Clamp positions far outside (and NaN) to where all their taps are still outside."""
    return np.clip(np.where(np.isnan(position), -3, position), -3, size + 2)


def linear_taps(position: Array, size: int) -> Taps:
    """Return the two linear taps of each position, with zeros outside the axis."""
    position = clamp_positions(position, size)
    low = np.floor(position)
    fraction = position - low
    index = low.astype(np.int64)
    return [zero_outside(index, 1 - fraction, size), zero_outside(index + 1, fraction, size)]


def zero_outside(index: Array, weight: Array, size: int) -> tuple[Array, Array]:
    """Set index -1 and weight 0 where a tap is outside the axis."""
    is_inside = (index >= 0) & (index < size)
    return np.where(is_inside, index, -1), np.where(is_inside, weight, 0).astype(weight.dtype)


def cubic_weights(fraction: Array, a: float) -> list[Array]:
    """Return the weights of 4 neighbours by Keys' cubic convolution (1981; a = -0.5: Catmull-Rom).

    `fraction` is the position's distance from the second neighbour.
    """

    def near(t: Array) -> Any:
        return ((a + 2) * t - (a + 3)) * t * t + 1

    def far(t: Array) -> Any:
        return ((a * t - 5 * a) * t + 8 * a) * t - 4 * a

    return [far(fraction + 1), near(fraction), near(1 - fraction), far(2 - fraction)]


def weighted_sum(x: Array, axes: Sequence[Taps]) -> Array:
    """Sum x (channels, *sizes) over all combinations of the axes' taps: (channels, positions)."""
    sizes = x.shape[1:]
    flat = x.reshape(x.shape[0], -1)
    total: Any = None
    for combination in itertools.product(*axes):
        index: Any = 0
        weight: Any = 1
        is_inside: Any = True
        for size, (i, w) in zip(sizes, combination, strict=True):
            index = index * size + np.maximum(i, 0)
            weight, is_inside = weight * w, is_inside & (i >= 0)
        # Outside is 0 even where the substitute element is inf or NaN.
        term = np.where(is_inside, flat[:, index], flat.dtype.type(0)) * weight
        total = term if total is None else np.add(total, term, out=total)
    return np.asarray(total)


def interpolable(x: Array) -> Array:
    """Return the numbers in a float type."""
    if x.dtype.kind in "fc" or is_half(x.dtype):
        return wide(x)
    return x.astype(np.float32 if x.dtype.itemsize < 4 else np.float64)


def from_interpolable(y: Array, x: Array, *, rounds: bool = False) -> Array:
    """Return interpolated numbers in the type of x; integers are rounded half up or truncated."""
    if y.dtype == x.dtype:
        return y
    if x.dtype.kind not in "iub":
        return np.asarray(narrow(y, x.dtype))
    # Rounding to 4 decimals first: an integer minus floating-point noise must not lose 1.
    y = np.floor(y + 0.5) if rounds else np.trunc(np.round(y, 4))
    if x.dtype.kind != "b":
        y = np.clip(y, np.iinfo(x.dtype).min, np.iinfo(x.dtype).max)
    return y.astype(x.dtype)
