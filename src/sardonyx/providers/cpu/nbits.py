"""Tables and weights of n bits on the CPU, read as the model's file stores them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sardonyx.graph.dtype import F32, F64
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.graph.op import INTERNAL
from sardonyx.ops.nbits.gather import table_layout
from sardonyx.ops.nbits.internal import REALS, weight_layout
from sardonyx.place.lowered import Call, Stored
from sardonyx.place.provider import No
from sardonyx.providers.cpu.elementwise import encode
from sardonyx.providers.cpu.epilogue import alike
from sardonyx.providers.cpu.index import Lowering


def gather_dequantized(node: Node) -> Call | No:
    operands = (input_of(node, 0), input_of(node, 1), input_of(node, 2), optional_input(node, 3))
    return _read(operands, node.attrs)


def unpacked(node: Node) -> Call | No:
    """DequantizeLinear of a constant of few bits."""
    x = input_of(node, 0).tensor
    if x.rank == 0:
        return No(f"no kernel that dequantizes one number of {x.dtype}")
    attrs = {
        "axis": 0,
        "quantize_axis": 0 if x.rank == 1 else node.attrs["axis"] % x.rank,
        "block_size": node.attrs["block_size"],
        "bits": x.dtype.bits,
        "zero_default": 0,
        "fills": 0,
    }
    return _read((input_of(node, 0), None, input_of(node, 1), optional_input(node, 2)), attrs)


def _read(
    operands: tuple[Value, Value | None, Value, Value | None], attrs: Mapping[str, Any]
) -> Call | No:
    """A read of a table as it is stored: at indices, or of all of it where there are none."""
    data, indices, scale, zero = operands
    if not data.is_const or (zero is not None and not zero.is_const):
        return No("the table or its zero points are not constant")
    if scale.tensor.static is None:
        return No("the number of scales is not known")
    table = table_layout(data.tensor, scale.tensor, attrs)
    by_axis = (*table.dims, *table.blocks, *table.strides, *table.zero_strides)
    axis = -1 if indices is None else table.axis
    spec = (axis, table.bits, int(table.is_signed), attrs["fills"], len(table.dims))
    inputs = (
        Stored(data),
        indices,
        Stored(scale) if scale.is_const else scale,
        None if zero is None else Stored(zero),
    )
    return Call("gather_dequantized", inputs, (*spec, *by_axis), (float(attrs["zero_default"]),))


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
    form = weight_layout(shapes[0], node.attrs)
    strides = [form.scale_strides(shapes[1], "scales")]
    if zero is not None and shapes[2] is not None:
        strides.append(form.zero_strides(shapes[2], not zero.tensor.dtype.is_float))
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


LOWERINGS: Final[dict[tuple[str, str], Lowering]] = {
    (INTERNAL, "GatherDequantized"): gather_dequantized,
    (INTERNAL, "MatMulNBits"): product,
}
