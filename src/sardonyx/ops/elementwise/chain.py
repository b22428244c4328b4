"""Chains: several elementwise ops fused into one step, also as the epilogue of matmul and conv.

A code is a tuple of instructions. Its values are numbered: operands from 0 (in an epilogue, 0 is
the matmul or convolution), then the results in program order; the last result is the output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.graph.dtype import BF16, BOOL, F16, F32, F64, I8, I16, INTS, U8, U16, DType
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import INTERNAL, ONNX, Op, optional, required
from sardonyx.ops import lookup
from sardonyx.ops.arrays import Array, is_half, wide
from sardonyx.ops.elementwise.fusible import FUSIBLE
from sardonyx.ops.inference import broadcast_shapes

ELEMENTWISE: Final = frozenset(FUSIBLE)  # ops that a code may contain
# Ops that a code may contain where scales and zero points are per-tensor.
CONVERSIONS: Final = frozenset(((ONNX, "DequantizeLinear"), (ONNX, "QuantizeLinear")))
QUANTIZED_TYPES: Final = frozenset((U8, I8, U16, I16))  # what they convert to and from
TYPES: Final = INTS | {F32, F64, F16, BF16, BOOL}  # element types of operands and results
ABSENT: Final = -1  # the number of an absent optional argument
EPILOGUE: Final = optional("code")  # the attribute of ops that can run an epilogue


@frozen
class Instruction:
    """One op of a code."""

    op: tuple[str, str]  # domain and name
    args: tuple[int, ...]
    dtype: DType  # of the result
    attrs: tuple[tuple[str, Any], ...] = ()

    def renumbered(self, operands: Sequence[int], results: int) -> Instruction:
        """Return the instruction with operands at these numbers, results shifted by `results`."""
        args = tuple(
            a if a == ABSENT else operands[a] if a < len(operands) else a + results
            for a in self.args
        )
        return Instruction(self.op, args, self.dtype, self.attrs)

    def __str__(self) -> str:
        args = [f"%{a}" if a != ABSENT else "-" for a in self.args]
        args += [f"{k}={v}" for k, v in self.attrs]
        return f"{self.op[1]}({', '.join(args)}):{self.dtype}"


Code = tuple[Instruction, ...]


def instruction_of(node: Node, number: Callable[[Value], int]) -> Instruction:
    """Return a node as an instruction over numbered values."""
    args = tuple(ABSENT if v is None else number(v) for v in node.inputs)
    return Instruction(node.op.key, args, node.outputs[0].tensor.dtype, tuple(node.attrs.items()))


def concatenated(first: Code, n_first: int, second: Code, n_second: int) -> Code:
    """Return one code for two, where operand 0 of the second is the result of the first.

    Its operands are those of the first, then those of the second except its operand 0.
    """
    operands = n_first + n_second - 1
    moved = [i.renumbered(range(n_first), operands - n_first) for i in first]
    second_operands = [operands + len(first) - 1, *range(n_first, operands)]
    moved += [i.renumbered(second_operands, operands + len(first) - n_second) for i in second]
    return tuple(moved)


def run_code(code: Code, operands: Sequence[Array]) -> Array:
    """Run a code by the ops' references; float16 and bfloat16 stay float32 in between."""
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
    """Return the element type after an epilogue."""
    return code[-1].dtype if code else product


chain = Op("Chain", 1, "xs:T*", "y:U", attrs={"code": required("code")}, domain=INTERNAL)


@chain.infer
def _(g: Scope, *xs: Fact, code: Code) -> Fact:
    return Fact(code[-1].dtype, broadcast_shapes(g, *(x.dims for x in xs)))


@chain.reference
def _(*xs: Array, code: Code) -> Array:
    return run_code(code, xs)


OPS: Final = (chain,)
