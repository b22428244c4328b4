"""Gradients of the attention ops of com.microsoft, and of LinearAttention, by decomposition."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sardonyx.errors import NotImplemented
from sardonyx.graph.dim import same
from sardonyx.graph.dtype import F32, I64
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value, input_of, optional_input
from sardonyx.graph.op import MICROSOFT
from sardonyx.ops.attention.gradient import (
    ScoreParameters,
    attend,
    merge_heads,
    scale_of,
    split_heads,
)
from sardonyx.ops.attention.group_query import GroupQueryInputs
from sardonyx.ops.attention.multi_head import MASKED_SCORE, MultiHeadInputs
from sardonyx.ops.attention.projected import ProjectedInputs, qkv_widths
from sardonyx.ops.builder import Builder
from sardonyx.ops.decomposition import known_size
from sardonyx.ops.gather.gradient import scatter_add
from sardonyx.ops.gradient_rules import GradientBuilder, decompose, gradient, ranked

Outputs = list[Value | None]
_HEADS_FIRST = (0, 2, 1, 3)


def _padded(node: Node, count: int) -> list[Value | None]:
    """The inputs of a node, None for trailing ones that are absent."""
    return [optional_input(node, i) for i in range(count)]


def _no_past(past: Value | None, axis: int = 2) -> None:
    """Raise unless a cache is absent or empty."""
    if past is not None and ranked(past).dims[axis] != 0:
        raise NotImplemented(
            f"attention with the cache {past} has no gradient",
            hint="train without a cache: fix its length to 0 by `dims`",
        )


@decompose("GroupQueryAttention", domain=MICROSOFT)
def _(b: GradientBuilder, node: Node) -> Outputs:
    """GroupQueryAttention of a prompt: the cache is empty, and all keys are new."""
    x, attrs = GroupQueryInputs(*_padded(node, 16)), node.attrs
    _no_past(x.past_key)
    if x.k_scale is not None or x.v_scale is not None or attrs["kv_cache_bit_width"]:
        raise NotImplemented("GroupQueryAttention with a quantized cache has no gradient")
    q, k, v = _grouped_heads(b, x, attrs)
    if x.q_norm is not None:
        options = {"axis": -1, "epsilon": attrs["qk_norm_epsilon"]}
        q, k = (b.RMSNormalization(h, w, **options) for h, w in ((q, x.q_norm), (k, x.k_norm)))
    if attrs["do_rotary"]:
        # A prompt counts up from one position.
        first = b.ints(0)
        if x.positions is not None:
            first = b.element(b.Reshape(x.positions, b.ints(-1)), 0)
        angles, style = (first, x.cos, x.sin), {"interleaved": attrs["rotary_interleaved"]}
        q, k = (b.RotaryEmbedding(h, *angles, domain=MICROSOFT, **style) for h in (q, k))
    # Shorter prompts are padded at the end.
    ends = b.Add(b.cast(b.Reshape(x.seqlens, b.ints(-1, 1, 1, 1)), I64), 1)
    left = attrs["local_window_size"]
    sink = x.sink
    if sink is None and attrs["smooth_softmax"] == 1:
        sink = b.const(np.zeros(attrs["num_heads"]), q.tensor.dtype)
    how = ScoreParameters(
        scale_of(q, attrs["scale"] or None),
        attrs["softcap"],
        (left if left < 0 else left - 1, 0 if attrs["causal"] else -1),
        visible=b.Less(_positions(b, k), ends),
        bias=None if x.bias is None else _first_columns(b, x.bias, k),
        sink=sink,
    )
    return [merge_heads(b, attend(b, q, k, v, how)), k, v, None]


def _grouped_heads(
    b: GradientBuilder, x: GroupQueryInputs, attrs: dict[str, Any]
) -> tuple[Value, Value, Value]:
    """Query, key and value as [batch, heads, rows, width]; the query may hold all three."""
    heads, kv_heads = attrs["num_heads"], attrs["kv_num_heads"]
    if x.key is not None:
        q = split_heads(b, x.query, heads)
        return q, split_heads(b, x.key, kv_heads), split_heads(b, x.value, kv_heads)
    packed = split_heads(b, x.query, heads + 2 * kv_heads)
    sizes = b.ints(heads, kv_heads, kv_heads)
    q, k, v = b.node("Split", packed, sizes, axis=1, outputs=3).outputs
    return q, k, v


def _positions(b: GradientBuilder, k: Value) -> Value:
    """0, 1, 2, ... for each of the keys."""
    return b.arange(b.Squeeze(b.element(b.shape(k), 2), b.ints(0)))


def _first_columns(b: GradientBuilder, bias: Value, k: Value) -> Value:
    """A mask with as many columns as there are keys; it may have more."""
    if same(ranked(bias).dims[-1], ranked(k).dims[2]) is True:
        return bias
    columns = b.Slice(bias, b.ints(0), b.element(b.shape(k), 2), b.ints(3))
    columns.fact = bias.tensor.shaped((*ranked(bias).dims[:3], ranked(k).dims[2]))
    return columns


@decompose("MultiHeadAttention", domain=MICROSOFT)
def _(b: GradientBuilder, node: Node) -> Outputs:
    x, attrs = MultiHeadInputs(*_padded(node, 10)), node.attrs
    _no_past(x.past_key)
    if x.past_length is not None:
        raise NotImplemented("MultiHeadAttention with past_sequence_length has no gradient")
    q, k, v = _multi_heads(b, x, attrs["num_heads"])
    mask = None
    if x.padding is not None:
        mask = _low_scores(b, _unpadded(b, x.padding, k), q, attrs["mask_filter_value"])
    how = ScoreParameters(
        scale_of(q, attrs["scale"] or None),
        window=(-1, 0 if attrs["unidirectional"] else -1),
        bias=_sum(b, mask, x.attention_bias),
    )
    return [merge_heads(b, attend(b, q, k, v, how)), k, v, None]


def _multi_heads(b: GradientBuilder, x: MultiHeadInputs, heads: int) -> tuple[Value, Value, Value]:
    """Query, key and value as [batch, heads, rows, width], with their biases."""
    if x.key is None:  # [batch, rows, heads, 3, width]
        q, k, v = _unstacked(b, x.query, 3)
    elif x.value is None:  # the key is [batch, rows, heads, 2, width]
        q, (k, v) = split_heads(b, x.query, heads), _unstacked(b, x.key, 2)
    else:
        q, k, v = split_heads(b, x.query, heads), x.key, x.value
        if ranked(k).rank == 3:
            k, v = split_heads(b, k, heads), split_heads(b, v, heads)
    if x.bias is None:
        return q, k, v
    sizes = b.ints(*(heads * known_size(ranked(part).dims[3]) for part in (q, k, v)))
    biases = b.node("Split", x.bias, sizes, outputs=3).outputs
    rows = [b.Reshape(part, b.ints(1, heads, 1, -1)) for part in biases]
    if x.key is not None and ranked(x.key).rank == 4:  # the bias of a cache is already added
        return b.Add(q, rows[0]), k, v
    return b.Add(q, rows[0]), b.Add(k, rows[1]), b.Add(v, rows[2])


def _unstacked(b: GradientBuilder, x: Value, count: int) -> list[Value]:
    """[batch, rows, heads, count, width] as `count` times [batch, heads, rows, width]."""
    parts = b.node("Split", x, b.ints(*(1 for _ in range(count))), axis=3, outputs=count).outputs
    return [b.Transpose(b.Squeeze(part, b.ints(3)), perm=_HEADS_FIRST) for part in parts]


def _unpadded(b: GradientBuilder, padding: Value, k: Value) -> Value:
    """Which keys are no padding, to broadcast over scores: from lengths or from a mask."""
    rank = ranked(padding).rank
    if rank == 1:
        ends = b.cast(b.Unsqueeze(padding, b.ints(1)), I64)
        return b.Unsqueeze(b.Less(_positions(b, k), ends), b.ints(1, 2))
    return b.Unsqueeze(b.Greater(padding, 0), b.ints(1, 2) if rank == 2 else b.ints(1))


def _low_scores(b: GradientBuilder, visible: Value, q: Value, low: float | None) -> Value:
    """0 where a key is visible, else a low score, as a bias."""
    dtype = q.tensor.dtype
    lowest = b.const(MASKED_SCORE if low is None else low, dtype)
    return b.Where(visible, b.const(0, dtype), lowest)


def _sum(b: GradientBuilder, one: Value | None, other: Value | None) -> Value | None:
    if one is None or other is None:
        return other if one is None else one
    return b.Add(one, other)


@decompose("Attention", domain=MICROSOFT)
def _(b: GradientBuilder, node: Node) -> Outputs:
    """Attention of com.microsoft: a projection to query, key and value, then attention."""
    x, attrs = ProjectedInputs(*_padded(node, 7)), node.attrs
    heads = attrs["num_heads"]
    _no_past(x.past, axis=3)
    projected = b.MatMul(x.x, x.weights)
    if x.bias is not None:
        projected = b.Add(projected, x.bias)
    widths = qkv_widths(ranked(x.weights).dims[1], attrs)
    sizes = b.ints(*(known_size(w, "the number of columns is not known") for w in widths))
    parts = b.node("Split", projected, sizes, axis=2, outputs=3).outputs
    q, k, v = (split_heads(b, part, heads) for part in parts)
    if attrs["do_rotary"]:
        angles = _angles(b, q, attrs["rotary_embedding_dim"])
        q, k = (b.RotaryEmbedding(h, b.ints(0), *angles, domain=MICROSOFT) for h in (q, k))
    mask = None
    if x.mask is not None:
        mask = _low_scores(b, _unmasked(b, x, k), q, attrs["mask_filter_value"])
    how = ScoreParameters(
        scale_of(q, attrs["scale"] or None),
        window=(-1, 0 if attrs["unidirectional"] else -1),
        bias=_sum(b, mask, x.attention_bias),
    )
    out = merge_heads(b, attend(b, q, k, v, how))
    # Keys and values of different widths have no present.
    is_stacked = same(ranked(k).dims[3], ranked(v).dims[3]) is True
    caches = [b.Unsqueeze(part, b.ints(0)) for part in (k, v)]
    return [out, b.Concat(*caches, axis=0) if is_stacked else None]


def _angles(b: GradientBuilder, q: Value, width: int) -> tuple[Value, Value]:
    """Cosines and sines of the angles of all positions, with the frequencies 10000^(-i / half)."""
    half = (width or known_size(ranked(q).dims[3])) // 2
    frequencies = b.const((10000.0 ** (-np.arange(half) / max(half, 1)))[None], F32)
    angles = b.Mul(b.Unsqueeze(b.cast(_positions(b, q), F32), b.ints(1)), frequencies)
    return b.cast(b.Cos(angles), q.tensor.dtype), b.cast(b.Sin(angles), q.tensor.dtype)


def _unmasked(b: GradientBuilder, x: ProjectedInputs, k: Value) -> Value:
    """Which keys mask_index shows, to broadcast over scores."""
    mask, batch = x.mask, ranked(x.x).dims[0]
    fact = ranked(mask)
    if fact.rank == 4:
        length = b.element(b.shape(k), 2)
        rows = b.Slice(mask, b.ints(0, 0), b.Concat(length, length, axis=0), b.ints(2, 3))
        return b.Greater(rows, 0)
    if fact.rank > 1 or same(fact.dims[0], batch) is True:
        return _unpadded(b, mask, k)
    if same(fact.dims[0], 2 * batch) is not True:
        raise NotImplemented(f"Attention with mask_index {mask} has no gradient")
    ends, starts = b.node("Split", mask, axis=0, num_outputs=2, outputs=2).outputs
    from_start = b.GreaterOrEqual(_positions(b, k), b.cast(b.Unsqueeze(starts, b.ints(1)), I64))
    return b.And(_unpadded(b, ends, k), b.Unsqueeze(from_start, b.ints(1, 2)))


@decompose("LinearAttention")
@decompose("LinearAttention", domain=MICROSOFT)
def _(b: GradientBuilder, node: Node) -> Outputs:
    """LinearAttention as a Scan over tokens, which carries the states of all heads."""
    attrs, past = node.attrs, optional_input(node, 3)
    q_heads, heads = attrs["q_num_heads"], attrs["kv_num_heads"]
    if attrs.get("state_window"):
        raise NotImplemented("LinearAttention with a window of states has no gradient")
    if q_heads % heads:
        raise NotImplemented("LinearAttention with fewer query than key heads has no gradient")
    dtype = input_of(node, 0).tensor.dtype
    q, k, v = (
        _by_token(b, input_of(node, i), (heads, n))
        for i, n in ((0, q_heads // heads), (1, 1), (2, 1))
    )
    decay, beta = optional_input(node, 4), optional_input(node, 5)
    scanned = [q, k, v]
    if decay is not None:  # [tokens, batch, heads, 1 or width of a key, 1]
        scanned.append(b.Exp(b.Unsqueeze(_by_token(b, decay, (heads,)), b.ints(-1))))
    if beta is not None:  # [tokens, batch, heads or 1, 1, 1]
        scanned.append(b.Unsqueeze(b.Transpose(b.cast(beta, F32), perm=(1, 0, 2)), b.ints(3, 4)))
    widths = [known_size(ranked(x).dims[-1]) for x in (k, v)]
    if past is not None:
        initial = b.cast(past, F32)
    else:
        batch = b.element(b.shape(q), 1)
        sizes = b.ints(heads, *widths)
        initial = b.Expand(b.const(0, F32), b.Concat(batch, sizes, axis=0))
    body = _token_update(scanned, initial, decay is not None, beta is not None)
    final, out = Builder.node(
        b, "Scan", initial, *scanned, outputs=2, body=body, num_scan_inputs=len(scanned)
    ).outputs
    # [tokens, batch, heads, group, width] as [batch, tokens, heads * group * width].
    scale = attrs["scale"] or 1 / math.sqrt(widths[0] or 1)
    rows = b.Reshape(b.Transpose(b.Mul(out, scale), perm=(1, 0, 2, 3, 4)), b.ints(0, 0, -1))
    state = final if past is None else b.cast(final, past.tensor.dtype)
    return [b.cast(rows, dtype), b.cast(state, dtype) if past is None else state]


def _by_token(b: GradientBuilder, x: Value, heads: tuple[int, ...]) -> Value:
    """[batch, tokens, heads * width] as float32 [tokens, batch, *heads, width]."""
    split = b.Reshape(b.cast(x, F32), b.ints(0, 0, *heads, -1))
    return b.Transpose(split, perm=(1, 0, *range(2, 3 + len(heads))))


def _token_update(scanned: list[Value], state: Value, is_gated: bool, is_delta: bool) -> Graph:
    """The body of the Scan: one token's update of the states, and its output."""
    body = Graph("token")
    b = Builder(body, body.scope)
    slices = [Value("", Fact(F32, ranked(x).dims[1:])) for x in scanned]
    before = Value("", state.tensor.without_contents())
    body.set_inputs([before, *slices])
    q, k, v, *gates = slices
    now = b.Mul(before, gates[0]) if is_gated else before
    if is_delta:  # write the error of the state's prediction for this key
        v = b.Mul(gates[-1], b.Sub(v, b.MatMul(k, now)))
    after = b.Add(now, b.MatMul(b.Transpose(k, perm=(0, 1, 3, 2)), v))
    body.set_outputs([after, b.MatMul(q, after)])
    return body


@gradient("RelativePositionBias", domain=MICROSOFT)
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    """The sums of dy by bucket: of a table of numbers the op returns the buckets themselves."""
    table, *lengths = (input_of(node, i) for i in range(3))
    count, heads = (known_size(d, "the number of buckets is not known") for d in ranked(table).dims)
    numbers = b.const(np.arange(count)[:, None], F32)
    buckets = b.RelativePositionBias(numbers, *lengths, domain=MICROSOFT, **node.attrs)
    index = b.cast(b.Reshape(buckets, b.ints(-1)), I64)
    by_place = b.Transpose(b.Reshape(dy, b.ints(heads, -1)), perm=(1, 0))
    # The table is stored per head, [heads, buckets], whatever its shape says.
    sums = scatter_add(b, table, index, by_place, 0)
    return b.Reshape(b.Transpose(sums, perm=(1, 0)), b.ints(count, heads))
