"""When two results are the same, given how far rounding alone may move them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from tests.random_graphs.value import Array

# Allowed of the largest number. Sums in another order, and polynomials instead of libm, cost that.
STEPS = {
    "float64": 1e-9,
    "float32": 1e-4,
    "float16": 4 * 2**-10,
    "bfloat16": 4 * 2**-7,
    "float8_e4m3fn": 2**-3,
    "float8_e4m3fnuz": 2**-3,
    "float8_e5m2": 2**-2,
    "float8_e5m2fnuz": 2**-2,
}
SPREAD = 16.0  # how much further than the noisy runs a result may be


def difference(found: Any, wanted: Any, noisy: Sequence[Any], step: float = 0.0) -> str:
    """Empty if `found` is `wanted` up to rounding; `noisy` are results of inputs slightly off.

    `step` is what the coarsest type on the way allows, relative to the largest number.
    """
    if isinstance(wanted, (list, tuple)):
        if not isinstance(found, (list, tuple)) or len(found) != len(wanted):
            if any(_length(n) != len(wanted) for n in noisy):
                return ""
            return f"a sequence of {len(wanted)} expected, not {_shown(found)}"
        for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
            others = [n[i] for n in noisy if _length(n) == len(wanted)]
            text = difference(a, b, others, step)
            if text:
                return f"at {i}: {text}"
        return ""
    if isinstance(wanted, dict):
        if not isinstance(found, dict) or found.keys() != wanted.keys():
            return f"{wanted!r:.200} expected, not {found!r:.200}"
        for key, item in wanted.items():
            text = difference(found[key], item, [n[key] for n in noisy if key in n], step)
            if text:
                return f"at {key!r}: {text}"
        return ""
    if wanted is None or found is None:
        return "" if wanted is found else f"{_shown(wanted)} expected, not {_shown(found)}"
    arrays = [np.asarray(n) for n in noisy if n is not None]
    return _arrays(np.asarray(found), np.asarray(wanted), arrays, step)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (list, tuple)) else -1


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}"
    return f"{value!r:.100}"


def _arrays(found: Array, wanted: Array, noisy: Sequence[Array], step: float) -> str:
    found, wanted = _plain(found), _plain(wanted)
    if found.dtype != wanted.dtype:
        return f"{_shown(wanted)} expected, not {_shown(found)}"
    if any(n.shape != wanted.shape for n in noisy):
        return ""  # how many there are hangs on a rounding error, and so does which
    if found.shape != wanted.shape:
        return f"{_shown(wanted)} expected, not {_shown(found)}"
    noisy = [_plain(n) for n in noisy]
    if not wanted.size:
        return ""
    if is_float(wanted.dtype):
        wrong = _floats(found, wanted, noisy, step)
    else:
        wrong = _exact(found, wanted, noisy)
    if not np.any(wrong):
        return ""
    where = tuple(int(i) for i in np.argwhere(wrong)[0])
    count = int(np.count_nonzero(wrong))
    return (
        f"{count} of {wrong.size} differ in {_shown(wanted)}, first at {where}: "
        f"{found[where]!s:.40}, not {wanted[where]!s:.40}"
    )


def _plain(array: Array) -> Array:
    return array.astype(object) if array.dtype.kind in "US" else array


def is_float(dtype: np.dtype[Any]) -> bool:
    try:
        ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    except ValueError:
        return False
    return True


def _exact(found: Array, wanted: Array, noisy: Sequence[Array]) -> Array:
    """Integers, booleans and text are the same, but where a rounding error changes them."""
    wrong = np.asarray(found != wanted)
    if not np.any(wrong) or wanted.dtype.kind in "OSU":
        return wrong & ~_flips(wanted, noisy)
    is_number = wanted.dtype.kind in "iuV"
    if is_number and any(np.any(n != wanted) for n in noisy):
        # A step of a quantizer: if some elements flip by one, so may their neighbours.
        near = np.abs(found.astype(np.float64) - wanted.astype(np.float64)) <= 1
        wrong &= ~near
    return wrong & ~_flips(wanted, noisy)


def _flips(wanted: Array, noisy: Sequence[Array]) -> Array:
    found = np.zeros(wanted.shape, bool)
    for n in noisy:
        found |= np.asarray(n != wanted)
    return found


def _floats(found: Array, wanted: Array, noisy: Sequence[Array], step: float) -> Array:
    f, w = found.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(w)
    same = (f == w) | (np.isnan(f) & np.isnan(w))
    scale = np.max(np.abs(w), initial=0.0, where=finite)
    # Results that are far smaller than the numbers they were made of have no better units.
    info = ml_dtypes.finfo(wanted.dtype)  # type: ignore[no-untyped-call]
    step = max(step, STEPS.get(str(wanted.dtype), 0.0))
    allowed = np.full(w.shape, step * scale + float(info.tiny) * 4)
    open_ = np.zeros(w.shape, bool)
    with np.errstate(all="ignore"):
        for n in noisy:
            other = n.astype(np.float64)
            spread = np.abs(other - w)
            is_like = (np.isfinite(other) & finite) | (other == w) | (np.isnan(other) & np.isnan(w))
            open_ |= ~is_like
            allowed = np.maximum(allowed, np.where(np.isfinite(spread), SPREAD * spread, 0))
        gap = np.abs(f - w)
        bad = ~same & ~(finite & np.isfinite(f) & (gap <= allowed))
    return np.asarray(bad & ~open_)
