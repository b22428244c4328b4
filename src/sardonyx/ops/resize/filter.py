"""Resampling along one axis: coordinate transforms, and nearest, linear and cubic filters."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.errors import InvalidArgument
from sardonyx.ops.arrays import Array
from sardonyx.ops.sample.interpolate import cubic_weights


@frozen
class AxisResize:
    """The resizing of one axis: input and output size, scale, and region of interest."""

    size: int
    out: int
    scale: float
    start: float = 0.0
    end: float = 1.0

    @property
    def resized(self) -> float:
        """The exact output size, before rounding down."""
        return self.size * self.scale


@frozen
class ResizeMode:
    """The filter attributes of a Resize."""

    mode: bytes
    transform: bytes
    nearest: bytes
    cubic_a: float
    exclude_outside: bool
    antialias: bool


# From output to input coordinates, of numpy arrays or torch tensors: arithmetic operators only.
# Numbers are Python floats, which take the type of the coordinates (float32 or float64).
CoordinateTransform = Callable[[Any, AxisResize], Any]


def _align_corners(x: Any, s: AxisResize) -> Any:
    return x * 0 if s.resized == 1 else x * ((s.size - 1) / (s.resized - 1))


def _half_pixel(x: Any, s: AxisResize) -> Any:
    return (x + 0.5) / s.scale - 0.5


def _crop(x: Any, s: AxisResize) -> Any:
    last = s.size - 1
    if s.out <= 1:
        return x * 0 + 0.5 * (s.start + s.end) * last
    return s.start * last + x * ((s.end - s.start) * last / (s.out - 1))


TRANSFORMS: Final[dict[bytes, CoordinateTransform]] = {
    b"half_pixel": _half_pixel,
    b"half_pixel_symmetric": lambda x, s: s.size / 2 * (1 - s.out / s.resized) + _half_pixel(x, s),
    b"pytorch_half_pixel": lambda x, s: _half_pixel(x, s) if s.out > 1 else x * 0,
    b"align_corners": _align_corners,
    b"asymmetric": lambda x, s: x / s.scale,
    b"tf_half_pixel_for_nn": lambda x, s: (x + 0.5) / s.scale,
    b"tf_crop_and_resize": _crop,
}
ROUNDINGS: Final[dict[bytes, Callable[[Array], Any]]] = {
    b"round_prefer_floor": lambda x: np.ceil(x - x.dtype.type(0.5)),
    b"round_prefer_ceil": lambda x: np.floor(x + x.dtype.type(0.5)),
    b"floor": np.floor,
    b"ceil": np.ceil,
}


def input_coordinates(s: AxisResize, mode: ResizeMode) -> Array:
    """Return the input coordinate of every output."""
    # Nearest-neighbour ties must fall as in float32, the type of scales.
    kind = np.float32 if mode.mode == b"nearest" else np.float64
    coordinates = np.asarray(TRANSFORMS[mode.transform](np.arange(s.out, dtype=kind), s))
    if not np.all(np.abs(coordinates) <= 2**40):  # also false for NaN
        raise InvalidArgument(f"positions on an axis of {s.size} are out of range with {s}")
    return coordinates


def resample(x: Array, axis: int, s: AxisResize, mode: ResizeMode) -> Array:
    """Resample one axis of an array."""
    if s.out == 0:
        return np.asarray(x.take(np.arange(0), axis))
    coordinates = input_coordinates(s, mode)
    if mode.mode == b"nearest":
        index = ROUNDINGS[mode.nearest](coordinates).astype(np.int64)
        return np.asarray(x.take(np.clip(index, 0, s.size - 1), axis))
    low = np.floor(coordinates)
    first, weights = _weights(coordinates - low, s, mode)
    index = low.astype(np.int64) + first + np.arange(len(weights))[:, None]
    inside = (index >= 0) & (index < s.size)
    if mode.exclude_outside:
        weights = np.where(inside, weights, 0)
        weights = weights / weights.sum(axis=0)
    weights = weights.astype(x.dtype if x.dtype.kind == "f" else np.float64)
    index = np.clip(index, 0, s.size - 1)
    shape = (-1, *(1,) * (x.ndim - 1 - axis))
    total = x.take(index[0], axis) * weights[0].reshape(shape)
    for i, w in zip(index[1:], weights[1:], strict=True):
        total += x.take(i, axis) * w.reshape(shape)
    return np.asarray(total.astype(x.dtype, copy=False))


def _weights(fraction: Array, s: AxisResize, mode: ResizeMode) -> tuple[int, Array]:
    """Return the first tap, relative to the floor of the coordinate, and the taps' weights."""
    if mode.antialias and s.scale < 1:
        return _antialiased(fraction, s.scale, mode)
    if mode.mode == b"linear":
        return 0, np.stack((1 - fraction, fraction))
    return -1, np.stack(cubic_weights(fraction, mode.cubic_a))


def _antialiased(fraction: Array, scale: float, mode: ResizeMode) -> tuple[int, Array]:
    """Return a filter widened by 1 / scale, so that downsampling weighs every input."""
    # Linear filters reach 1 input to each side, cubic ones 2, stretched by the scale.
    reach = (1 if mode.mode == b"linear" else 2) / scale
    first, last = math.floor(-reach) + 1, math.ceil(reach)
    distance = np.abs((np.arange(first, last + 1)[:, None] - fraction) * scale)
    if mode.mode == b"linear":
        weights = np.maximum(0, 1 - distance)
    else:
        whole = np.minimum(np.floor(distance), 2)
        far, near, _, _ = cubic_weights(distance - whole, mode.cubic_a)
        weights = np.where(whole == 0, near, np.where(whole == 1, far, 0))
    return first, weights / weights.sum(axis=0)
