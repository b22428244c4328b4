"""Cases drawn by seed: an op, then types, a size class, a shape and attributes.

Ops over maps, sequences and optionals as inputs, and ops that nothing but tests of ONNX has, draw
no cases here; `bench.sweep.nodes` covers them where a model has them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from bench.sweep.case import Case
from bench.sweep.draw import Draw, Family, TooLarge
from bench.sweep.families import (
    control,
    elementwise,
    features,
    images,
    move,
    products,
    quantized,
    reduce,
    select,
    shapes,
    text,
)

MODULES: Final = (
    control,
    elementwise,
    features,
    images,
    move,
    products,
    quantized,
    reduce,
    select,
    shapes,
    text,
)
FAMILIES: Final[dict[str, Family]] = {
    op: family for module in MODULES for op, family in module.FAMILIES.items()
}
_STRIDE: Final = 1_000_003  # between the first cases of two sweeps
_REDRAWN: Final = 500_009  # from a case that is too large to another one of its sweep


def draw(op: str, seed: int, size: str | None = None) -> Case:
    """Return the case of an op for a seed, of any size class or of this one."""
    try:
        return FAMILIES[op](Draw(seed, size), op)
    except TooLarge:
        return draw(op, seed + _REDRAWN, size)


def cases(count: int, seed: int, wanted: Collection[str] = ()) -> Iterator[Case]:
    """Draw `count` cases round-robin over all ops; yield those of the selected ops."""
    ops = sorted(FAMILIES)
    for i in range(count):
        if not wanted or ops[i % len(ops)] in wanted:
            yield draw(ops[i % len(ops)], seed * _STRIDE + i)
