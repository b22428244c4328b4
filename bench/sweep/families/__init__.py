"""Cases drawn by seed: an op, then types, a size class, a shape and attributes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bench.sweep.case import Case
from bench.sweep.draw import Draw, Family
from bench.sweep.families import (
    elementwise,
    features,
    images,
    move,
    products,
    quantized,
    reduce,
    select,
)

MODULES: Final = (elementwise, features, images, move, products, quantized, reduce, select)
FAMILIES: Final[dict[str, Family]] = {
    op: family for module in MODULES for op, family in module.FAMILIES.items()
}


def draw(op: str, seed: int, size: str | None = None) -> Case:
    """Return the case of an op that a seed stands for, of any size class or of this one."""
    return FAMILIES[op](Draw(seed, size), op)


def cases(count: int, seed: int) -> Iterator[Case]:
    """Draw `count` cases, all ops in turn."""
    ops = sorted(FAMILIES)
    for i in range(count):
        yield draw(ops[i % len(ops)], seed * 1_000_003 + i)
