"""InPlaceAccumulatorV2 of com.microsoft: adds a gradient to the sum of earlier ones.

Here it is a function: the sum is its second output, and the input is not changed.
`sardonyx.training` reads the gradient itself, and keeps the sums.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dtype import BOOL, FLOATS
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import MICROSOFT, Op
from sardonyx.ops.arrays import Array, wide

_TYPES: Final = {"T": FLOATS, "T_GRAD": FLOATS, "T_BOOL": frozenset((BOOL,))}
accumulator = Op(
    "InPlaceAccumulatorV2",
    1,
    "accumulation_buffer:T value:T_GRAD overwrite_flag:T_BOOL?",
    "updated_flag:T_BOOL accumulation_buffer_out:T?",
    domain=MICROSOFT,
    types=_TYPES,
    singles="overwrite_flag",
)


@accumulator.infer
def _(g: Scope, buffer: Fact, value: Fact, overwrite: Fact | None) -> tuple[Fact, Fact]:
    if buffer.rank != value.rank:
        raise InvalidGraph(f"the sum is {buffer}, and the gradient {value}")
    for a, b in zip(buffer.dims, value.dims, strict=True):
        g.equal(a, b, "the sum and the gradient differ in shape")
    return Fact(BOOL, (1,)), buffer.without_contents()


@accumulator.reference
def _(buffer: Array, value: Array, overwrite: Array | None) -> tuple[Array, Array]:
    total = wide(value)
    if overwrite is None or not overwrite.reshape(-1)[0]:
        total = wide(buffer) + total
    return np.array([True]), total.astype(buffer.dtype)


OPS: Final = (accumulator,)
