"""Batching delay: how long a batch that could run waits for more requests."""

from __future__ import annotations

from typing import Final

_WEIGHT: Final = 0.1  # of the newest gap in the exponential moving average
_PATIENCE: Final = 3.0  # mean gaps without a request after which no more is expected


class Arrivals:
    """The mean time between arrivals, and the batching delay that follows from it.

    Waiting for one more request delays the queued ones by the gap, and saves the fixed part of a
    run. So a batch waits only while the next request is expected within half of that part, and at
    most for all of it: not at all at low load, or if runs have little fixed cost.
    """

    __slots__ = ("_gap_s", "_last")

    def __init__(self) -> None:
        self._gap_s = 1.0
        self._last: float | None = None

    def add(self, now: float) -> None:
        """Record the arrival of a request."""
        if self._last is not None:
            gap = min(now - self._last, 1.0)
            self._gap_s += _WEIGHT * (gap - self._gap_s)
        self._last = now

    def wait_s(self, now: float, since: float, fixed_s: float, longest_s: float) -> float:
        """Return the seconds to wait from now on, if a run could start since `since`."""
        if self._last is None or self._gap_s > fixed_s / 2:
            return 0.0
        end = min(since + min(fixed_s, longest_s), self._last + _PATIENCE * self._gap_s)
        return max(0.0, end - now)
