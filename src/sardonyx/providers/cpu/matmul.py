"""Matrix products on the CPU."""

from __future__ import annotations

from typing import Final

from sardonyx.graph.const import Recipe
from sardonyx.graph.constant import constant
from sardonyx.graph.dtype import BF16, F16, F32, F64, I32, I64, U32, U64
from sardonyx.graph.graph import Node, Value
from sardonyx.graph.op import INTERNAL, ONNX
from sardonyx.place.lowered import Call, Packed
from sardonyx.place.provider import No
from sardonyx.providers.cpu.elementwise import encode
from sardonyx.providers.cpu.epilogue import Epilogue, Rest, alike, is_like, is_row
from sardonyx.providers.cpu.index import MULTIPLIES_BF16, Lowering

PANEL: Final = 32  # columns of a packed panel (native/kernels/matmul/tile.h)
_WIDE: Final = (F32, F16, BF16)
_PLAIN: Final = (F64, I32, I64, U32, U64)
_BIAS, _RELU, _START, _APART = 1, 2, 4, 8  # of native/kernels/matmul/kernels.h
_SUFFIX: Final = {False: "", True: "_bf16"}  # of rows; products of bf16 are exact in these
_NOTHING: Final = (0, 0)  # the ints of an epilogue that does nothing


def packed_size(shape: tuple[int, ...], is_bf16: bool = False) -> int:
    """Bytes of matrices [..., k, n] in panels of floats, or of pairs of bf16 along k."""
    *stack, k, n = shape
    if is_bf16:
        k = -(-k // 2)
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
    after = _epilogue(node, operands)
    if isinstance(after, No):
        return after
    is_bf16 = MULTIPLIES_BF16 and (attrs["bf16"] == 1 or dtype is BF16)
    right, dims = _right(b, attrs["trans_b"], is_bf16)
    is_packed = isinstance(right, Packed)
    turned = (attrs["trans_a"], 0 if is_packed else attrs["trans_b"])
    return Call(
        ("matmul_packed" if is_packed else "matmul") + _SUFFIX[is_bf16],
        (a, right, *after.operands),
        (*turned, after.ints[0], len(dims), *dims, *after.ints[1:]),
        (float(attrs["alpha"]), *after.floats),
        shares=after.shares,
        writes_rows=b.tensor.rank > 1,
    )


def matmul(node: Node) -> Call | No:
    """The product as ONNX has it, where no pass made it ours."""
    a, b = (v for v in node.inputs if v is not None)
    if a.tensor.dtype not in (*_WIDE, *_PLAIN):
        return No(f"no kernel for {a.tensor.dtype}")
    return Call("matmul", (a, b), (0, 0, 0, 0, *_NOTHING), (1.0,))


def _right(b: Value, is_turned: int, is_bf16: bool) -> tuple[Value | Packed, tuple[int, ...]]:
    """The right side as the kernel takes it, and the dims of what is packed."""
    shape = b.tensor.static
    if not b.is_const or shape is None:
        return b, ()
    dims = (*shape[:-2], shape[-1], shape[-2]) if is_turned else shape
    row = "matmul_pack" + _SUFFIX[is_bf16]
    return Packed(_as_stored(b), row, packed_size(dims, is_bf16), (is_turned,)), dims


def _as_stored(b: Value) -> Value:
    """The constant of halves that one of float32 is made of: packing widens it as well."""
    const = b.const
    if isinstance(const, Recipe) and const.op.key == (ONNX, "Cast") and const.dtype is F32:
        halves = const.inputs[0]
        if halves is not None and halves.dtype in (F16, BF16):
            return constant(halves)
    return b


def _epilogue(node: Node, operands: list[Value]) -> Epilogue | No:
    """What tiles do themselves: sums that begin with a tensor, a constant row, a cut at 0."""
    y, rest = node.outputs[0], Rest(list(node.attrs["code"] or ()), operands)
    has_start = node.attrs["alpha"] == 1 and all(v.tensor.rank > 1 for v in node.inputs[:2] if v)
    bias, start = rest.take_sums(
        lambda v: v.is_const and is_row(v, y), lambda v: has_start and is_like(v, y)
    )
    flags = (0 if bias is None else _BIAS) | (0 if start is None else _START)
    flags |= _RELU if rest.take_relu() else 0
    program = encode(tuple(rest.code), [(F32, None), *((v.tensor.dtype, v) for v in rest.operands)])
    if isinstance(program, No):
        return program
    first = tuple(v for v in (bias, start) if v is not None)
    shares: tuple[tuple[int, int], ...] = () if start is None else ((1 + len(first), 0),)
    more = alike(rest.operands, y, 2 + len(first))
    if y.tensor.dtype is not F32:
        shares = more
    elif more and node.inputs[1] is not None and node.inputs[1].is_const:
        flags, shares = flags | _APART, (*shares, *more)
    return Epilogue((*first, *rest.operands), (flags, *program[0]), program[1], shares)


LOWERINGS: Final[dict[tuple[str, str], Lowering]] = {
    (INTERNAL, "MatMul"): product,
    (ONNX, "MatMul"): matmul,
}
