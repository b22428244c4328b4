"""By how much two values differ, computed in chunks so that large values are not copied."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.cli.bench_worker import flat

_CHUNK: Final = 1 << 20  # elements that are widened to float64 at a time
_INFINITE: Final = float("inf")


@frozen
class Difference:
    """How a value of B differs from that of A; all zero if it does not."""

    max_abs: float = 0.0
    max_rel: float = 0.0
    ulps: int | None = None  # None: not floats of one type
    fraction: float = 0.0  # the largest difference, as a fraction of A's largest value
    n_nonfinite: int = 0  # positions where only one is finite, or NaN and infinities differ
    index: tuple[int, ...] | None = None  # of the first element beyond the tolerance
    note: str = ""  # what differs besides numbers: type, shape, text

    @property
    def is_none(self) -> bool:
        """Whether the values are equal to the bit, but for the sign of zero and bits of NaN."""
        return self.fraction == 0

    def exceeds(self, tolerance: float) -> bool:
        """Return whether the values differ by more than a fraction of A's largest value."""
        return not self.fraction <= tolerance


def difference(a: Any, b: Any, tolerance: float) -> Difference:
    """Return the difference of two values; of sequences and maps, that of the worst element."""
    left, right = dict(flat("", a)), dict(flat("", b))
    if left.keys() != right.keys():
        return _incomparable(f"A has {len(left)} arrays, B has {len(right)}")
    if not isinstance(a, (list, dict)) and isinstance(a, np.ndarray):
        # `flat` widens small floats, which would count ulps of another type.
        return _of_arrays(a, np.asarray(b), tolerance)
    found = [_of_arrays(left[name], right[name], tolerance) for name in left]
    return max(found, key=lambda d: d.fraction, default=Difference())


def _incomparable(note: str) -> Difference:
    return Difference(_INFINITE, _INFINITE, None, _INFINITE, note=note)


def _of_arrays(a: Any, b: Any, tolerance: float) -> Difference:
    if a.shape != b.shape:
        return _incomparable(f"shape {list(a.shape)} in A, {list(b.shape)} in B")
    note = "" if a.dtype == b.dtype else f"{_type_name(a)} in A, {_type_name(b)} in B"
    if not (_is_number(a) and _is_number(b)):
        if np.array_equal(a, b):
            return Difference(note=note)
        return _incomparable(note or "the texts differ")
    return _of_numbers(a.reshape(-1), b.reshape(-1), tolerance, note, a.shape)


def _of_numbers(a: Any, b: Any, tolerance: float, note: str, shape: tuple[int, ...]) -> Difference:
    largest = max((_largest(x) for x, _ in _chunks(a, b)), default=0.0)
    bound = tolerance * (largest or 1.0)
    max_abs, max_rel, n_nonfinite, first = 0.0, 0.0, 0, None
    for number, (x, y) in enumerate(_chunks(a, b)):
        distance, unequal = _distance(x, y)
        n_nonfinite += int(unequal.sum())
        max_abs = max(max_abs, float(distance.max(initial=0)))
        size = np.maximum(np.abs(x), np.abs(y))
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = np.where(distance > 0, distance / size, 0)
        max_rel = max(max_rel, float(relative.max(initial=0)))
        beyond = unequal | (distance > bound)
        if first is None and beyond.any():
            first = number * _CHUNK + int(beyond.argmax())
    index = None if first is None else tuple(map(int, np.unravel_index(first, shape)))
    fraction = _INFINITE if n_nonfinite else max_abs / (largest or 1.0)
    return Difference(max_abs, max_rel, _max_ulps(a, b), fraction, n_nonfinite, index, note)


def _distance(x: Any, y: Any) -> tuple[Any, Any]:
    """Return the distances of finite elements, and where others differ."""
    is_finite = np.isfinite(x) & np.isfinite(y)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    with np.errstate(invalid="ignore"):
        distance = np.where(is_finite, np.abs(x - y), 0)
    return distance, ~is_finite & ~same


def _chunks(a: Any, b: Any) -> Iterator[tuple[Any, Any]]:
    wide = np.complex128 if "c" in (a.dtype.kind, b.dtype.kind) else np.float64
    for i in range(0, a.size, _CHUNK):
        yield a[i : i + _CHUNK].astype(wide), b[i : i + _CHUNK].astype(wide)


def _largest(x: Any) -> float:
    return float(np.abs(x[np.isfinite(x)]).max(initial=0))


def _max_ulps(a: Any, b: Any) -> int | None:
    """Return the largest distance in units in the last place; None if types have none."""
    integer = {2: np.int16, 4: np.int32, 8: np.int64}.get(a.dtype.itemsize)
    is_float = a.dtype.kind == "f" or a.dtype.name == "bfloat16"
    if a.dtype != b.dtype or not is_float or integer is None:
        return None
    most = 0
    for i in range(0, a.size, _CHUNK):
        x, y = a[i : i + _CHUNK], b[i : i + _CHUNK]
        finite = np.isfinite(x) & np.isfinite(y)
        p, q = (_ordered(v[finite].view(integer)) for v in (x, y))
        most = max(most, int(np.abs(p - q).max(initial=0)))
    return most


def _ordered(bits: Any) -> Any:
    """Return the bits of floats as integers in the order of the floats; both zeros are 0."""
    magnitude = bits.astype(np.int64) & np.iinfo(bits.dtype).max
    return np.where(bits < 0, -magnitude, magnitude)


def _is_number(array: Any) -> bool:
    return array.dtype.kind in "fiubc" or array.dtype.type.__module__ == "ml_dtypes"


def _type_name(array: Any) -> str:
    return "string" if array.dtype.kind in "OU" else str(array.dtype.name)
