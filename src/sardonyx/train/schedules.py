"""Learning rate schedules: functions from the number of a step, from 0, to its learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable

from sardonyx.errors import InvalidArgument

Schedule = Callable[[int], float]


def linear(lr: float, steps: int, *, warmup: int = 0, final: float = 0.0) -> Schedule:
    """Rise from 0 to `lr` in `warmup` steps, then fall in a line to `final` at the last step."""
    return _decaying(lr, steps, warmup, final, lambda share: 1 - share)


def cosine(lr: float, steps: int, *, warmup: int = 0, final: float = 0.0) -> Schedule:
    """Rise from 0 to `lr` in `warmup` steps, then fall as a cosine to `final` at the last step."""
    return _decaying(lr, steps, warmup, final, lambda share: (1 + math.cos(math.pi * share)) / 2)


def _decaying(
    lr: float, steps: int, warmup: int, final: float, shape: Callable[[float], float]
) -> Schedule:
    if not 0 <= warmup < steps:
        raise InvalidArgument(f"warmup is {warmup} of {steps} steps, and must be shorter")

    def schedule(step: int) -> float:
        if step < warmup:
            return lr * (step + 1) / warmup
        share = min((step - warmup) / max(steps - 1 - warmup, 1), 1.0)
        return final + (lr - final) * shape(share)

    return schedule
