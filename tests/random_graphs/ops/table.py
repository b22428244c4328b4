"""All generators, and how often each is drawn."""

from __future__ import annotations

import functools
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
    quantize,
    recurrent,
    reduce,
    rows,
    sequence,
)  # fmt: skip

Step = Callable[[Builder], None]
FAMILIES = (
    *[elementwise.OPS] * 6, *[move.OPS] * 6, *[reduce.OPS] * 3, *[linear.OPS] * 3,
    *[images.OPS] * 4, *[quantize.OPS] * 2, recurrent.OPS, sequence.OPS, *[control.OPS] * 2,
)  # fmt: skip


def choose(rng: Random, is_body: bool = False) -> Step:
    """One generator: a family first, so that large ones do not crowd out the others."""
    if rng.random() < 0.25:
        domain, op = rng.choice(_row_ops())
        return lambda b: rows.from_row(b, domain, op)
    if rng.random() < 0.2:
        return rng.choice(blocks.BLOCKS)
    family = rng.choice(FAMILIES)
    if is_body and family is control.OPS and rng.random() < 0.7:
        family = elementwise.OPS
    op = rng.choice(list(family))
    return lambda b: family[op](b, op)


@functools.cache
def _row_ops() -> tuple[tuple[str, str], ...]:
    domains = ("", "ai.onnx.ml", "com.microsoft")
    return tuple(sorted(key for key in rows.rows() if key[0] in domains))
