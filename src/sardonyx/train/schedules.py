"""Learning rates as functions of the number of updates so far."""

from __future__ import annotations

import math
from collections.abc import Callable

from sardonyx.errors import InvalidArgument

Schedule = Callable[[int], float]


def linear(lr: float, *, warmup: int, total: int, final: float = 0.0) -> Schedule:
    """Rise linearly to `lr` in `warmup` updates, then fall linearly to `final` at `total`."""
    return _with_warmup(lr, warmup, total, lambda progress: lr + (final - lr) * progress)


def cosine(lr: float, *, warmup: int, total: int, final: float = 0.0) -> Schedule:
    """Rise linearly to `lr` in `warmup` updates, then fall to `final` by half a cosine wave."""

    def decayed(progress: float) -> float:
        return final + (lr - final) * 0.5 * (1 + math.cos(math.pi * progress))

    return _with_warmup(lr, warmup, total, decayed)


def constant(lr: float, *, warmup: int) -> Schedule:
    """Rise linearly to `lr` in `warmup` updates, then stay there."""
    return _with_warmup(lr, warmup, warmup + 1, lambda _: lr)


def _with_warmup(lr: float, warmup: int, total: int, decayed: Callable[[float], float]) -> Schedule:
    """`decayed` is the rate by the progress after the warmup, from 0 to 1."""
    if not 0 <= warmup < total:
        raise InvalidArgument(
            f"warmup must be at least 0 and less than the {total} updates, got {warmup}"
        )

    def schedule(count: int) -> float:
        if count < warmup:
            return lr * count / warmup
        return decayed(min(1.0, (count - warmup) / (total - warmup)))

    return schedule
