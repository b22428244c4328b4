"""Attention on the CPU."""

from __future__ import annotations

import math
from typing import Final

from sardonyx.graph.dim import Size
from sardonyx.graph.dtype import BF16, F16, F32
from sardonyx.graph.graph import Node, Value
from sardonyx.graph.op import INTERNAL, MICROSOFT
from sardonyx.ops.attention.rotary import packed_heads
from sardonyx.place.lowered import Call
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import MULTIPLIES_BF16, Lowering

FLAGS: Final = (
    "rows_first",
    "nan_rows",
    "group",
    "window_left",
    "window_right",
    "bottom_right",
    "smooth",
)


def _filled(node: Node, count: int) -> tuple[Value | None, ...]:
    return (*node.inputs, *[None] * (count - len(node.inputs)))


def attention(node: Node) -> Call | No:
    attrs, inputs = node.attrs, _filled(node, 6)
    if inputs[3] is not None and inputs[3].tensor.dtype is not F32:
        return No("no kernel for a mask of halves")
    ints = tuple(attrs[name] for name in FLAGS)
    q = inputs[0]
    assert q is not None
    # A block of rows of a head is read before it is written, and by nobody else.
    turn = tuple(range(q.tensor.rank))
    if attrs["rows_first"]:
        turn = (*turn[:-3], turn[-2], turn[-3], turn[-1])
    is_like = tuple(q.tensor.dims[i] for i in turn) == node.outputs[0].tensor.dims
    return Call(
        "attention_bf16" if MULTIPLIES_BF16 and attrs["bf16"] else "attention",
        inputs,
        ints,
        (attrs["scale"], attrs["softcap"]),
        shares=((0, 0),) if is_like else (),
        permutation=turn,
    )


def append(node: Node) -> Call:
    inputs = _filled(node, 10)
    total = inputs[5]
    is_open = total is not None and total.tensor.sym is None
    row = "append_at_run" if is_open else "append"
    return Call(row, inputs, (node.attrs["interleaved"],), grows=((2, 0, 2), (3, 1, 2)))


def spans(node: Node) -> Call:
    return Call("spans", _filled(node, 4))


def linear(node: Node) -> Call | No:
    """LinearAttention, with a state that is kept after the last token only."""
    attrs, inputs = node.attrs, _filled(node, 6)
    if len(node.outputs) < 2:
        return No("no kernel that does not show its state")
    state = node.outputs[1].tensor
    if attrs.get("state_window", 0):
        return No("no kernel keeps the states of several tokens")
    if not isinstance(state.dims[2], int):
        return No("the size of a head is not known")
    scale = attrs["scale"] or 1 / math.sqrt(state.dims[2] or 1)
    heads = (attrs["q_num_heads"], attrs["kv_num_heads"])
    return Call("linear_attention", inputs, heads, (scale,))


def rotary(node: Node) -> Call | No:
    """The standard op."""
    return _rotary(node, _filled(node, 4), node.attrs["num_heads"] or 1)


def microsoft_rotary(node: Node) -> Call | No:
    x, positions, cos, sin = node.inputs
    assert x is not None
    assert cos is not None
    heads: Size = 1
    if x.tensor.rank == 3:
        heads = packed_heads(x.tensor.dims[2], cos.tensor.dims[1], node.attrs)
    return _rotary(node, (x, cos, sin, positions), heads)


def _rotary(node: Node, inputs: tuple[Value | None, ...], heads: Size) -> Call | No:
    x = inputs[0]
    assert x is not None
    if x.tensor.dtype not in (F32, F16, BF16):
        return No(f"no kernel for {x.tensor.dtype}")
    return Call("rotary", inputs, (heads, node.attrs["interleaved"]))


LOWERINGS: Final[dict[tuple[str, str], Lowering]] = {
    (INTERNAL, "Append"): append,
    (INTERNAL, "Attention"): attention,
    (INTERNAL, "Spans"): spans,
    (MICROSOFT, "LinearAttention"): linear,
    (MICROSOFT, "RotaryEmbedding"): microsoft_rotary,
    ("", "LinearAttention"): linear,
    ("", "RotaryEmbedding"): rotary,
}
