"""Pooling on the CPU: of windows in channels-last images, and MaxUnpool."""

from __future__ import annotations

from typing import Final

from sardonyx.graph.dim import Size
from sardonyx.graph.dtype import F32, I8, U8
from sardonyx.graph.graph import Node, Value, input_of
from sardonyx.graph.op import INTERNAL
from sardonyx.ops.pooling.standard import pool_window, unpooled_shape
from sardonyx.ops.sliding_window import MAX_SPAN, Window
from sardonyx.place.lowered import Call
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import Lowerings, for_types
from sardonyx.providers.cpu.sliding_window import begin_padding, unsupported, window_ints


def _windowed(node: Node) -> tuple[Value, Window]:
    x = input_of(node, 0)
    return x, pool_window(x.tensor.rank, node.attrs)


def max_pool(node: Node) -> Call | No:
    x, window = _windowed(node)
    ints = window_ints(window, x.tensor.dims[1:-1])
    return unsupported(window) or Call("max_pool", (x,), ints, writes_rows=True)


def max_pool_indices(node: Node) -> Call | No:
    if len(node.outputs) < 2:
        return No("there is no output for the indices")
    x, window = _windowed(node)
    ints = window_ints(window, x.tensor.dims[1:-1])
    return unsupported(window) or Call("max_pool_indices_f32", (x,), ints)


def average_pool(node: Node) -> Call | No:
    x, window = _windowed(node)
    spatial = x.tensor.dims[1:-1]
    # In ceil mode a window may reach beyond the end padding; elements there are not counted, even
    # with count_include_pad. Auto-padding never leaves any: its limit is out of reach.
    ends: tuple[Size, ...] = (MAX_SPAN,) * len(spatial) if window.is_same else window.ends
    paddings = zip(begin_padding(window, spatial), spatial, ends, strict=True)
    limits = (begin + size + end for begin, size, end in paddings)
    ints = (*window_ints(window, spatial), node.attrs["count_include_pad"], *limits)
    return unsupported(window) or Call("average_pool_f32", (x,), ints, writes_rows=True)


def lp_pool(node: Node) -> Call | No:
    x, window = _windowed(node)
    ints = (*window_ints(window, x.tensor.dims[1:-1]), node.attrs["p"])
    return unsupported(window) or Call("lp_pool_f32", (x,), ints, writes_rows=True)


def max_unpool(node: Node) -> Call | No:
    x, indices, y = input_of(node, 0), input_of(node, 1), node.outputs[0]
    # Indices count in the default output shape.
    if y.tensor.dims != unpooled_shape(x.tensor.dims, node.attrs):
        return No("output_shape is not the default")
    return Call("max_unpool", (x, indices))


LOWERINGS: Final[Lowerings] = {
    (INTERNAL, "MaxPool"): for_types((F32, I8, U8), max_pool),
    (INTERNAL, "IndexedMaxPool"): for_types((F32,), max_pool_indices),
    (INTERNAL, "AveragePool"): for_types((F32,), average_pool),
    ("", "MaxUnpool"): max_unpool,
    (INTERNAL, "LpPool"): for_types((F32,), lp_pool),
}
