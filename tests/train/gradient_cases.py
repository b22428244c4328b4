"""Cases of gradient tests: a node, its inputs in float64, and which of them are constants."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.op_cases import Array, Case, case, f64, of

MS = "com.microsoft"
WEIGHTED = ("BatchNormalization", "Conv", "ConvTranspose", "GroupNormalization")


@dataclass(frozen=True)
class Rule:
    """A case, the positions of inputs that are constants, and those that have gradients."""

    case: Case
    fixed: tuple[int, ...] = ()
    by: tuple[int, ...] | None = None  # all inputs of floats that are not fixed
    of: tuple[int, ...] = (0,)  # outputs to differentiate
    weights: tuple[int, ...] = ()  # inputs that are initializers of the model
    is_open: bool = field(default=True)  # sizes may be open too

    def __str__(self) -> str:
        return str(self.case)[:90]


def rule(op: str, *inputs: Any, **options: Any) -> Rule:
    """A case; options that are fields of Rule set them, all others go to `case`."""
    own: dict[str, Any] = {
        k: options.pop(k) for k in ("fixed", "by", "of", "weights", "is_open") if k in options
    }
    if op in WEIGHTED:
        own.setdefault("weights", tuple(i for i in range(1, len(inputs)) if inputs[i] is not None))
    return Rule(case(op, *inputs, **options), **own)


def apart(*shape: int) -> Array:
    """Numbers that differ by more than a step, none of them near 0, in random order."""
    count = int(np.prod(shape))
    numbers = (np.arange(count) - count / 2 + 0.25) * 0.31
    return np.random.default_rng(count).permutation(numbers).reshape(shape)


def pos(*shape: int) -> Array:
    return np.abs(f64(*shape)) + 0.3


def inside(*shape: int) -> Array:
    """Numbers within (-0.9, 0.9)."""
    return np.tanh(f64(*shape)) * 0.9


def lens(*numbers: int) -> Array:
    return of(numbers, np.int32)


def sizes(*numbers: int) -> Array:
    return of(numbers, np.int64)


F64 = 11  # as Cast names it
