"""What a native step reads and writes with given sizes: types, dims, bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from sardonyx._native import SizeKind, Storage
from sardonyx.graph.dtype import by_onnx
from sardonyx.program.flat import ABSENT, VIEWS, FlatStep, SegmentBuilder

_RULES: Final[dict[SizeKind, Callable[[int, int], int]]] = {
    SizeKind.ADD: lambda a, b: a + b,
    SizeKind.MUL: lambda a, b: a * b,
    SizeKind.DIV: lambda a, b: a // b if b else 0,
    SizeKind.MOD: lambda a, b: a % b if b else 0,
    SizeKind.MIN: min,
    SizeKind.MAX: max,
    SizeKind.BROADCAST: lambda a, b: b if a == 1 else a,
}


class Operand(NamedTuple):
    """A tensor that a step takes or makes."""

    type: str  # as numpy calls it
    dims: tuple[int, ...]
    n_bytes: int  # of memory: a number that is read many times counts once


class Operands(NamedTuple):
    """All tensors of a step; None is one that is not given."""

    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand | None, ...]


def registers(part: SegmentBuilder, names: Sequence[int]) -> list[int]:
    """Every size of a part, by its register, where names have these sizes."""
    found: list[int] = []
    for kind, a, b, value in part.sizes.ops:
        rule = _RULES.get(kind)
        if rule is not None:
            found.append(rule(found[a], found[b]))
        else:
            found.append(value if kind is SizeKind.NUMBER else names[a])
    return found


def unfit(part: SegmentBuilder, names: Sequence[int]) -> set[int]:
    """The registers that do not fit 64 bits or divide by 0, and those made of such."""
    found, wrong = registers(part, names), set[int]()
    for i, (kind, a, b, _) in enumerate(part.sizes.ops):
        is_made_of_such = kind in _RULES and not wrong.isdisjoint((a, b))
        by_zero = kind in (SizeKind.DIV, SizeKind.MOD) and not found[b]
        if is_made_of_such or by_zero or not -(2**63) <= found[i] < 2**63:
            wrong.add(i)
    return wrong


def read(part: SegmentBuilder, step: FlatStep) -> set[int]:
    """The registers that a step's sizes and settings lie in."""
    values = (part.values[n] for n in (*step.inputs, *step.outputs) if n != ABSENT)
    return {*step.ints, *(register for value in values for register in value.dims)}


def operands(part: SegmentBuilder, step: FlatStep, sizes: Sequence[int]) -> Operands:
    """The tensors of a step; `sizes` are the part's registers."""
    return Operands(
        tuple(_operand(part, step, number, sizes) for number in step.inputs),
        tuple(_operand(part, step, number, sizes) for number in step.outputs),
    )


def _operand(
    part: SegmentBuilder, step: FlatStep, number: int, sizes: Sequence[int]
) -> Operand | None:
    if number == ABSENT:
        return None
    flat = part.values[number]
    dtype = by_onnx(flat.dtype)
    assert dtype is not None
    dims = tuple(sizes[register] for register in flat.dims)
    count = math.prod(dims)
    while flat.storage in VIEWS:
        flat = part.values[flat.at]
        count = min(count, math.prod(sizes[register] for register in flat.dims))
    if flat.storage is Storage.CONCAT_SLICE and flat.at in step.outputs:
        count = 0  # it was made where it is wanted
    return Operand(str(dtype.np), dims, count * dtype.itemsize)
