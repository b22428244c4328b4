"""Tables and weights of few bits on the CPU, read as they lie in the model's file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sardonyx.graph.graph import Node, Value, given, optional
from sardonyx.graph.op import INTERNAL
from sardonyx.ops.dequantized import table_of
from sardonyx.place.lowered import Call, Stored
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import Lowering


def gather_dequantized(node: Node) -> Call | No:
    operands = (given(node, 0), given(node, 1), given(node, 2), optional(node, 3))
    return _read(operands, node.attrs)


def unpacked(node: Node) -> Call | No:
    """DequantizeLinear of a constant of few bits."""
    x = given(node, 0).tensor
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
    return _read((given(node, 0), None, given(node, 1), optional(node, 2)), attrs)


def _read(
    operands: tuple[Value, Value | None, Value, Value | None], attrs: Mapping[str, Any]
) -> Call | No:
    """A read of a table as it is stored: at indices, or of all of it where there are none."""
    data, indices, scale, zero = operands
    if not data.is_const or (zero is not None and not zero.is_const):
        return No("the table or its zero points are not constant")
    if scale.tensor.static is None:
        return No("the number of scales is not known")
    table = table_of(data.tensor, scale.tensor, attrs)
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


LOWERINGS: Final[dict[tuple[str, str], Lowering]] = {
    (INTERNAL, "GatherDequantized"): gather_dequantized
}
