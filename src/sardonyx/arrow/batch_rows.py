"""The batch size of runs: the number of rows with the least time per row."""

from __future__ import annotations

from typing import Final

_GROWTH: Final = 4
_GAIN: Final = 0.98  # a larger batch has to take less than this share of the time per row
_PATIENCE: Final = 2  # consecutive sizes without a gain: a single one may be noise
# A size is measured for so many runs and seconds. The fastest run counts: others were preempted.
_MIN_RUNS: Final = 3
_MIN_SECONDS: Final = 0.01
_MAX_SECONDS: Final = 0.5  # of a run: results keep streaming, a killed worker loses little
_MAX_BYTES: Final = 64 << 20  # of inputs and outputs of a run
_MAX_ROWS: Final = 1 << 16


class BatchRows:
    """Tunes the batch size while scoring: it grows as long as the time per row falls.

    The first run of a size does not count: it plans memory for the new sizes.
    """

    def __init__(self, fixed: int | None = None) -> None:
        self.rows = fixed or 1
        self._best = (float("inf"), self.rows)  # seconds per row, with how many rows
        self._seconds: list[float] = []  # of all runs of this size
        self._n_without_gain = 0
        self._is_final = fixed is not None

    def observe(self, rows: int, seconds: float, size_bytes: int) -> None:
        """Record the seconds of a run, and choose the number of rows of the next one."""
        if self._is_final or rows != self.rows:
            return
        self._seconds.append(seconds)
        if len(self._seconds) <= _MIN_RUNS or sum(self._seconds) < _MIN_SECONDS:
            return
        seconds = min(self._seconds[1:])
        has_gained = seconds / rows < self._best[0] * _GAIN
        self._n_without_gain = 0 if has_gained else self._n_without_gain + 1
        if has_gained:
            self._best = (seconds / rows, rows)
        is_largest = (
            rows * _GROWTH > _MAX_ROWS
            or seconds * _GROWTH > _MAX_SECONDS
            or size_bytes * _GROWTH > _MAX_BYTES
        )
        self._is_final = is_largest or self._n_without_gain == _PATIENCE
        self.rows = self._best[1] if self._is_final else rows * _GROWTH
        self._seconds = []
