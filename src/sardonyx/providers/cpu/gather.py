"""Gathers and scatters, OneHot and Compress on the CPU."""

from __future__ import annotations

from typing import Final

from sardonyx.graph.dtype import F32, F64, INTS, STRING, U64
from sardonyx.graph.graph import Node, Value, input_of
from sardonyx.ops.inference import axis_of
from sardonyx.place.lowered import Call, Stored
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import IN_PLACE, Lowerings, padded_inputs
from sardonyx.providers.cpu.move import follows

_REDUCTIONS: Final = {b"none": 0, b"add": 1, b"mul": 2, b"max": 3, b"min": 4}
_REDUCED: Final = INTS | {F32, F64}  # types with arithmetic; scatters without it copy any type
_INDICES: Final = _REDUCED - {U64}


def _axis(node: Node) -> int:
    return axis_of(node.attrs["axis"], input_of(node, 0).tensor.rank)


def gather(node: Node) -> Call:
    return Call("gather", _stored_table(node), (_axis(node),))


def gather_elements(node: Node) -> Call:
    return Call("gather_elements", _stored_table(node), (_axis(node),))


def gather_nd(node: Node) -> Call:
    return Call("gather_nd", _stored_table(node), (node.attrs["batch_dims"],))


def _stored_table(node: Node) -> tuple[Value | Stored | None, ...]:
    """Return the inputs; a constant table is read from its file, whatever the alignment.

    The kernels copy bytes, so unlike those that compute they need no aligned copy of the weight.
    """
    table = input_of(node, 0)
    const = table.const
    if const is None or const.is_small or const.dtype.bits < 8 or const.dtype is STRING:
        return node.inputs
    return (Stored(table), *node.inputs[1:])


def _scatter(node: Node, kernel: str, *axis: int) -> Call | No:
    reduction, dtype = node.attrs["reduction"], input_of(node, 0).tensor.dtype
    if reduction != b"none" and dtype not in _REDUCED:
        return No(f"no kernel reduces {dtype}")
    return Call(kernel, node.inputs, (*axis, _REDUCTIONS[reduction]), shares=IN_PLACE)


def scatter_elements(node: Node) -> Call | No:
    return _scatter(node, "scatter_elements", _axis(node))


def scatter_nd(node: Node) -> Call | No:
    if not isinstance(input_of(node, 1).tensor.dims[-1], int):
        return No("the number of indexed axes is known only at run time")
    return _scatter(node, "scatter_nd")


def tensor_scatter(node: Node) -> Call:
    ints = (_axis(node), int(node.attrs["mode"] == b"circular"))
    return Call("tensor_scatter", padded_inputs(node, 3), ints)


def one_hot(node: Node) -> Call | No:
    indices, depth, out = input_of(node, 0).tensor, input_of(node, 1).tensor, node.outputs[0].tensor
    for fact in (indices, depth):
        if fact.dtype not in _INDICES:
            return No(f"no kernel for {fact.dtype} as an index")
    is_known = follows(out.dims, indices.dims, depth.sym)
    # Of the output: the new axis has `depth` elements.
    axis = axis_of(node.attrs["axis"], out.rank)
    return Call("one_hot" if is_known else "one_hot_at_run", node.inputs, (axis,))


def compress(node: Node) -> Call:
    axis = -1 if node.attrs["axis"] is None else _axis(node)  # -1: of the flattened tensor
    return Call("compress", node.inputs, (axis,))


LOWERINGS: Final[Lowerings] = {
    ("", "Gather"): gather,
    ("", "GatherElements"): gather_elements,
    ("", "GatherND"): gather_nd,
    ("", "ScatterElements"): scatter_elements,
    ("", "ScatterND"): scatter_nd,
    ("", "TensorScatter"): tensor_scatter,
    ("", "OneHot"): one_hot,
    ("", "Compress"): compress,
}
