"""Products with weights of 2, 4 or 8 bits on the CPU, read as they lie in the model's file."""

from __future__ import annotations

from typing import Final

from sardonyx.graph.dtype import F32, F64
from sardonyx.graph.graph import Node, Value
from sardonyx.graph.op import INTERNAL
from sardonyx.ops.nbits import REALS, form_of
from sardonyx.place.lowered import Call, Stored
from sardonyx.place.provider import No
from sardonyx.providers.cpu.chain import encode
from sardonyx.providers.cpu.epilogue import alike
from sardonyx.providers.cpu.index import Lowering


def product(node: Node) -> Call | No:
    """One row for all forms; which of its ways is taken is known when sizes are bound."""
    x, q, scale, zero, *rest = (*node.inputs, None)[: max(4, len(node.inputs))]
    assert x is not None
    assert q is not None
    assert scale is not None
    if x.tensor.dtype not in REALS:
        return No(f"no kernel for {x.tensor.dtype}")
    if zero is not None and zero.tensor.dtype is F64:
        return No("no kernel for zero points of f64")
    shapes = [_shape(v) for v in (q, scale, zero)]
    if shapes[0] is None or shapes[1] is None or (zero is not None and shapes[2] is None):
        return No("weights, scales or zero points are not constant")
    operands = [v for v in rest if v is not None]
    program = encode(node.attrs["code"], [(F32, None), *((v.tensor.dtype, v) for v in operands)])
    if isinstance(program, No):
        return program
    form = form_of(shapes[0], node.attrs)
    strides = [form.grid(shapes[1], "scales")]
    if zero is not None and shapes[2] is not None:
        strides.append(form.zero_grid(shapes[2], not zero.tensor.dtype.is_float))
    by_block = [n for g in strides for n in (g.block_stride, g.column_stride)]
    attrs = node.attrs
    ints = (
        *(form.k, form.n, form.bits, form.block, int(form.is_k_major), int(form.is_signed)),
        *(form.row_stride, attrs["level"], *by_block, *(0,) * (4 - len(by_block))),
    )
    stored = (Stored(q), Stored(scale), None if zero is None else Stored(zero))
    return Call(
        "matmul_nbits",
        (x, *stored, *operands),
        (*ints, *program[0]),
        (float(attrs["zero_default"]), *program[1]),
        shares=alike(operands, node.outputs[0], 4),
    )


def _shape(value: Value | None) -> tuple[int, ...] | None:
    """The shape of a constant."""
    return value.tensor.static if value is not None and value.is_const else None


LOWERINGS: Final[dict[tuple[str, str], Lowering]] = {(INTERNAL, "MatMulNBits"): product}
