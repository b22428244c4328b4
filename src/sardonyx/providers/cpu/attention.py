"""Attention on the CPU."""

from __future__ import annotations

import math
from typing import Final

from sardonyx.graph.dim import Size
from sardonyx.graph.dtype import BOOL, F32, F64, FLOATS
from sardonyx.graph.graph import Node, Value, input_of
from sardonyx.graph.op import GRADIENT, INTERNAL, MICROSOFT
from sardonyx.ops.attention.rotary import packed_heads
from sardonyx.place.lowered import Call
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import (
    IN_PLACE,
    MULTIPLIES_BF16,
    Lowerings,
    for_types,
    padded_inputs,
)

FLAGS: Final = (
    "rows_first", "nan_rows", "group", "window_left", "window_right", "bottom_right", "smooth",
)  # fmt: skip


def attention(node: Node) -> Call | No:
    """Lower the internal Attention: flash attention, or one for few query rows."""
    attrs, inputs = node.attrs, padded_inputs(node, 6)
    if inputs[3] is not None and inputs[3].tensor.dtype is not F32:
        return No("no kernel for a mask of float16")
    q = input_of(node, 0).tensor
    # In place: a block of query rows of a head is read, by one thread, before its output is
    # written. With `rows_first` the output has heads and rows swapped.
    axes = tuple(range(q.rank))
    if attrs["rows_first"]:
        axes = (*axes[:-3], axes[-2], axes[-3], axes[-1])
    is_like = tuple(q.dims[i] for i in axes) == node.outputs[0].tensor.dims
    return Call(
        "attention_bf16" if MULTIPLIES_BF16 and attrs["bf16"] else "attention",
        inputs,
        tuple(attrs[name] for name in FLAGS),
        (attrs["scale"], attrs["softcap"]),
        shares=IN_PLACE if is_like else (),
        permutation=axes,
    )


def training(node: Node) -> Call | No:
    """Lower AttentionTraining, or AttentionGradient, whose inputs also include dy, y and lse.

    The operands are those of the kernel of Attention, then the mask of dropout and the others.
    """
    inputs: tuple[Value | None, ...]
    spans = sink = None  # only in inference
    if node.op.name == "AttentionGradient":
        dy, q, k, v, y, lse, mask, keep = padded_inputs(node, 8)
        kernel, inputs = "attention_gradient", (q, k, v, mask, spans, sink, keep, dy, y, lse)
    else:
        q, k, v, mask, keep = padded_inputs(node, 5)
        kernel, inputs = "attention_training", (q, k, v, mask, spans, sink, keep)
    if mask is not None and mask.tensor.dtype not in (BOOL, F32):
        return No(f"no kernel for a mask of {mask.tensor.dtype}")
    attrs = node.attrs
    return Call(kernel, inputs, (attrs["is_causal"],), (attrs["scale"], attrs["keep_scale"]))


def append(node: Node) -> Call:
    """Lower Append; the caches grow in place where the program allows it."""
    inputs = padded_inputs(node, 10)
    # The total length is an input of GroupQueryAttention; past + new if it is absent.
    total = inputs[5]
    is_open = total is not None and total.tensor.sym is None
    kernel = "append_at_run" if is_open else "append"
    # Past key and value (inputs 2 and 3) grow into outputs 0 and 1 along the sequence axis.
    return Call(kernel, inputs, (node.attrs["interleaved"],), grows=((2, 0, 2), (3, 1, 2)))


def spans(node: Node) -> Call:
    """Lower Spans: for each batch entry the position of its first new row, and its key count."""
    return Call("spans", padded_inputs(node, 4))


def linear(node: Node) -> Call | No:
    """Lower LinearAttention that returns its state after the last token only."""
    attrs = node.attrs
    if len(node.outputs) < 2:
        return No("the state output is required")
    if attrs.get("state_window", 0):
        return No("no kernel returns the states of several tokens")
    head = node.outputs[1].tensor.dims[2]
    if not isinstance(head, int):
        return No("the size of a head is not known")
    heads = (attrs["q_num_heads"], attrs["kv_num_heads"])
    scale = attrs["scale"] or 1 / math.sqrt(head or 1)  # 0: the default
    return Call("linear_attention", padded_inputs(node, 6), heads, (scale,))


def rotary(node: Node) -> Call | No:
    return _rotary(node, padded_inputs(node, 4), node.attrs["num_heads"] or 1)


def microsoft_rotary(node: Node) -> Call | No:
    x, positions, cos, sin = (input_of(node, i) for i in range(4))
    heads: Size = 1  # of a row: an input of rank 4 has heads as an axis
    if x.tensor.rank == 3:
        heads = packed_heads(x.tensor.dims[2], cos.tensor.dims[1], node.attrs)
    return _rotary(node, (x, cos, sin, positions), heads)


def _rotary(node: Node, inputs: tuple[Value | None, ...], heads: Size) -> Call | No:
    dtype = input_of(node, 0).tensor.dtype
    if dtype not in FLOATS - {F64}:
        return No(f"no kernel for {dtype}")
    return Call("rotary", inputs, (heads, node.attrs["interleaved"]))


LOWERINGS: Final[Lowerings] = {
    (GRADIENT, "AttentionGradient"): for_types((F32,), training),
    (GRADIENT, "AttentionTraining"): for_types((F32,), training),
    (INTERNAL, "Append"): append,
    (INTERNAL, "Attention"): attention,
    (INTERNAL, "Spans"): spans,
    (MICROSOFT, "LinearAttention"): linear,
    (MICROSOFT, "RotaryEmbedding"): microsoft_rotary,
    ("", "LinearAttention"): linear,
    ("", "RotaryEmbedding"): rotary,
}
