"""Operands of native steps for concrete sizes: types, dims, bytes; the size registers evaluated.

Traces, profiles and error messages need them in Python. Native code evaluates its own registers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from sardonyx._native import SizeKind, Storage
from sardonyx.graph.dtype import by_onnx
from sardonyx.program.segment_builder import ABSENT, VIEWS, SegmentBuilder, SegmentStep

# As exec/sizes.cc computes them, but for overflow. Division by 0 is found by `invalid_registers`.
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
    """An input or output tensor of a step."""

    type: str  # numpy's name
    dims: tuple[int, ...]
    n_bytes: int  # memory traffic: an element that is broadcast counts once


class Operands(NamedTuple):
    """All tensors of a step; None is an absent one."""

    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand | None, ...]


def evaluate_sizes(segment: SegmentBuilder, names: Sequence[int]) -> list[int]:
    """Return the values of all size registers of a segment; `names` are the sizes of named dims."""
    values: list[int] = []
    for kind, a, b, value in segment.sizes.ops:
        rule = _RULES.get(kind)
        if rule is not None:
            values.append(rule(values[a], values[b]))
        else:
            values.append(value if kind is SizeKind.NUMBER else names[a])
    return values


def invalid_registers(segment: SegmentBuilder, names: Sequence[int]) -> set[int]:
    """Return the registers that overflow 64 bits or divide by 0, and those computed from them."""
    values, invalid = evaluate_sizes(segment, names), set[int]()
    for i, (kind, a, b, _) in enumerate(segment.sizes.ops):
        is_derived = kind in _RULES and not invalid.isdisjoint((a, b))
        by_zero = kind in (SizeKind.DIV, SizeKind.MOD) and not values[b]
        if is_derived or by_zero or not -(2**63) <= values[i] < 2**63:
            invalid.add(i)
    return invalid


def registers_of(segment: SegmentBuilder, step: SegmentStep) -> set[int]:
    """Return the registers of a step's integer arguments and of its operands' dims."""
    values = (segment.values[n] for n in (*step.inputs, *step.outputs) if n != ABSENT)
    return {*step.ints, *(register for value in values for register in value.dims)}


def operands(segment: SegmentBuilder, step: SegmentStep, sizes: Sequence[int]) -> Operands:
    """Return the tensors of a step; `sizes` are the values of the segment's registers."""
    return Operands(
        tuple(_operand(segment, step, number, sizes) for number in step.inputs),
        tuple(_operand(segment, step, number, sizes) for number in step.outputs),
    )


def _operand(
    segment: SegmentBuilder, step: SegmentStep, number: int, sizes: Sequence[int]
) -> Operand | None:
    if number == ABSENT:
        return None
    value = segment.values[number]
    dtype = by_onnx(value.dtype)
    assert dtype is not None
    dims = tuple(sizes[register] for register in value.dims)
    count = math.prod(dims)
    while value.storage in VIEWS or value.storage is Storage.UPDATED:
        # A broadcast view has more elements than its source, a slice fewer.
        value = segment.values[value.at]
        count = min(count, math.prod(sizes[register] for register in value.dims))
    if value.storage is Storage.CONCAT_SLICE and value.at in step.outputs:
        count = 0  # its producer wrote it into the output of this Concat
    return Operand(str(dtype.np), dims, count * dtype.itemsize)
