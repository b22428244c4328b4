"""A linear cost model of runs: fixed seconds plus seconds per element, fitted to measurements."""

from __future__ import annotations

from typing import Final

_DECAY: Final = 0.98  # of the weights of older runs: about the last fifty count
_SPREAD: Final = 0.05  # relative spread of sizes below which no slope can be fitted


class CostModel:
    """seconds = fixed + per_element * elements, by least squares with exponential weights.

    Elements are those of the padded batch: rows times length, or rows alone.
    """

    __slots__ = ("_et", "_n", "_square", "_sum_e", "_sum_t", "fixed_s", "per_element_s")

    def __init__(self) -> None:
        self._n = self._sum_e = self._sum_t = self._square = self._et = 0.0
        self.fixed_s = 0.0
        self.per_element_s = 0.0

    @property
    def is_known(self) -> bool:
        """Return whether a run was measured."""
        return self._n > 0

    def add(self, elements: int, seconds: float) -> None:
        """Update the fit with a measured run."""
        expected = self.seconds(elements)
        if self._n > 3 and seconds > 8 * expected:  # another process had the CPU
            seconds = 8 * expected
        self._n = self._n * _DECAY + 1
        self._sum_e = self._sum_e * _DECAY + elements
        self._sum_t = self._sum_t * _DECAY + seconds
        self._square = self._square * _DECAY + elements * elements
        self._et = self._et * _DECAY + elements * seconds
        self._fit()

    def _fit(self) -> None:
        mean_e, mean_t = self._sum_e / self._n, self._sum_t / self._n
        variance = self._square / self._n - mean_e * mean_e
        if variance <= (_SPREAD * mean_e) ** 2:
            # Runs of one size only: their sum is known, and the split that was fitted before
            # keeps its proportion.
            before = self.fixed_s + self.per_element_s * mean_e
            share = self.fixed_s / before if before > 0 else 0.5
            self.fixed_s = mean_t * share
            self.per_element_s = mean_t * (1 - share) / max(mean_e, 1.0)
            return
        slope = (self._et / self._n - mean_e * mean_t) / variance
        self.per_element_s = min(max(slope, 0.0), mean_t / mean_e)
        self.fixed_s = mean_t - self.per_element_s * mean_e

    def seconds(self, elements: int) -> float:
        """Return the expected seconds of a run."""
        return self.fixed_s + self.per_element_s * elements
