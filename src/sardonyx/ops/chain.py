"""Chains: several elementwise ops as one step, and what products apply to their results.

A code is a tuple of instructions. Its values are numbered: the operands from 0 on (of an epilogue
the product is number 0), then the results in order; the last result is the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from sardonyx.graph.dtype import DType
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.ops import lookup
from sardonyx.ops.declare import INTERNAL, Op, optional, required
from sardonyx.ops.rules import Array, broadcast_shapes, is_half, wide

ABSENT: Final = -1  # the number of an argument that is not given
EPILOGUE: Final = optional("code")  # the attribute of products that a code may follow


@dataclass(frozen=True, slots=True)
class Instruction:
    """One op of a code."""

    op: tuple[str, str]  # domain and name
    args: tuple[int, ...]
    dtype: DType  # of the result
    attrs: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        given = [f"%{a}" if a != ABSENT else "-" for a in self.args]
        given += [f"{k}={v}" for k, v in self.attrs]
        return f"{self.op[1]}({', '.join(given)}):{self.dtype}"


Code = tuple[Instruction, ...]


def run_code(code: Code, operands: Sequence[Array]) -> Array:
    """The last result, by the references of the ops. Halves stay float32 in between."""
    values = [wide(x) for x in operands]
    for instruction in code:
        op = lookup(*instruction.op)
        assert op is not None
        arrays = [None if a == ABSENT else values[a] for a in instruction.args]
        (result,) = op.run(arrays, dict(instruction.attrs))
        values.append(wide(result))
    dtype = code[-1].dtype.np
    with np.errstate(all="ignore"):
        return values[-1].astype(dtype) if is_half(dtype) else values[-1]


def code_type(code: Code | None, product: DType) -> DType:
    """The element type of a product after its epilogue."""
    return code[-1].dtype if code else product


chain = Op("Chain", 1, "xs:T*", "y:U", attrs={"code": required("code")}, domain=INTERNAL)


@chain.infer
def _(g: Scope, *xs: Fact, code: Code) -> Fact:
    return Fact(code[-1].dtype, broadcast_shapes(g, *(x.dims for x in xs)))


@chain.reference
def _(*xs: Array, code: Code) -> Array:
    return run_code(code, xs)


OPS: Final = (chain,)
