"""Grouped-query attention (GQA): GroupQueryAttention as cache append and Attention.

Several query heads share one key-value head. The op also splits a packed QKV input, normalizes and
rotates queries and keys (RoPE), and masks by sequence lengths and a sliding window.
"""

from __future__ import annotations

from typing import Any

from sardonyx.graph.graph import Node, Value
from sardonyx.graph.op import INTERNAL
from sardonyx.ops.attention.fused import UNSEEN
from sardonyx.ops.attention.group_query import GroupQueryInputs
from sardonyx.ops.builder import Builder
from sardonyx.ops.decomposition import Outputs
from sardonyx.passes.attention import to_float32
from sardonyx.passes.multi_head import (
    HEADS_FIRST,
    Spans,
    attention_scale,
    inputs_of,
    merge_heads,
    need_mask_columns,
    split_heads,
)
from sardonyx.passes.rule import need


def group_query(b: Builder, node: Node, spans: Spans) -> Outputs:
    """Decompose GroupQueryAttention."""
    x, attrs = GroupQueryInputs(*inputs_of(node, 16)), node.attrs
    need(len(node.outputs) < 4 or not node.outputs[3].is_used, "the scores are an output")
    heads, shared = attrs["num_heads"], attrs["kv_num_heads"]
    need(attrs["k_quant_type"] == b"NONE", "the cache is quantized")
    need(not attrs["sliding_window_cache"], "the cache holds only its window")
    q, k, v = _heads(b, x, attrs)
    # All layers of a model have the same lengths: they share one Spans node.
    key = (x.seqlens, x.total, q.tensor.dims[0], q.tensor.dims[2])
    # Recorded only at the end: if a condition fails, the new Spans node is removed again.
    span = spans[key] if key in spans else b.Spans(x.seqlens, x.total, q, domain=INTERNAL)
    append = _append(b, node, x, (q, k, v), span)
    if x.bias is not None:
        need_mask_columns(b, x.bias, append.outputs[0])
    window = attrs["local_window_size"]
    y = b.Attention(
        append.outputs[2] if attrs["do_rotary"] else q,
        *append.outputs[:2],
        *(to_float32(b, x.bias), span, to_float32(b, x.sink)),
        domain=INTERNAL,
        scale=attention_scale(attrs, q),
        nan_rows=UNSEEN,  # padding rows of a shorter prompt may see no key
        rows_first=1,
        group=heads // shared,
        # The window counts the query's own position; -1 means no bound.
        window_left=window - 1 if window > 0 else -1,
        window_right=0 if attrs["causal"] else -1,
        softcap=max(attrs["softcap"], 0.0),
        smooth=int(attrs["smooth_softmax"] == 1),
    )
    spans[key] = span
    return merge_heads(b, y, q, q), *append.outputs[:2]


def _heads(b: Builder, x: GroupQueryInputs, attrs: dict[str, Any]) -> tuple[Value, ...]:
    """Query, key and value as [batch, heads, rows, head], normalized if the node has weights."""
    operands = list(_split(b, x, attrs["num_heads"], attrs["kv_num_heads"]))
    # Q/K normalization comes before RoPE, which Append applies.
    for i, weight in enumerate((x.q_norm, x.k_norm)):
        if weight is not None:
            epsilon = attrs["qk_norm_epsilon"]
            operands[i] = b.RMSNormalization(operands[i], weight, epsilon=epsilon)
    return tuple(b.Transpose(each, perm=HEADS_FIRST) for each in operands)


def _append(
    b: Builder, node: Node, x: GroupQueryInputs, operands: tuple[Value, ...], span: Value
) -> Node:
    """The node that appends keys and values to the cache, and rotates queries and keys."""
    q, k, v = operands
    rotary = (q, x.cos, x.sin, x.positions) if node.attrs["do_rotary"] else ()
    append = b.node(
        "Append",
        *(k, v, x.past_key, x.past_value, span, x.total, *rotary),
        outputs=3 if rotary else 2,
        domain=INTERNAL,
        interleaved=node.attrs["rotary_interleaved"],
    )
    # The caches keep the facts of the old outputs, whose symbolic dims readers know.
    for new, declared in zip(append.outputs[:2], node.outputs[1:3], strict=False):
        new.fact = declared.fact
    return append


def _split(b: Builder, x: GroupQueryInputs, heads: int, shared: int) -> tuple[Value, ...]:
    """Query, key and value as [batch, rows, heads, head], from one packed input or three."""
    if x.key is not None:
        both = split_heads(b, x.key, shared), split_heads(b, x.value, shared)
        return split_heads(b, x.query, heads), *both
    # Packed: the heads of the query, then those of key and value.
    whole = split_heads(b, x.query, heads + 2 * shared)
    return b.node("Split", whole, b.ints(heads, shared, shared), axis=2, outputs=3).outputs
