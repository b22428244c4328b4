"""Tables and weights of few bits on the CPU, read as they lie in the model's file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sardonyx.graph.graph import Node, Value
from sardonyx.ops.declare import INTERNAL
from sardonyx.ops.dequantized import Table, table_of
from sardonyx.place.provider import No
from sardonyx.program.call import Call, Lowered, Stored
from sardonyx.providers.cpu.index import Lowering
from sardonyx.providers.cpu.move import given, optional


def gather_dequantized(node: Node) -> Lowered | No:
    data, indices, scale = (given(node, i) for i in range(3))
    table, zero = table_of(data.tensor, scale.tensor, node.attrs), optional(node, 3)
    return _read(table, (data, indices, scale, zero), node.attrs)


def _read(table: Table, operands: tuple[Value | None, ...], attrs: Mapping[str, Any]) -> Call | No:
    """A read of constants as they are stored: at indices, or of all where there are none."""
    data, indices, *scales = operands
    if any(v is not None and not v.is_const for v in (data, *scales)):
        return No("the table or its scales are not constant")
    axis = -1 if indices is None else table.axis
    by_axis = (*table.dims, *table.blocks, *table.strides, *table.zero_strides)
    spec = (axis, table.bits, int(table.is_signed), attrs.get("fills", 0), len(table.dims))
    stored = [None if v is None else Stored(v) for v in (data, *scales)]
    inputs = (stored[0], indices, *stored[1:])
    return Call("gather_dequantized", inputs, (*spec, *by_axis), (attrs.get("zero_default", 0.0),))


def unpacked(node: Node) -> Call | No:
    """A constant of few bits, as it is stored."""
    x, scale, zero = given(node, 0), given(node, 1), optional(node, 2)
    if not x.is_const or not scale.is_const or x.tensor.rank == 0:
        return No(f"no kernel that dequantizes {x.tensor.dtype} that is no constant tensor")
    attrs = {
        "axis": 0,
        "quantize_axis": 0 if x.tensor.rank == 1 else node.attrs["axis"] % x.tensor.rank,
        "block_size": node.attrs["block_size"],
        "bits": x.tensor.dtype.bits,
    }
    return _read(table_of(x.tensor, scale.tensor, attrs), (x, None, scale, zero), attrs)


LOWERINGS: Final[dict[tuple[str, str], Lowering]] = {
    (INTERNAL, "GatherDequantized"): gather_dequantized
}
