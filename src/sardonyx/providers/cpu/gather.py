"""Reading and writing at indices on the CPU."""

from __future__ import annotations

from typing import Final

from sardonyx.graph.dtype import F32, F64, INTS, STRING, U64
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.ops.inference import axis_of
from sardonyx.place.lowered import Call, Lowered, Stored
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import Lowering
from sardonyx.providers.cpu.move import follows

_REDUCTIONS: Final = {b"none": 0, b"add": 1, b"mul": 2, b"max": 3, b"min": 4}
_WIDE: Final = frozenset(d for d in INTS | {F32, F64} if d.bits >= 8)


def gather(node: Node) -> Lowered:
    axis = axis_of(node.attrs["axis"], input_of(node, 0).tensor.rank)
    return Call("gather", _in_place(node), (axis,))


def _in_place(node: Node) -> tuple[Value | Stored | None, ...]:
    """The inputs; a constant table is read as it lies: bytes are moved at any alignment."""
    table = input_of(node, 0)
    const = table.const
    if const is None or const.is_small or const.dtype.bits < 8 or const.dtype is STRING:
        return tuple(node.inputs)
    return (Stored(table), *node.inputs[1:])


def gather_elements(node: Node) -> Lowered:
    axis = axis_of(node.attrs["axis"], input_of(node, 0).tensor.rank)
    return Call("gather_elements", _in_place(node), (axis,))


def gather_nd(node: Node) -> Lowered:
    return Call("gather_nd", _in_place(node), (node.attrs["batch_dims"],))


def _reduced(node: Node, row: str, *axis: int) -> Lowered | No:
    reduction, dtype = node.attrs["reduction"], input_of(node, 0).tensor.dtype
    if reduction != b"none" and dtype not in _WIDE:
        return No(f"no kernel reduces {dtype}")
    return Call(row, tuple(node.inputs), (*axis, _REDUCTIONS[reduction]))


def scatter_elements(node: Node) -> Lowered | No:
    axis = axis_of(node.attrs["axis"], input_of(node, 0).tensor.rank)
    return _reduced(node, "scatter_elements", axis)


def scatter_nd(node: Node) -> Lowered | No:
    if not isinstance(input_of(node, 1).tensor.dims[-1], int):
        return No("how many axes the indices choose is known only when it runs")
    return _reduced(node, "scatter_nd")


def tensor_scatter(node: Node) -> Lowered:
    axis = axis_of(node.attrs["axis"], input_of(node, 0).tensor.rank)
    inputs = (input_of(node, 0), input_of(node, 1), optional_input(node, 2))
    return Call("tensor_scatter", inputs, (axis, int(node.attrs["mode"] == b"circular")))


def one_hot(node: Node) -> Lowered | No:
    indices, depth, out = input_of(node, 0).tensor, input_of(node, 1).tensor, node.outputs[0].tensor
    for fact in (indices, depth):
        if fact.dtype not in _WIDE or fact.dtype is U64:
            return No(f"no kernel for {fact.dtype} as an index")
    axis = axis_of(node.attrs["axis"], out.rank)
    is_known = follows(out.dims, indices.dims, depth.sym)
    return Call("one_hot" if is_known else "one_hot_at_run", tuple(node.inputs), (axis,))


def compress(node: Node) -> Lowered:
    axis = node.attrs["axis"]
    where = -1 if axis is None else axis_of(axis, input_of(node, 0).tensor.rank)
    return Call("compress", tuple(node.inputs), (where,))


LOWERINGS: Final[dict[tuple[str, str], Lowering]] = {
    ("", "Gather"): gather,
    ("", "GatherElements"): gather_elements,
    ("", "GatherND"): gather_nd,
    ("", "ScatterElements"): scatter_elements,
    ("", "ScatterND"): scatter_nd,
    ("", "TensorScatter"): tensor_scatter,
    ("", "OneHot"): one_hot,
    ("", "Compress"): compress,
}
