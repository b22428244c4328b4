"""Helpers of numpy references: arithmetic in wider types, scalars and integer vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sardonyx.errors import InvalidArgument
from sardonyx.graph.dtype import BF16, DType, by_numpy

Array = np.ndarray[Any, np.dtype[Any]]


def dtype_of(x: Array) -> DType:
    """Return the element type of an array."""
    dtype = by_numpy(x.dtype)
    assert dtype is not None
    return dtype


def is_half(dtype: Any) -> bool:
    """Whether arithmetic in this type is done in float32: every float type under 32 bits."""
    known = by_numpy(np.dtype(dtype))
    return known is not None and known.is_float and known.bits < 32


def wide(x: Array) -> Array:
    """Return the array in its computation type: float32 for narrower floats."""
    return x.astype(np.float32) if is_half(x.dtype) else x


def as_bf16(x: Array) -> Array:
    """Round float32 numbers to bfloat16 precision."""
    return x.astype(BF16.np).astype(np.float32)


def float32(value: float) -> float:
    """Round a default value to float32, the type of ONNX's float attributes."""
    return float(np.float32(value))


def in_wide(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run a reference in float32 for narrower floats, and round once to the first input's type."""

    def run(*arrays: Any, **attrs: Any) -> Any:
        first = next(a for a in arrays if a is not None)
        with np.errstate(all="ignore"):
            if not is_half(first.dtype):
                return function(*arrays, **attrs)
            widened = (wide(a) if isinstance(a, np.ndarray) else a for a in arrays)
            return narrow(function(*widened, **attrs), first.dtype)

    return run


def narrow(result: Any, dtype: Any) -> Any:
    """Round float32 results to a narrower type; other results are unchanged."""
    if isinstance(result, tuple):
        return tuple(narrow(r, dtype) for r in result)
    if isinstance(result, (np.ndarray, np.generic)) and result.dtype == np.float32:
        with np.errstate(all="ignore"):
            return np.asarray(result).astype(dtype)
    return result


def one_int(x: Array | None, what: str) -> int:
    """Return the single integer of a run-time scalar."""
    if x is None or x.size != 1:
        raise InvalidArgument(
            f"{what} must be one number, got an array of {0 if x is None else x.size}"
        )
    return int(x.reshape(-1)[0])


def distinct(x: Array) -> Array:
    """Return the sorted distinct integers; np.unique would import numpy.ma, which is slow."""
    ordered = np.sort(x, axis=None)
    return ordered[np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))]


def filled(inputs: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    """Return inputs padded with None for trailing absent ones."""
    return inputs + (None,) * (count - len(inputs))


def as_ints(x: Array | Sequence[int]) -> tuple[int, ...]:
    """Return run-time axes or sizes as Python integers."""
    return tuple(int(i) for i in np.asarray(x).reshape(-1))
