"""Matrix products on the CPU."""

from __future__ import annotations

from typing import Final

from sardonyx.graph.dtype import BF16, F16, F32, F64, I32, I64, U32, U64
from sardonyx.graph.graph import Node, Value
from sardonyx.ops.chain import Code
from sardonyx.ops.declare import INTERNAL, ONNX
from sardonyx.place.provider import No
from sardonyx.program.call import Call, Packed
from sardonyx.providers.cpu.chain import encode
from sardonyx.providers.cpu.index import Lowering

PANEL: Final = 32  # columns of a packed panel (native/kernels/gemm/tile.h)
_WIDE: Final = (F32, F16, BF16)
_PLAIN: Final = (F64, I32, I64, U32, U64)
_BIAS, _RELU = 1, 2  # of native/kernels/gemm/rows.h
_NOTHING: Final = (0, 0)  # the ints of an epilogue that does nothing


def packed_size(shape: tuple[int, ...]) -> int:
    """Bytes of matrices [..., k, n] in panels."""
    *stack, k, n = shape
    count = 1
    for size in stack:
        count *= size
    return count * -(-n // PANEL) * PANEL * k * 4


def product(node: Node) -> Call | No:
    """By packed panels where the right side is constant, else packed as part of the call."""
    a, b, *operands = (v for v in node.inputs if v is not None)
    attrs, dtype = node.attrs, a.tensor.dtype
    if dtype in _PLAIN:
        if attrs["code"] or (attrs["alpha"] != 1 and dtype is not F64):
            return No(f"no kernel for a product of {dtype} with an epilogue")
        turned = (attrs["trans_a"], attrs["trans_b"])
        return Call("matmul", (a, b), (*turned, 0, 0, *_NOTHING), (float(attrs["alpha"]),))
    if dtype not in _WIDE:
        return No(f"no kernel for {dtype}")
    flags = _flags(attrs["code"], operands, node.outputs[0])
    program = encode(
        None if flags else attrs["code"], [(F32, None), *((v.tensor.dtype, v) for v in operands)]
    )
    if isinstance(program, No):
        return program
    right, dims = _right(b, attrs["trans_b"])
    is_packed = isinstance(right, Packed)
    turned = (attrs["trans_a"], 0 if is_packed else attrs["trans_b"])
    return Call(
        "matmul_packed" if is_packed else "matmul",
        (a, right, *operands),
        (*turned, flags, len(dims), *dims, *program[0]),
        (float(attrs["alpha"]), *program[1]),
    )


def matmul(node: Node) -> Call | No:
    """The product as ONNX has it, where no pass made it ours."""
    a, b = (v for v in node.inputs if v is not None)
    if a.tensor.dtype not in (*_WIDE, *_PLAIN):
        return No(f"no kernel for {a.tensor.dtype}")
    return Call("matmul", (a, b), (0, 0, 0, 0, *_NOTHING), (1.0,))


def _right(b: Value, is_turned: int) -> tuple[Value | Packed, tuple[int, ...]]:
    """The right side as the kernel takes it, and the dims of what is packed."""
    shape = b.tensor.static
    if not b.is_const or shape is None:
        return b, ()
    dims = (*shape[:-2], shape[-1], shape[-2]) if is_turned else shape
    return Packed(b, "matmul_pack", packed_size(dims), (is_turned,)), dims


def _flags(code: Code | None, operands: list[Value], y: Value) -> int:
    """What tiles add and cut off themselves: a constant row of f32, and what is below 0."""
    if not code or any(i.dtype is not F32 for i in code):
        return 0
    names = [i.op[1] for i in code]
    if names == ["Relu"]:
        return _RELU
    if names not in (["Add"], ["Add", "Relu"]) or set(code[0].args) != {0, 1}:
        return 0
    if not _is_row(operands[0], y):
        return 0
    return _BIAS | _RELU if len(code) == 2 else _BIAS


def _is_row(bias: Value, y: Value) -> bool:
    shape = bias.tensor.static
    if not bias.is_const or bias.tensor.dtype is not F32 or not shape:
        return False
    return shape[-1] == y.tensor.dims[-1] and all(d == 1 for d in shape[:-1])


LOWERINGS: Final[dict[tuple[str, str], Lowering]] = {
    (INTERNAL, "MatMul"): product,
    (ONNX, "MatMul"): matmul,
}
