"""Multi-head attention ops decomposed into the internal Attention and ops around it.

Covers MultiHeadAttention, Attention, GroupQueryAttention and the decoder variants of com.microsoft,
and the standard Attention. Each splits heads, adds biases, appends to the KV cache, converts masks
to additive ones, and calls the one Attention kernel.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from sardonyx.graph.dtype import BOOL, F32, I32
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.graph.op import INTERNAL
from sardonyx.ops.attention.decoder import DecoderInputs, multi_head_attrs, projected_attrs
from sardonyx.ops.attention.dot_product import AttentionAttrs
from sardonyx.ops.attention.fused import ZERO_FULLY_MASKED
from sardonyx.ops.attention.group_query import GroupQueryInputs
from sardonyx.ops.attention.multi_head import MASKED_SCORE
from sardonyx.ops.attention.multi_head import MultiHeadInputs as MultiHead
from sardonyx.ops.attention.projected import ProjectedInputs as Projected
from sardonyx.ops.attention.projected import qkv_widths
from sardonyx.ops.attention.quantized import projected_attrs as quantized_attrs
from sardonyx.ops.builder import Builder
from sardonyx.ops.decomposition import Outputs
from sardonyx.ops.quantize.qdq import scalar
from sardonyx.passes.attention import KERNEL_TYPES, to_float32
from sardonyx.passes.rule import known_size, need

_HEADS_FIRST: Final = (0, 2, 1, 3)  # [batch, rows, heads, head] as [batch, heads, rows, head]
_QKV = tuple[Value, Value, Value]  # queries, keys and values as [batch, heads, rows, head]
_Spans = dict[tuple[Any, ...], Value]  # Spans nodes by their operands: layers share one


def _inputs_of(node: Node, count: int) -> Outputs:
    """The inputs of a node, padded with None where trailing ones are absent."""
    return (*node.inputs, *[None] * (count - len(node.inputs)))


def _split_heads(b: Builder, x: Value, heads: int) -> Value:
    """[batch, rows, heads * size] as [batch, rows, heads, size]."""
    return b.Reshape(x, b.ints(0, 0, heads, known_size(x.tensor.dims[2]) // heads))


def _need_mask_columns(b: Builder, mask: Value, keys: Value) -> None:
    """Reject the match unless a mask has a column for every key.

    With symbolic sizes this becomes an assumption: a run that breaks it recompiles the session.
    """
    columns, count = mask.tensor.dims[-1], keys.tensor.dims[2]
    if columns == count:
        return
    # The standard pads a shorter mask with -inf, which the kernel does not.
    is_open = not isinstance(columns, int) or not isinstance(count, int)
    need(is_open and columns != 1, "the mask has fewer columns than there are keys")
    need(b.graph.scope.assume_at_least(columns, count), "the mask may have fewer columns than keys")


def _merge_heads(b: Builder, y: Value, heads: Value, v: Value) -> Value:
    """[batch, rows, heads, size] as [batch, rows, heads * size].

    The number of heads is that of the operand `heads`, their size that of the values `v`.
    """
    count, size = known_size(heads.tensor.dims[1]), known_size(v.tensor.dims[3])
    return b.Reshape(y, b.ints(0, 0, count * size))


def _attention_scale(attrs: dict[str, Any], q: Value) -> float:
    """The factor of the scores: the attribute, or 1 / sqrt(head size) where that is 0."""
    return float(attrs["scale"] or 1 / math.sqrt(known_size(q.tensor.dims[3])))


def _heads_first(b: Builder, x: Value, heads: int) -> Value:
    """[batch, rows, heads * size] as [batch, heads, rows, size]."""
    return b.Transpose(_split_heads(b, x, heads), perm=_HEADS_FIRST)


def _is_output_used(node: Node, output: int) -> bool:
    """Whether an output is present and read."""
    return len(node.outputs) > output and node.outputs[output].is_used


def _appended(b: Builder, k: Value, v: Value, past: tuple[Any, ...]) -> tuple[Value, Value]:
    """Keys and values appended to those of the past, if there is one."""
    if past[0] is None:
        return k, v
    key, value = b.node("Append", k, v, *past, domain=INTERNAL, outputs=2).outputs
    return key, value


def _as_outputs(b: Builder, present: tuple[Value, Value]) -> tuple[Value, ...]:
    """Keys and values as values that can be node outputs."""
    # k and v may be read elsewhere under their own names: an Identity gives the output another.
    return tuple(p if p.op == "Append" else b.Identity(p) for p in present)


def _additive_mask(b: Builder, visible: Value, low: float | None, axes: tuple[int, ...]) -> Value:
    """Return 0 where a key is visible, a low score elsewhere, with these axes inserted."""
    zero, masked = b.const(0.0, F32), b.const(MASKED_SCORE if low is None else low, F32)
    return b.Unsqueeze(b.Where(visible, zero, masked), b.ints(*axes))


def _key_positions(b: Builder, keys: Value) -> Value:
    """0, 1, 2, ... for each of the keys [batch, heads, keys, head]."""
    count = b.Cast(b.Squeeze(b.Shape(keys, start=2, end=3), b.ints(0)), to=I32.onnx)
    return b.Range(b.const(0, I32), count, b.const(1, I32))


def _within_lengths(b: Builder, mask: Value, keys: Value) -> Value:
    """Which keys are before the end of each sequence of the batch."""
    return b.Less(_key_positions(b, keys), b.Unsqueeze(mask, b.ints(1)))


def _added(b: Builder, mask: Value | None, more: Value | None) -> Value | None:
    """The sum of two additive masks, either of which may be None."""
    if mask is None or more is None:
        return more if mask is None else mask
    return b.Add(mask, more)


def multi_head(b: Builder, node: Node, spans: _Spans) -> Outputs:
    """Decompose MultiHeadAttention."""
    return _multi_head(b, MultiHead(*_inputs_of(node, 10)), node, node.attrs)


def decoder_masked(b: Builder, node: Node, spans: _Spans) -> Outputs:
    """Decompose DecoderMaskedMultiHeadAttention, which may have a packed QKV input."""
    x = DecoderInputs(*_inputs_of(node, 11))
    # Without a key, `query` holds query, key and value side by side.
    if x.key is None:
        qkv = b.node("Split", x.query, axis=2, num_outputs=3, outputs=3).outputs
        x = DecoderInputs(*qkv, *_inputs_of(node, 11)[3:])
    as_multi_head = MultiHead(*x.as_multi_head(node.attrs))
    return _multi_head(b, as_multi_head, node, multi_head_attrs(node.attrs))


def _multi_head(b: Builder, x: MultiHead, node: Node, attrs: dict[str, Any]) -> Outputs:
    """Attention over these inputs, and the outputs that the node has."""
    q, k, v = _operands(b, x, attrs["num_heads"])
    if x.past_length is not None:
        return _over_shared_buffer(b, (q, k, v), x, node, attrs)
    present = _appended(b, k, v, (x.past_key, x.past_value))
    # The kernel has one additive mask: padding mask and attention bias are summed.
    mask = None
    # key_padding_mask: lengths [batch], or a mask [batch, keys] or [batch, rows, keys].
    if x.padding is not None:
        padding, rank = x.padding, x.padding.tensor.rank
        is_seen = _within_lengths(b, padding, present[0]) if rank == 1 else b.Greater(padding, 0)
        axes = (1,) if rank == 3 else (1, 2)
        mask = _additive_mask(b, is_seen, attrs["mask_filter_value"], axes)
    mask = _added(b, mask, to_float32(b, x.attention_bias))
    scores = None
    if _is_output_used(node, 3):
        y, scores = _decomposed(b, (q, *present), mask, attrs)
    else:
        y = _attend(b, (q, *present), (mask,), attrs, None if x.past_key is None else k)
    # Outputs 1 and 2 are the present keys and values, output 3 the scores.
    if scores is None and not _is_output_used(node, 1) and not _is_output_used(node, 2):
        return (y,)
    return y, *_as_outputs(b, present), scores


def _decomposed(
    b: Builder, operands: _QKV, mask: Value | None, attrs: dict[str, Any]
) -> tuple[Value, Value]:
    """Attention as separate ops, and its scores, which the fused kernel does not return."""
    q, k, v = operands
    # Scores of masked keys would have to be masked in the output as well.
    need(not attrs["unidirectional"], "the scores output would contain masked keys")
    need(q.tensor.dtype is F32, "scores in another type than they are computed in")
    scale = b.const(_attention_scale(attrs, q), F32)
    scores = b.Mul(b.MatMul(q, b.Transpose(k, perm=(0, 1, 3, 2))), scale)
    if mask is not None:
        scores = b.Add(scores, mask)
    # Softmax(scores) V, with heads after rows as the output has them.
    y = b.Transpose(b.MatMul(b.Softmax(scores, axis=-1), v), perm=_HEADS_FIRST)
    return _merge_heads(b, y, v, v), scores


def _over_shared_buffer(
    b: Builder, operands: _QKV, x: MultiHead, node: Node, attrs: dict[str, Any]
) -> Outputs:
    """Attention over a cache with reserved rows; past_length says where new rows go."""
    need(not _is_output_used(node, 3), "the scores are an output")
    has_mask = x.padding is not None or x.attention_bias is not None
    need(not has_mask, "the mask has fewer columns than there are keys")
    need(x.indirection is None, "cache indirection (beam search)")
    (q, k, v), past = operands, (x.past_key, x.past_value)
    need(past[0].tensor.dtype is k.tensor.dtype, "the cache has another type")
    # The span gives the positions of the new rows in the cache buffers.
    span, length = _shared_span(b, q, k, past[0], x.past_length)
    append = b.node("Append", k, v, *past, span, length, domain=INTERNAL, outputs=2)
    keys, values = append.outputs
    return _attend(b, (q, keys, values), (None, span), attrs, None), keys, values


def _shared_span(
    b: Builder, q: Value, k: Value, cache: Value, past_length: Value
) -> tuple[Value, Value]:
    """The Spans of new rows in a shared buffer, and the length of the buffer."""
    # Spans needs int32 lengths: past_length + new rows - 1 is the last key.
    length, rows = (b.Cast(b.Shape(v, start=2, end=3), to=I32.onnx) for v in (cache, k))
    last = b.Sub(b.Add(b.Reshape(past_length, b.ints(1)), rows), b.const([1], I32))
    # All sequences of the batch have the same length here.
    lasts = b.Expand(last, b.Shape(q, start=0, end=1))
    return b.Spans(lasts, length, q, domain=INTERNAL), length


def _attend(
    b: Builder, operands: _QKV, masks: Outputs, attrs: dict[str, Any], new_keys: Value | None
) -> Value:
    """One Attention; `masks` are its mask and span.

    If new keys were appended to a past, causality is relative to the last key.
    """
    q, k, v = operands
    if attrs["unidirectional"] and new_keys is not None:
        need(new_keys.tensor.dims[2] == q.tensor.dims[2], "queries and new keys differ in number")
    y = b.Attention(
        *(q, k, v, *masks),
        domain=INTERNAL,
        scale=_attention_scale(attrs, q),
        rows_first=1,
        window_right=0 if attrs["unidirectional"] else -1,
        bottom_right=int(new_keys is not None),
    )
    return _merge_heads(b, y, v, v)


def _operands(b: Builder, x: MultiHead, heads: int) -> _QKV:
    """Query, key and value as [batch, heads, rows, head], with their biases added."""
    if x.query.tensor.rank == 5:
        need(x.bias is None, "a packed input has a bias")
        q, k, v = _unpacked(b, x.query, 3)
        return q, k, v
    need(x.key.tensor.rank != 5 or x.bias is None, "a packed input has a bias")
    # Layouts by the rank of the key: 3 unpacked, 4 a cross-attention cache, 5 packed KV.
    qkv = [x.query, x.key, x.value]
    if x.bias is not None:
        width, all_three = known_size(x.query.tensor.dims[2]), known_size(x.bias.tensor.dims[0])
        sizes = b.ints(width, width, all_three - 2 * width)
        biases = b.node("Split", x.bias, sizes, axis=0, outputs=3).outputs
        # A cross-attention cache includes the bias already: only the query gets it.
        count = 1 if x.key.tensor.rank == 4 else 3
        qkv[:count] = [b.Add(p, c) for p, c in zip(qkv[:count], biases, strict=False)]
    q = _heads_first(b, qkv[0], heads)
    if x.key.tensor.rank == 5:
        k, v = _unpacked(b, x.key, 2)
        return q, k, v
    if x.key.tensor.rank == 4:
        return q, x.key, x.value
    return q, _heads_first(b, qkv[1], heads), _heads_first(b, qkv[2], heads)


def _unpacked(b: Builder, x: Value, count: int) -> tuple[Value, ...]:
    """The slices of [batch, rows, heads, count, head] as [batch, heads, rows, head]."""
    slices = b.node("Split", x, b.ints(*[1] * count), axis=3, outputs=count).outputs
    return tuple(b.Transpose(b.Squeeze(each, b.ints(3)), perm=_HEADS_FIRST) for each in slices)


def packed_projection(b: Builder, node: Node, spans: _Spans) -> Outputs:
    """Decompose Attention and DecoderMaskedSelfAttention: the QKV projection, then attention."""
    x, is_decoder = Projected(*_inputs_of(node, 7)[:7]), node.op.name != "Attention"
    attrs = projected_attrs(node.attrs) if is_decoder else node.attrs
    need(not attrs["do_rotary"], "rotary embedding inside the op")
    need(not attrs["past_present_share_buffer"], "past and present share a buffer")
    qkv = b.MatMul(x.x, x.weights)
    qkv = qkv if x.bias is None else b.Add(qkv, x.bias)
    return _attend_projected(b, x, qkv, attrs, node)


def quantized_projection(b: Builder, node: Node, spans: _Spans) -> Outputs:
    """Decompose QAttention: a quantized QKV projection, then attention in float32."""
    x, w, bias, x_scale, w_scale, mask, x_zero, w_zero, past = (
        optional_input(node, i) for i in range(9)
    )
    assert bias is not None
    need(bias.tensor.dtype is F32, "the result is not float32")
    qkv = b.QMatMul(
        x, w, scalar(b, x_scale), scalar(b, x_zero), w_scale, w_zero, bias, None, None,
        domain=INTERNAL, dtype=F32.onnx,
    )  # fmt: skip
    # Its inputs have another order, and there is no attention bias.
    inputs = Projected(x, w, bias, mask, past, None, None)
    return _attend_projected(b, inputs, qkv, quantized_attrs(node.attrs), node)


def _attend_projected(
    b: Builder, x: Projected, qkv: Value, attrs: dict[str, Any], node: Node
) -> Outputs:
    """Attention over a projection whose columns are query, key and value."""
    heads = attrs["num_heads"]
    sizes = [known_size(s) for s in qkv_widths(known_size(qkv.tensor.dims[2]), attrs)]
    if (
        len(set(sizes)) == 1
    ):  # projections of equal width: split by heads, which are views of the projection
        by_head, counts = _split_heads(b, qkv, 3 * heads), b.ints(*[heads] * 3)
        slices = b.node("Split", by_head, counts, axis=2, outputs=3).outputs
        q, k, v = (b.Transpose(each, perm=_HEADS_FIRST) for each in slices)
    else:
        slices = b.node("Split", qkv, b.ints(*sizes), axis=2, outputs=3).outputs
        q, k, v = (_heads_first(b, each, heads) for each in slices)
    past: tuple[Any, ...] = (None, None)
    if x.past is not None:
        stacked = b.node("Split", x.past, b.ints(1, 1), axis=0, outputs=2).outputs
        past = tuple(b.Squeeze(each, b.ints(0)) for each in stacked)
    present = _appended(b, k, v, past)
    mask = None if x.mask is None else _index_mask(b, x, present[0], attrs["mask_filter_value"])
    mask = _added(b, mask, to_float32(b, x.attention_bias))
    y = _attend(b, (q, *present), (mask,), attrs, None if x.past is None else k)
    if not _is_output_used(node, 1):
        return (y,)
    # The present output stacks keys and values: [2, batch, heads, rows, head].
    need(k.tensor.dims[3] == v.tensor.dims[3], "keys and values have other widths")
    return y, b.Concat(*(b.Unsqueeze(p, b.ints(0)) for p in present), axis=0)


def _index_mask(b: Builder, x: Projected, keys: Value, low: float | None) -> Value:
    """The additive mask for mask_index, in each of its layouts."""
    mask, batch = x.mask, x.x.tensor.dims[0]
    # 4: [batch, 1, longest, longest]; 2 and 3: a mask per key or per row and key; 1: lengths
    # [batch], ends and starts [2 batch], or lengths and offsets [3 batch + 2].
    if mask.tensor.rank == 4:
        mask = _mask_window(b, x, mask, keys)
    if mask.tensor.rank > 1:
        axes = (1,) if mask.tensor.rank == 3 else (1, 2)
        return _additive_mask(b, b.Greater(mask, 0), low, axes)
    count = mask.tensor.dims[0]
    # Which of the 1-D layouts it is follows from its length.
    if count == batch:
        return _additive_mask(b, _within_lengths(b, mask, keys), low, (1, 2))
    need(count in (2 * batch, 3 * batch + 2), "the length of the mask is unknown")
    sizes = b.Shape(x.x, start=0, end=1)
    visible = _within_lengths(b, b.Slice(mask, b.ints(0), sizes, b.ints(0)), keys)
    if count == 2 * batch:
        starts = b.Slice(mask, sizes, b.ints(np.iinfo(np.int64).max), b.ints(0))
        is_begun = b.GreaterOrEqual(_key_positions(b, keys), b.Unsqueeze(starts, b.ints(1)))
        visible = b.And(visible, is_begun)
    return _additive_mask(b, visible, low, (1, 2))


def _mask_window(b: Builder, x: Projected, mask: Value, keys: Value) -> Value:
    """The rows of the new tokens and the columns of all keys of a 4-D mask."""
    total = b.Shape(keys, start=2, end=3)
    first = b.ints(0) if x.past is None else b.Shape(x.past, start=3, end=4)
    starts, ends = b.Concat(first, b.ints(0), axis=0), b.Concat(total, total, axis=0)
    return b.Squeeze(b.Slice(mask, starts, ends, b.ints(2, 3)), b.ints(1))


def standard(b: Builder, node: Node, spans: _Spans) -> Outputs:
    """Decompose the standard Attention."""
    s = AttentionAttrs(**node.attrs)
    _, _, _, mask, past_key, past_value, nonpad = _inputs_of(node, 7)
    q, k, v = (input_of(node, i) for i in range(3))
    is_packed = q.tensor.rank == 3
    _need_supported(node, s, q, v)
    if is_packed:
        heads = (s.q_num_heads, s.kv_num_heads, s.kv_num_heads)
        q, k, v = (_heads_first(b, x, n or 1) for x, n in zip((q, k, v), heads, strict=True))
    present = _appended(b, k, v, (past_key, past_value))
    has_past, windows = past_key is not None, (s.left_window_size, s.right_window_size)
    # The kernel aligns the last row with the last key, which needs as many rows as new keys.
    if has_past and (s.is_causal or max(windows) >= 0):
        need(k.tensor.dims[2] == q.tensor.dims[2], "queries and new keys differ in number")
    span = None if nonpad is None else b.Spans(nonpad, None, q, k, domain=INTERNAL)
    y = b.Attention(
        *(q, *present, _standard_mask(b, mask, present[0]), span),
        domain=INTERNAL,
        scale=1 / math.sqrt(known_size(q.tensor.dims[3]) or 1) if s.scale is None else s.scale,
        nan_rows=ZERO_FULLY_MASKED,
        rows_first=int(is_packed),
        group=known_size(q.tensor.dims[1]) // known_size(k.tensor.dims[1]),
        window_left=windows[0],
        window_right=0 if s.is_causal else windows[1],
        bottom_right=int(has_past),
        softcap=max(s.softcap, 0.0),
    )
    if is_packed:
        y = _merge_heads(b, y, q, v)
    is_cached = _is_output_used(node, 1) or _is_output_used(node, 2)
    return (y, *_as_outputs(b, present)) if is_cached else (y,)


def _need_supported(node: Node, s: AttentionAttrs, q: Value, v: Value) -> None:
    """Abandon unless the kernel supports the outputs and types of a standard Attention."""
    need(not _is_output_used(node, 3), "the scores are an output")
    need(s.softmax_precision in (None, F32.onnx), "the softmax has another type")
    dtype = q.tensor.dtype
    need(dtype in KERNEL_TYPES and v.tensor.dtype is dtype, "no kernel of this type")


def _standard_mask(b: Builder, mask: Value | None, keys: Value) -> Value | None:
    """The mask of the standard Attention as an additive float32 mask."""
    if mask is None:
        return None
    _need_mask_columns(b, mask, keys)
    # True means that the key is visible.
    if mask.tensor.dtype is BOOL:
        return b.Where(mask, b.const(0.0, F32), b.const(-math.inf, F32))
    need(mask.tensor.dtype in KERNEL_TYPES, "no kernel for a mask of this type")
    return to_float32(b, mask)


def group_query(b: Builder, node: Node, spans: _Spans) -> Outputs:
    """Decompose GroupQueryAttention (GQA), in which several query heads share one KV head.

    The op also normalizes and rotates queries and keys (RoPE), and masks by sequence lengths and a
    sliding window.
    """
    x, attrs = GroupQueryInputs(*_inputs_of(node, 16)), node.attrs
    need(len(node.outputs) < 4 or not node.outputs[3].is_used, "the scores are an output")
    heads, shared = attrs["num_heads"], attrs["kv_num_heads"]
    need(attrs["k_quant_type"] == b"NONE", "the cache is quantized")
    need(not attrs["sliding_window_cache"], "the cache holds only its window")
    q, k, v = _group_query_heads(b, x, attrs)
    # All layers of a model have the same lengths: they share one Spans node.
    key = (x.seqlens, x.total, q.tensor.dims[0], q.tensor.dims[2])
    # Recorded only at the end: if a condition fails, the new Spans node is removed again.
    span = spans[key] if key in spans else b.Spans(x.seqlens, x.total, q, domain=INTERNAL)
    append = _append_to_cache(b, node, x, (q, k, v), span)
    if x.bias is not None:
        _need_mask_columns(b, x.bias, append.outputs[0])
    window = attrs["local_window_size"]
    y = b.Attention(
        append.outputs[2] if attrs["do_rotary"] else q,
        *append.outputs[:2],
        *(to_float32(b, x.bias), span, to_float32(b, x.sink)),
        domain=INTERNAL,
        scale=_attention_scale(attrs, q),
        nan_rows=ZERO_FULLY_MASKED,  # padding rows of a shorter prompt are fully masked
        rows_first=1,
        group=heads // shared,
        # The window counts the query's own position; -1 means no bound.
        window_left=window - 1 if window > 0 else -1,
        window_right=0 if attrs["causal"] else -1,
        softcap=max(attrs["softcap"], 0.0),
        smooth=int(attrs["smooth_softmax"] == 1),
    )
    spans[key] = span
    return _merge_heads(b, y, q, q), *append.outputs[:2]


def _group_query_heads(b: Builder, x: GroupQueryInputs, attrs: dict[str, Any]) -> tuple[Value, ...]:
    """Query, key and value as [batch, heads, rows, head], normalized if the node has weights."""
    operands = list(_split_qkv(b, x, attrs["num_heads"], attrs["kv_num_heads"]))
    # Q/K normalization comes before RoPE, which Append applies.
    for i, weight in enumerate((x.q_norm, x.k_norm)):
        if weight is not None:
            epsilon = attrs["qk_norm_epsilon"]
            operands[i] = b.RMSNormalization(operands[i], weight, epsilon=epsilon)
    return tuple(b.Transpose(each, perm=_HEADS_FIRST) for each in operands)


def _append_to_cache(
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


def _split_qkv(b: Builder, x: GroupQueryInputs, heads: int, kv_heads: int) -> tuple[Value, ...]:
    """Query, key and value as [batch, rows, heads, head], from one packed input or three."""
    if x.key is not None:
        both = _split_heads(b, x.key, kv_heads), _split_heads(b, x.value, kv_heads)
        return _split_heads(b, x.query, heads), *both
    # Packed: the heads of the query, then those of key and value.
    whole = _split_heads(b, x.query, heads + 2 * kv_heads)
    return b.node("Split", whole, b.ints(heads, kv_heads, kv_heads), axis=2, outputs=3).outputs
