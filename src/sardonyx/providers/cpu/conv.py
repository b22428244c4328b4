"""Convolutions with the channels last on the CPU."""

from __future__ import annotations

import math
from typing import Final

from sardonyx.graph.dtype import F32
from sardonyx.graph.graph import Node, Value
from sardonyx.ops.conv import transposed_front
from sardonyx.ops.declare import INTERNAL
from sardonyx.ops.window import Ints, window
from sardonyx.place.provider import No
from sardonyx.program.call import Call, Packed
from sardonyx.providers.cpu.index import Lowering
from sardonyx.providers.cpu.window import MAX_SPATIAL, unfit, window_ints

PANEL: Final = 32  # output channels of a packed panel
NARROW: Final = 16  # output channels of a group, below which groups share vectors
MAX_PHASES: Final = 4096  # of a transposed convolution: the product of its strides


def conv(node: Node) -> Call | No:
    operands = _weights(node)
    if isinstance(operands, No):
        return operands
    x, w, shape = operands
    moved = window(shape[2:], node.attrs)
    if why := unfit(moved):
        return why
    group = node.attrs["group"]
    ints = (*window_ints(moved, x.tensor.dims[1:-1]), group)
    is_narrow = group > 1 and shape[0] // group < NARROW and shape[1] < NARROW
    parts = 1 if is_narrow else group
    size = parts * _panels(shape[0] // parts) * PANEL * math.prod(shape[1:]) * 4
    packed = Packed(w, "conv_pack", size, (parts,))
    return Call("conv_depthwise_f32" if is_narrow else "conv_f32", (x, packed), ints)


def conv_transpose(node: Node) -> Call | No:
    operands = _weights(node)
    if isinstance(operands, No):
        return operands
    x, w, shape = operands
    moved = window(shape[2:], node.attrs)
    if why := unfit(moved):
        return why
    if math.prod(moved.strides) > MAX_PHASES:
        return No(f"the strides {moved.strides} are too large")
    group = node.attrs["group"]
    spatial, outs = x.tensor.dims[1:-1], node.outputs[0].tensor.dims[1:-1]
    front = transposed_front(moved, (spatial, outs), node.attrs)
    ints = (*moved.kernel, *moved.strides, *moved.dilations, *front, group)
    ones = (1,) * (MAX_SPATIAL - len(spatial))
    size = group * _panels(shape[1]) * PANEL * (shape[0] // group) * math.prod(shape[2:]) * 4
    layout = (*ones, *shape[2:], *ones, *moved.strides, *ones, *moved.dilations, group)
    packed = Packed(w, "conv_transpose_pack", size, layout)
    return Call("conv_transpose_f32", (x, packed), ints)


def _panels(maps: int) -> int:
    return -(-maps // PANEL)


def _weights(node: Node) -> tuple[Value, Value, Ints] | No:
    """The image, and constant weights with their shape."""
    x, w = node.inputs[:2]
    assert x is not None
    assert w is not None
    if x.tensor.dtype is not F32:
        return No(f"no kernel for {x.tensor.dtype}")
    shape = w.tensor.static
    if not w.is_const or shape is None:
        return No("the weights are not constant")
    if 0 in shape:
        return No("the weights are empty")
    return x, w, shape


LOWERINGS: Final[dict[tuple[str, str], Lowering]] = {
    (INTERNAL, "Conv"): conv,
    (INTERNAL, "ConvTranspose"): conv_transpose,
}
