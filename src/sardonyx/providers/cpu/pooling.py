"""Pools with the channels last on the CPU."""

from __future__ import annotations

from typing import Final

from sardonyx.graph.dim import Size
from sardonyx.graph.dtype import F32, I8, U8
from sardonyx.graph.graph import Node, Value
from sardonyx.graph.op import INTERNAL
from sardonyx.ops.pooling.standard import pool_window
from sardonyx.ops.sliding_window import MAX_SPAN, Window
from sardonyx.place.lowered import Call
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import Lowering
from sardonyx.providers.cpu.sliding_window import fronts, unfit, window_ints


def _operand(node: Node) -> Value:
    x = node.inputs[0]
    assert x is not None
    return x


def _windowed(node: Node) -> tuple[Value, Window]:
    x = _operand(node)
    return x, pool_window(x.tensor.rank, node.attrs)


def max_pool(node: Node) -> Call | No:
    x, moved = _windowed(node)
    if x.tensor.dtype not in (F32, I8, U8):
        return No(f"no kernel for {x.tensor.dtype}")
    return unfit(moved) or Call(
        "max_pool", (x,), window_ints(moved, x.tensor.dims[1:-1]), writes_rows=True
    )


def average_pool(node: Node) -> Call | No:
    x, moved = _windowed(node)
    if x.tensor.dtype is not F32:
        return No(f"no kernel for {x.tensor.dtype}")
    spatial = x.tensor.dims[1:-1]
    # A window that reaches beyond the padding, in ceil mode, does not count what lies there.
    ends: tuple[Size, ...] = (MAX_SPAN,) * len(spatial) if moved.is_same else moved.ends
    rows = zip(fronts(moved, spatial), spatial, ends, strict=True)
    limits = (front + size + end for front, size, end in rows)
    ints = (*window_ints(moved, spatial), node.attrs["count_include_pad"], *limits)
    return unfit(moved) or Call("average_pool_f32", (x,), ints, writes_rows=True)


def lp_pool(node: Node) -> Call | No:
    x, moved = _windowed(node)
    if x.tensor.dtype is not F32:
        return No(f"no kernel for {x.tensor.dtype}")
    ints = (*window_ints(moved, x.tensor.dims[1:-1]), node.attrs["p"])
    return unfit(moved) or Call("lp_pool_f32", (x,), ints, writes_rows=True)


def _of_images(row: str) -> Lowering:
    def lower(node: Node) -> Call | No:
        x = _operand(node)
        if x.tensor.dtype is not F32:
            return No(f"no kernel for {x.tensor.dtype}")
        return Call(row, (x,), (node.attrs["p"],) if "p" in node.attrs else ())

    return lower


LOWERINGS: Final[dict[tuple[str, str], Lowering]] = {
    (INTERNAL, "MaxPool"): max_pool,
    (INTERNAL, "AveragePool"): average_pool,
    (INTERNAL, "LpPool"): lp_pool,
    (INTERNAL, "GlobalMaxPool"): _of_images("global_max_pool_f32"),
    (INTERNAL, "GlobalAveragePool"): _of_images("global_average_pool_f32"),
    (INTERNAL, "GlobalLpPool"): _of_images("global_lp_pool_f32"),
}
