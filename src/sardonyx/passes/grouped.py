"""Lowering of GroupQueryAttention: append to the cache, then attend to it."""

from __future__ import annotations

import math

from sardonyx.graph.graph import Node, Value
from sardonyx.graph.op import INTERNAL
from sardonyx.ops.attention.fused import UNSEEN
from sardonyx.ops.attention.group_query import Inputs
from sardonyx.ops.builder import Builder
from sardonyx.passes.attention import wide_value
from sardonyx.passes.heads import (
    HEADS_FIRST,
    Spans,
    given,
    joined,
    known,
    need_columns,
    parts_of,
)
from sardonyx.passes.rule import need, ranked


def group_query(b: Builder, node: Node, spans: Spans) -> tuple[Value | None, ...]:
    x, attrs = Inputs(*given(node, 16)), node.attrs
    ranked(*[v for v in node.inputs if v is not None])
    need(len(node.outputs) < 4 or not node.outputs[3].is_used, "shows its scores")
    heads, shared = attrs["num_heads"], attrs["kv_num_heads"]
    need(attrs["k_quant_type"] == b"NONE", "a quantized cache")
    need(not attrs["sliding_window_cache"], "a cache that holds only its window")
    parts = list(_split(b, x, heads, shared))
    for i, weight in enumerate((x.q_norm, x.k_norm)):
        if weight is not None:
            parts[i] = b.RMSNormalization(parts[i], weight, epsilon=attrs["qk_norm_epsilon"])
    q, k, v = (b.Transpose(part, perm=HEADS_FIRST) for part in parts)
    head = known(q.tensor.dims[3])
    key = (x.seqlens, x.total, q.tensor.dims[0], q.tensor.dims[2])
    span = spans[key] if key in spans else b.Spans(x.seqlens, x.total, q, domain=INTERNAL)
    turned = (q, x.cos, x.sin, x.positions) if attrs["do_rotary"] else ()
    append = b.node(
        "Append",
        *(k, v, x.past_key, x.past_value, span, x.total, *turned),
        outputs=3 if turned else 2,
        domain=INTERNAL,
        interleaved=attrs["rotary_interleaved"],
    )
    for mine, theirs in zip(append.outputs[:2], node.outputs[1:3], strict=False):
        mine.fact = theirs.fact
    if x.bias is not None:
        need_columns(b, x.bias, append.outputs[0])
    window = attrs["local_window_size"]
    y = b.Attention(
        append.outputs[2] if turned else q,
        *append.outputs[:2],
        *(wide_value(b, x.bias), span, wide_value(b, x.sink)),
        domain=INTERNAL,
        scale=attrs["scale"] or 1 / math.sqrt(head),
        zeroes=UNSEEN,  # rows of a prompt that is shorter than others may see no key
        rows_first=1,
        group=heads // shared,
        before=window - 1 if window > 0 else -1,
        behind=0 if attrs["causal"] else -1,
        softcap=max(attrs["softcap"], 0.0),
        smooth=int(attrs["smooth_softmax"] == 1),
    )
    spans[key] = span
    return joined(b, y, heads * head), *append.outputs[:2]


def _split(b: Builder, x: Inputs, heads: int, shared: int) -> tuple[Value, ...]:
    """Query, key and value as [batch, rows, heads, head]."""
    if x.key is not None:
        both = parts_of(b, x.key, shared), parts_of(b, x.value, shared)
        return parts_of(b, x.query, heads), *both
    whole = parts_of(b, x.query, heads + 2 * shared)
    parts: tuple[Value, ...] = b.Split(whole, b.ints(heads, shared, shared), axis=2, outputs=3)
    return parts
