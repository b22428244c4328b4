"""Matrix multiplication on the CPU."""

from __future__ import annotations

import math
from typing import Final

from sardonyx.graph.const import Recipe
from sardonyx.graph.constant_values import constant
from sardonyx.graph.dtype import BF16, F16, F32, F64, I32, I64, U32, U64
from sardonyx.graph.graph import Node, Value, input_of
from sardonyx.graph.op import INTERNAL, ONNX
from sardonyx.place.lowered import Call, Packed
from sardonyx.place.provider import No
from sardonyx.providers.cpu.epilogue import (
    Epilogue,
    EpilogueSplitter,
    alias_shares,
    is_like,
    is_row,
)
from sardonyx.providers.cpu.index import MULTIPLIES_BF16, Lowerings, for_types

PANEL: Final = 32  # columns of a packed panel (native/kernels/matmul/tile.h)
_NARROW: Final = (F32, F16, BF16)  # accumulated in float32
_UNTILED: Final = (F64, I32, I64, U32, U64)  # without packed panels and epilogues
_BIAS, _RELU, _START, _BUFFERED = 1, 2, 4, 8  # flags in native/kernels/matmul/kernels.h
_SUFFIX: Final = {
    False: "",
    True: "_bf16",
}  # suffix of kernel names; bf16 products are exact in float32
_NO_CODE: Final = (0, 0)  # the ints of an empty epilogue


def packed_size(shape: tuple[int, ...], is_bf16: bool = False) -> int:
    """Return the bytes of matrices [..., k, n] in panels of floats, or of bf16 pairs along k."""
    *stack, k, n = shape
    depth = -(-k // 2) if is_bf16 else k
    return math.prod(stack) * -(-n // PANEL) * PANEL * depth * 4


def fused_matmul(node: Node) -> Call | No:
    """Lower to packed panels if B is constant; else the kernel packs B in each call."""
    a, b, *operands = (v for v in node.inputs if v is not None)
    attrs, dtype = node.attrs, a.tensor.dtype
    transposes = (attrs["trans_a"], attrs["trans_b"])
    if dtype in _UNTILED:
        if attrs["code"] or (attrs["alpha"] != 1 and dtype is not F64):
            return No(f"no kernel for a matmul of {dtype} with an epilogue")
        return Call("matmul", (a, b), (*transposes, 0, 0, *_NO_CODE), (float(attrs["alpha"]),))
    epilogue = _epilogue_of(node, operands)
    if isinstance(epilogue, No):
        return epilogue
    is_bf16 = MULTIPLIES_BF16 and (attrs["bf16"] == 1 or dtype is BF16)
    right, dims = _prepacked(b, attrs["trans_b"], is_bf16)
    is_packed = isinstance(right, Packed)
    if is_packed:
        transposes = (attrs["trans_a"], 0)
    return Call(
        ("matmul_packed" if is_packed else "matmul") + _SUFFIX[is_bf16],
        (a, right, *epilogue.operands),
        (*transposes, epilogue.ints[0], len(dims), *dims, *epilogue.ints[1:]),
        (float(attrs["alpha"]), *epilogue.floats),
        shares=epilogue.shares,
        writes_rows=b.tensor.rank > 1,
    )


def matmul(node: Node) -> Call:
    """Lower the standard op, which passes replace by the internal one at most levels."""
    return Call("matmul", node.inputs, (0, 0, 0, 0, *_NO_CODE), (1.0,))


def _prepacked(
    b: Value, is_transposed: int, is_bf16: bool
) -> tuple[Value | Packed, tuple[int, ...]]:
    """Return B as the kernel reads it, and its dims [..., k, n] if it is packed."""
    shape = b.tensor.static
    if not b.is_const or shape is None:
        return b, ()
    dims = (*shape[:-2], shape[-1], shape[-2]) if is_transposed else shape
    kernel = "matmul_pack" + _SUFFIX[is_bf16]
    return Packed(_uncast(b), kernel, packed_size(dims, is_bf16), (is_transposed,)), dims


def _uncast(b: Value) -> Value:
    """Return the 16-bit constant that a float32 one is cast from: packing kernels widen it."""
    const = b.const
    if isinstance(const, Recipe) and const.op.key == (ONNX, "Cast") and const.dtype is F32:
        source = const.inputs[0]
        if source is not None and source.dtype in (F16, BF16):
            return constant(source)
    return b


def _epilogue_of(node: Node, operands: list[Value]) -> Epilogue | No:
    """Split the fused code: initial accumulators, bias and Relu are options of the tile kernel."""
    y, rest = node.outputs[0], EpilogueSplitter(list(node.attrs["code"] or ()), operands)
    is_matrix = all(input_of(node, i).tensor.rank > 1 for i in (0, 1))
    has_start = node.attrs["alpha"] == 1 and is_matrix
    bias, start = rest.take_addends(
        lambda v: v.is_const and is_row(v, y), lambda v: has_start and is_like(v, y)
    )
    flags = (0 if bias is None else _BIAS) | (0 if start is None else _START)
    flags |= _RELU if rest.take_relu() else 0
    program = rest.encoded()
    if isinstance(program, No):
        return program
    first = tuple(v for v in (bias, start) if v is not None)
    # Operands of the code may alias y only if the results of a tile do not go to y before the code
    # has run. They go to a buffer if y has another type, or if that is requested.
    shares: tuple[tuple[int, int], ...] = () if start is None else ((1 + len(first), 0),)
    more = alias_shares(rest.operands, y, 2 + len(first))
    if y.tensor.dtype is not F32:
        shares = more
    elif more and node.inputs[1] is not None and node.inputs[1].is_const:
        flags, shares = flags | _BUFFERED, (*shares, *more)
    return Epilogue((*first, *rest.operands), (flags, *program[0]), program[1], shares)


LOWERINGS: Final[Lowerings] = {
    (INTERNAL, "MatMul"): for_types((*_NARROW, *_UNTILED), fused_matmul),
    (ONNX, "MatMul"): for_types((*_NARROW, *_UNTILED), matmul),
}
