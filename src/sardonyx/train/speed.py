"""How fast training runs, and what it takes: rates, memory and the time that is left."""

from __future__ import annotations

import os
import time
from typing import Final

from sardonyx.base.records import frozen
from sardonyx.base.units import format_bytes, format_seconds
from sardonyx.train.batches import Feeds, samples_in, tokens_in

_SMOOTHING: Final = 0.9  # weight of earlier steps in the time per step
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


@frozen
class StepReport:
    """One step of training."""

    step: int  # from 1
    total: int | None  # steps of the whole run
    epoch: int  # from 1
    loss: float
    samples_per_s: float
    tokens_per_s: float  # 0 if no input is a matrix of integers
    memory_bytes: int  # resident, of the process
    seconds_left: float | None

    def text(self) -> str:
        """Return the report as one line."""
        of_total = "" if self.total is None else f" of {self.total}"
        rate, unit = (
            (self.tokens_per_s, "tokens") if self.tokens_per_s else (self.samples_per_s, "samples")
        )
        left = "" if self.seconds_left is None else f", {format_seconds(self.seconds_left)} left"
        return (
            f"step {self.step}{of_total}, loss {self.loss:.4g}, {rate:.4g} {unit}/s, "
            f"{format_bytes(self.memory_bytes)}{left}"
        )


class StepTimer:
    """Measures the time between steps."""

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._last_s = time.monotonic()
        self._step_s = 0.0  # smoothed

    def report(self, step: int, epoch: int, loss: float, feeds: Feeds) -> StepReport:
        """Return the report of a step that has just ended; `epoch` counts from 0."""
        now = time.monotonic()
        taken, self._last_s = now - self._last_s, now
        # The first step plans memory and takes longer: its weight falls with each later step.
        smoothed = _SMOOTHING * self._step_s + (1 - _SMOOTHING) * taken
        self._step_s = smoothed if self._step_s else taken
        per_s = 1 / max(self._step_s, 1e-9)
        left = None if self._total is None else max(self._total - step, 0) * self._step_s
        return StepReport(
            step,
            self._total,
            epoch + 1,
            loss,
            samples_in(feeds) * per_s,
            tokens_in(feeds) * per_s,
            resident_bytes(),
            left,
        )


def resident_bytes() -> int:
    """Return the resident memory of the process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES
