"""Weights in a 16-bit type, rounded from float32 when they are written."""

from __future__ import annotations

import mmap
from typing import Final

import numpy as np

from sardonyx.base.records import frozen, mutable
from sardonyx.base.shared_store import Array
from sardonyx.graph.const import Const, SourceConst
from sardonyx.graph.dtype import BF16, F16, DType

_CHUNK: Final = 1 << 15  # elements that are rounded at once: they stay in L2

# The smallest positive number and the largest finite one of each type.
_LIMITS: Final = {F16: (2.0**-24, 65504.0), BF16: (2.0**-133, 3.3895313892515355e38)}


@frozen
class Range:
    """Magnitudes of weights: smaller ones but 0 are raised to `least`, larger ones lowered.

    Infinities and NaN stay.
    """

    least: float
    largest: float

    @classmethod
    def of(cls, dtype: DType, least: float | None = None, largest: float | None = None) -> Range:
        """Return a range within that of a 16-bit type, by default all of it."""
        low, high = _LIMITS[dtype]
        return cls(
            low if least is None else max(least, low),
            high if largest is None else min(largest, high),
        )


@mutable
class ClampedCounts:
    """What rounding the weights has changed so far."""

    n_lowered: int = 0  # beyond the largest number of the type
    n_raised: int = 0  # below its smallest one


class RoundedConst(Const):
    """A float32 constant in a 16-bit type, rounded each time its bytes are read."""

    __slots__ = ("_range", "_rounding", "_source")

    def __init__(self, source: Const, dtype: DType, within: Range, rounding: ClampedCounts) -> None:
        super().__init__(dtype, source.shape)
        self._source = source
        self._range = within
        self._rounding = rounding

    def _load(self) -> Array:
        return self._compute()  # a new array

    def _compute(self) -> Array:
        flat = self._source.view().reshape(-1)
        out = np.empty(flat.size, self.dtype.np)
        for i in range(0, flat.size, _CHUNK):
            out[i : i + _CHUNK] = self._within(flat[i : i + _CHUNK])
        if isinstance(self._source, SourceConst):
            # The pages stay in the page cache, but need not stay mapped.
            self._source.source.advise(mmap.MADV_DONTNEED, self._source.offset, self._source.length)
        return out.reshape(self.shape)

    def _within(self, chunk: Array) -> Array:
        """Return numbers whose magnitudes the type has."""
        size = np.abs(chunk)
        too_large = (size > self._range.largest) & np.isfinite(chunk)
        too_small = (size < self._range.least) & (chunk != 0)
        if too_large.any():
            self._rounding.n_lowered += int(np.count_nonzero(too_large))
            chunk = np.where(too_large, np.copysign(np.float32(self._range.largest), chunk), chunk)
        if too_small.any():
            self._rounding.n_raised += int(np.count_nonzero(too_small))
            chunk = np.where(too_small, np.copysign(np.float32(self._range.least), chunk), chunk)
        return chunk

    def describe(self) -> str:
        return f"{self.dtype} of {self._source.describe()}"
