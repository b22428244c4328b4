"""Dropout masks of training steps: a function of a seed and the number of the run.

Counter-based random numbers (Philox4x32-10; Salmon et al., Parallel Random Numbers: As Easy as 1,
2, 3, 2011): elements are drawn independently of each other, so any split over threads, and a run
that is repeated or resumed, gives the same mask.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dtype import BOOL, F64, FLOATS
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import GRADIENT, Op, required
from sardonyx.ops.arrays import Array

RUN: Final = 5  # the position of the run's number in the settings of a step
_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_WEYL: Final = (0x9E3779B9, 0xBB67AE85)  # added to the key after each round
_ROUNDS: Final = 10
_LOW: Final = 0xFFFFFFFF

mask = Op(
    "DropoutMask",
    1,
    "settings:D x:T",
    "keep:B",
    attrs={"ratio": required("float"), "seed": 0},
    types={"D": frozenset((F64,)), "T": FLOATS, "B": frozenset((BOOL,))},
    domain=GRADIENT,
)


@mask.infer
def _(g: Scope, settings: Fact, x: Fact, *, ratio: float, **_: Any) -> Fact:
    if settings.rank != 1 or not isinstance(settings.dims[0], int) or settings.dims[0] <= RUN:
        raise InvalidGraph(f"the settings of a step must be a vector, got {settings}")
    if not 0 <= ratio < 1:
        raise InvalidGraph(f"the ratio of DropoutMask must be in [0, 1), got {ratio}")
    return x.with_dtype(BOOL)


@mask.reference
def _(settings: Array, x: Array, *, ratio: float, seed: int) -> Array:
    n_blocks = -(-x.size // 4)
    words = philox(np.arange(n_blocks, dtype=np.uint64), int(settings[RUN]), seed)
    drawn = np.stack(words, axis=1).reshape(-1)[: x.size]
    return (drawn >= threshold(ratio)).reshape(x.shape)


def threshold(ratio: float) -> int:
    """Return the number of 32 bits below which an element is dropped."""
    return int(ratio * 2**32)


def philox(block: Array, run: int, seed: int) -> list[Array]:
    """Return four random numbers of 32 bits for each block."""
    low = np.uint64(_LOW)
    keys = [seed & _LOW, (seed >> 32) & _LOW]
    high_run = np.full_like(block, (run >> 32) & _LOW)
    counter = [block & low, block >> np.uint64(32), np.full_like(block, run & _LOW), high_run]
    for _ in range(_ROUNDS):
        first, second = (c * np.uint64(m) for c, m in zip(counter[::2], _MULTIPLIERS, strict=True))
        counter = [
            (second >> np.uint64(32)) ^ counter[1] ^ np.uint64(keys[0]),
            second & low,
            (first >> np.uint64(32)) ^ counter[3] ^ np.uint64(keys[1]),
            first & low,
        ]
        keys = [(k + w) & _LOW for k, w in zip(keys, _WEYL, strict=True)]
    return counter


OPS: Final = (mask,)
