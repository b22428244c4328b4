"""Pooling on the CPU: of windows in images, channels-last or planar, and MaxUnpool."""

from __future__ import annotations

from typing import Final

from sardonyx.base.records import frozen
from sardonyx.graph.dim import Shape, Size
from sardonyx.graph.dtype import F32, I8, U8
from sardonyx.graph.graph import Node, Value, input_of
from sardonyx.graph.op import INTERNAL
from sardonyx.ops.pooling.standard import pool_window, unpooled_shape
from sardonyx.ops.sliding_window import MAX_SPAN, Window
from sardonyx.place.lowered import Call
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import Lowerings, for_types
from sardonyx.providers.cpu.sliding_window import begin_padding, unsupported, window_ints


@frozen
class _Pooled:
    """The input, window and spatial sizes of a pooling; internal ops are channels-last."""

    x: Value
    window: Window
    spatial: Shape
    is_planar: bool

    @staticmethod
    def of(node: Node) -> _Pooled:
        x, is_planar = input_of(node, 0), node.op.domain != INTERNAL
        dims = x.tensor.dims
        spatial = dims[2:] if is_planar else dims[1:-1]
        return _Pooled(x, pool_window(x.tensor.rank, node.attrs), spatial, is_planar)

    def call(self, kernels: tuple[str, str], *more: Size) -> Call | No:
        """Call one of two kernels: for channels-last images, or for planar ones."""
        ints = (*window_ints(self.window, self.spatial), *more)
        name = kernels[self.is_planar]
        return unsupported(self.window) or Call(
            name, (self.x,), ints, writes_rows=not self.is_planar
        )


def max_pool(node: Node) -> Call | No:
    if len(node.outputs) > 1:
        return No("no kernel finds indices in planar images")
    return _Pooled.of(node).call(("max_pool", "planar_max_pool"))


def max_pool_indices(node: Node) -> Call | No:
    if len(node.outputs) < 2:
        return No("there is no output for the indices")
    pooled = _Pooled.of(node)
    ints = window_ints(pooled.window, pooled.spatial)
    return unsupported(pooled.window) or Call("max_pool_indices_f32", (pooled.x,), ints)


def average_pool(node: Node) -> Call | No:
    pooled = _Pooled.of(node)
    window, spatial = pooled.window, pooled.spatial
    # In ceil mode a window may reach beyond the end padding; elements there are not counted, even
    # with count_include_pad. Auto-padding never leaves any: its limit is out of reach.
    ends: tuple[Size, ...] = (MAX_SPAN,) * len(spatial) if window.is_same else window.ends
    paddings = zip(begin_padding(window, spatial), spatial, ends, strict=True)
    limits = (begin + size + end for begin, size, end in paddings)
    kernels = ("average_pool_f32", "planar_average_pool")
    return pooled.call(kernels, node.attrs["count_include_pad"], *limits)


def lp_pool(node: Node) -> Call | No:
    return _Pooled.of(node).call(("lp_pool_f32", "planar_lp_pool"), node.attrs["p"])


def max_unpool(node: Node) -> Call | No:
    x, indices, y = input_of(node, 0), input_of(node, 1), node.outputs[0]
    # Indices count in the default output shape.
    if y.tensor.dims != unpooled_shape(x.tensor.dims, node.attrs):
        return No("output_shape is not the default")
    return Call("max_unpool", (x, indices))


LOWERINGS: Final[Lowerings] = {
    (INTERNAL, "IndexedMaxPool"): for_types((F32,), max_pool_indices),
    ("", "MaxUnpool"): max_unpool,
    **{(domain, "MaxPool"): for_types((F32, I8, U8), max_pool) for domain in ("", INTERNAL)},
    **{(domain, "AveragePool"): for_types((F32,), average_pool) for domain in ("", INTERNAL)},
    **{(domain, "LpPool"): for_types((F32,), lp_pool) for domain in ("", INTERNAL)},
}
