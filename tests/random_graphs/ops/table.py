"""All generators, and how often each is drawn."""

from __future__ import annotations

import functools
from collections.abc import Callable
from random import Random

from tests.random_graphs.builder import Builder
from tests.random_graphs.ops import blocks, elementwise, images, linear, move, reduce, rows

Step = Callable[[Builder], None]
FAMILIES = (elementwise.OPS, elementwise.OPS, move.OPS, reduce.OPS, linear.OPS, images.OPS)


def choose(rng: Random) -> Step:
    """One generator: a family first, so that large ones do not crowd out the others."""
    if rng.random() < 0.25:
        domain, op = rng.choice(_row_ops())
        return lambda b: rows.from_row(b, domain, op)
    if rng.random() < 0.2:
        return rng.choice(blocks.BLOCKS)
    family = rng.choice(FAMILIES)
    op = rng.choice(list(family))
    return lambda b: family[op](b, op)


@functools.cache
def _row_ops() -> tuple[tuple[str, str], ...]:
    domains = ("", "ai.onnx.ml", "com.microsoft")
    return tuple(sorted(key for key in rows.rows() if key[0] in domains))
