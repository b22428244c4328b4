"""n-bit weights and embedding tables on the CPU, read as the model's file stores them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sardonyx.graph.dtype import F32, F64
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.graph.op import GRADIENT, INTERNAL
from sardonyx.ops.nbits.gather import table_layout
from sardonyx.ops.nbits.internal import REALS, weight_layout
from sardonyx.place.lowered import Call, Stored
from sardonyx.place.provider import No
from sardonyx.providers.cpu.elementwise import encode
from sardonyx.providers.cpu.epilogue import alias_shares
from sardonyx.providers.cpu.index import Lowerings, for_types


def gather_dequantized(node: Node) -> Call | No:
    return _read(node, input_of(node, 1), 2, node.attrs)


def dequantized(node: Node) -> Call | No:
    """Lower DequantizeLinear of an n-bit constant: a gather of the whole table."""
    x = input_of(node, 0).tensor
    if x.rank == 0:
        return No(f"no kernel that dequantizes a scalar of {x.dtype}")
    attrs = {
        "axis": 0,
        "quantize_axis": 0 if x.rank == 1 else node.attrs["axis"] % x.rank,
        "block_size": node.attrs["block_size"],
        "bits": x.dtype.bits,
        "zero_default": 0,  # the zero point, if there is no input
        "fills": 0,
    }
    return _read(node, None, 1, attrs)


def _read(node: Node, indices: Value | None, at: int, attrs: Mapping[str, Any]) -> Call | No:
    """Read input 0 at indices, or all of it; inputs from `at` on are scales and zero points."""
    data, scale, zero = input_of(node, 0), input_of(node, at), optional_input(node, at + 1)
    if not data.is_const or (zero is not None and not zero.is_const):
        return No("the table or its zero points are not constant")
    if scale.tensor.static is None:
        return No("the number of scales is not known")
    table = table_layout(data.tensor, scale.tensor, attrs)
    by_axis = (*table.dims, *table.blocks, *table.strides, *table.zero_strides)
    # The table's geometry, computed once: kernels address a code, its scale and its zero point by
    # strides per axis.
    axis = -1 if indices is None else table.axis  # -1: all of the table
    spec = (axis, table.bits, int(table.is_signed), attrs["fills"], len(table.dims))
    scales = Stored(scale) if scale.is_const else scale
    inputs = (Stored(data), indices, scales, None if zero is None else Stored(zero))
    return Call("gather_dequantized", inputs, (*spec, *by_axis), (float(attrs["zero_default"]),))


def matmul(node: Node) -> Call | No:
    """Lower to one kernel for all layouts: it picks gemv or gemm when sizes are bound."""
    x, q, scale, zero = *(input_of(node, i) for i in range(3)), optional_input(node, 3)
    if zero is not None and zero.tensor.dtype is F64:
        return No("no kernel for zero points of f64")
    # Weights are read in place, from the mapped file: they must be constants.
    shapes = [_shape(v) for v in (q, scale, zero)]
    if shapes[0] is None or shapes[1] is None or (zero is not None and shapes[2] is None):
        return No("weights, scales or zero points are not constant")
    operands = [v for v in node.inputs[4:] if v is not None]
    program = encode(node.attrs["code"], [(F32, None), *((v.tensor.dtype, v) for v in operands)])
    if isinstance(program, No):
        return program
    layout = weight_layout(shapes[0], node.attrs)
    strides = [layout.scale_strides(shapes[1], "scales")]
    if zero is not None and shapes[2] is not None:
        strides.append(layout.zero_strides(shapes[2], not zero.tensor.dtype.is_float))
    # (block, column) strides of scales, then of zero points; 0 without zero points.
    by_block = [n for g in strides for n in (g.block_stride, g.column_stride)]
    flags = (int(layout.is_k_major), int(layout.is_signed))
    ints = (
        *(layout.k, layout.n, layout.bits, layout.block, *flags, layout.row_stride),
        *(node.attrs["level"], *by_block, *(0,) * (4 - len(by_block))),
    )
    stored = (Stored(q), Stored(scale), None if zero is None else Stored(zero))
    return Call(
        "matmul_nbits",
        (x, *stored, *operands),
        (*ints, *program[0]),
        (float(node.attrs["zero_default"]), *program[1]),
        shares=alias_shares(operands, node.outputs[0], 4),
    )


def matmul_gradient(node: Node) -> Call | No:
    """Lower the gradient of MatMulNBits: a product with the transposed weights."""
    dy, q, scale, zero = *(input_of(node, i) for i in range(3)), optional_input(node, 3)
    shape, rows = _shape(q), node.attrs["N"]
    if shape is None or not scale.is_const or (zero is not None and not zero.is_const):
        return No("weights, scales or zero points are not constant")
    layout = weight_layout(shape, {**node.attrs, "k_major": 0, "signed": 0})
    is_packed = zero is not None and not zero.tensor.dtype.is_float
    zero_stride = layout.zero_stride if is_packed else layout.n_blocks
    ints = (
        *(layout.k, rows, layout.bits, layout.block, 0, 0, layout.row_stride, 0),
        *(1, layout.n_blocks, 1, zero_stride),
    )
    stored = (Stored(q), Stored(scale), None if zero is None else Stored(zero))
    default = float(1 << layout.bits - 1)
    return Call("matmul_nbits_transposed", (dy, *stored), ints, (default,))


def _shape(value: Value | None) -> tuple[int, ...] | None:
    """Return the shape of a constant; None for others."""
    return value.tensor.static if value is not None and value.is_const else None


LOWERINGS: Final[Lowerings] = {
    (INTERNAL, "GatherDequantized"): gather_dequantized,
    (INTERNAL, "MatMulNBits"): for_types(REALS, matmul),
    (GRADIENT, "MatMulNBitsGradient"): for_types(REALS, matmul_gradient),
}
