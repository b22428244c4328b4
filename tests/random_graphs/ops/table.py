"""All generators, and how often each is drawn."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.random_graphs.builder import Builder
from tests.random_graphs.ops import (
    blocks,
    control,
    elementwise,
    images,
    linear,
    move,
    nets,
    op_cases,
    quantize,
    recurrent,
    reduce,
    sequence,
)

Step = Callable[[Builder], None]
FAMILIES = (
    *[elementwise.OPS] * 6, *[move.OPS] * 6, *[reduce.OPS] * 3, *[linear.OPS] * 3,
    *[images.OPS] * 4, *[quantize.OPS] * 2, recurrent.OPS, sequence.OPS, *[control.OPS] * 2,
)  # fmt: skip


TYPED = (elementwise.OPS, elementwise.OPS, move.OPS, move.OPS, reduce.OPS, quantize.OPS)


def choose(rng: Random, is_body: bool = False, is_typed: bool = False) -> Step:
    """One generator: a family first, so that large ones do not crowd out the others."""
    if is_typed:
        family = rng.choice(TYPED)
        op = rng.choice(list(family))
        return lambda b: family[op](b, op)
    if rng.random() < 0.25:
        return op_cases.from_case
    if rng.random() < 0.2:
        return rng.choice(rng.choice((blocks.BLOCKS, nets.NETS)))
    family = rng.choice(FAMILIES)
    if is_body and family is control.OPS and rng.random() < 0.7:
        family = elementwise.OPS
    op = rng.choice(list(family))
    return lambda b: family[op](b, op)
