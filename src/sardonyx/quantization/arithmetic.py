"""Scales and zero points from ranges, and arrays quantized by them.

`r = scale * (q - zero_point)`. Ranges always include 0, which is quantized without error.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from sardonyx.base.shared_store import Array
from sardonyx.errors import InvalidArgument
from sardonyx.quantization.quant_types import (
    FLOAT8,
    FLOAT8_E4M3FN,
    FLOAT8E4M3FN,
    UINT8,
    dtype_of,
    float_name,
    limits,
)

_LARGEST_F8: Final = 448.0  # of float8e4m3fn, which has no infinity
_BLOCK: Final = 1 << 20  # elements that are quantized at a time: temporaries stay small


def scale_and_zero_point(
    rmin: Any,
    rmax: Any,
    qmin: Any,
    qmax: Any,
    symmetric: bool = False,
    min_real_range: float | None = None,
) -> tuple[Array, Array]:
    """Return zero points and scales of ranges, one of each per element of `rmin`.

    Scales have the type of `rmax`, zero points that of `qmin`. A range that is almost empty has
    scale 1 and zero point 0.
    """
    low, high = float(qmin), float(qmax)
    if low > 0 or high < 0:
        raise ValueError(f"the quantized range {low:g} to {high:g} does not include 0")
    rmin, rmax = np.asarray(rmin), np.asarray(rmax)
    rmin = np.minimum(rmin, np.array(0, rmin.dtype))
    rmax = np.maximum(rmax, np.array(0, rmax.dtype))
    if min_real_range is not None:
        rmax = np.maximum(rmax, rmin + np.asarray(min_real_range, rmin.dtype))
    if symmetric:
        rmax = np.maximum(np.abs(rmin), np.abs(rmax))
        rmin = -rmax
    # In float64: the difference of a finite range may overflow its own type.
    exact = (rmax.astype(np.float64) - rmin.astype(np.float64)) / (high - low)
    if not (np.isfinite(exact) & (exact >= 0)).all():
        raise InvalidArgument(
            "a range is not finite: the calibration data or a weight has NaN or infinity"
        )
    is_empty = exact < smallest_scale(rmax.dtype)
    safe = np.where(is_empty, 1.0, exact)
    if symmetric:
        zero = np.full(exact.shape, np.round((low + high) / 2))
    else:
        zero = np.round(low - rmin / safe)
    zero_point = np.where(is_empty, 0.0, zero).astype(np.asarray(qmin).dtype)
    return zero_point, safe.astype(rmax.dtype)


def smallest_scale(dtype: Any) -> Any:
    """Return the smallest scale that a type holds.

    Scales of float16 may be subnormal: those of weights below 0.008 are.
    """
    limits_of = np.finfo(dtype)
    return limits_of.smallest_subnormal if dtype == np.float16 else limits_of.tiny


def float8_scale(number: int, std: Any) -> tuple[Array, Array]:
    """Return zero point and scale of values of a standard deviation, for a float8 type.

    The scale maps it to the standard deviation of all finite numbers of the type.
    """
    if number != FLOAT8E4M3FN:
        raise ValueError(f"Quantization to element_type={number} not implemented.")
    codes = np.arange(256, dtype=np.uint8).view(FLOAT8_E4M3FN.np).astype(np.float32)
    spread = np.std(codes[np.isfinite(codes)])
    return np.array(0, FLOAT8_E4M3FN.np), np.array(std / spread, dtype=np.asarray(std).dtype)


def snapped_zero_point(
    rmin: Any, rmax: Any, qmin: int = 0, qmax: int = 255, min_real_range: float | None = None
) -> tuple[Array, Array]:
    """Return zero point and scale of uint8 with the zero point at `qmin` or in the middle.

    It is `qmin` for a range without negative numbers. The scale covers the range without clipping.
    """
    low, high = int(qmin), int(qmax)
    middle = (low + high + 1) // 2
    bottom = min(float(np.squeeze(rmin)), 0.0)
    top = max(float(np.squeeze(rmax)), 0.0)
    if min_real_range is not None and min_real_range > 0:
        top = max(top, bottom + float(min_real_range))
    zero = low if bottom >= 0 else middle
    if top <= bottom:
        scale = 1.0 / max(1, high - low)
    elif zero == low:
        scale = top / (high - low)
    else:
        scale = max(-bottom / (middle - low), top / (high - middle))
    if min_real_range is not None:
        scale = max(scale, min_real_range / (high - low))
    return np.array(zero, np.uint8), np.array(scale, np.float32)


def quantized(
    number: int,
    values: Array,
    scale: Any,
    zero_point: Any,
    low: float | None = None,
    high: float | None = None,
) -> Array:
    """Return an array quantized by scales and zero points that broadcast to it."""
    if number in FLOAT8:
        return _as_float8(number, values, scale, zero_point)
    qmin, qmax = limits(number)
    bounds = max(qmin, qmin if low is None else low), min(qmax, qmax if high is None else high)
    target = dtype_of(number).np
    scale, zero_point = np.asarray(scale), np.asarray(zero_point)
    if zero_point.dtype.type.__module__.startswith("ml_dtypes"):
        zero_point = zero_point.astype(np.int8)
    result = np.empty(values.shape, target)
    flat = values.ndim == 0 or scale.ndim == 0
    for part in _slices(values.shape):
        parts = (scale, zero_point) if flat else (_part(scale, part), _part(zero_point, part))
        real = np.asarray((values[part].astype(np.float32) / parts[0]).round() + parts[1])
        result[part] = np.clip(real, *bounds).astype(target)
    return result


def _slices(shape: tuple[int, ...]) -> list[Any]:
    """Return slices of the first axis, each of about `_BLOCK` elements."""
    if not shape or math.prod(shape) <= _BLOCK:
        return [...]
    step = max(1, _BLOCK * shape[0] // math.prod(shape))
    return [slice(i, i + step) for i in range(0, shape[0], step)]


def _part(array: Array, part: Any) -> Array:
    """Return the elements that broadcast to a slice of the first axis."""
    return array if array.shape[0] == 1 or part is ... else array[part]


def _as_float8(number: int, values: Array, scale: Any, zero_point: Any) -> Array:
    if np.any(np.asarray(zero_point).astype(np.float32) != 0):
        raise NotImplementedError(
            f"zero_point is expected to be null for float 8 not {zero_point!r}."
        )
    if values.dtype not in (np.float32, np.float16):
        raise ValueError(f"Unexpected dtype {values.dtype}.")
    if number != FLOAT8E4M3FN:
        raise NotImplementedError(f"tensors are not quantized to {float_name(number)}")
    real = values.astype(np.float32) / np.asarray(scale)
    saturated: Array = np.clip(real, -_LARGEST_F8, _LARGEST_F8).astype(FLOAT8_E4M3FN.np)
    return saturated


def block_range(values: Array, axis: int, block_size: int) -> tuple[Array, Array]:
    """Return minimum and maximum of blocks along an axis; the last block may be short."""
    starts = np.arange(0, values.shape[axis], block_size)
    return (
        np.minimum.reduceat(values, starts, axis=axis),
        np.maximum.reduceat(values, starts, axis=axis),
    )


def is_snapped(number: int, restricted: bool, symmetric: bool) -> bool:
    """Return whether an activation has a restricted zero point (`snapped_zero_point`)."""
    return restricted and number == UINT8 and not symmetric
