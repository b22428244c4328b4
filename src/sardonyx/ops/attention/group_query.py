"""GroupQueryAttention: grouped-query attention with RoPE and a key-value cache in one node."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.errors import InvalidArgument, InvalidGraph
from sardonyx.graph.dim import Size
from sardonyx.graph.dtype import BF16, F16, F32, I32, I64, DType, by_numpy
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import contrib_op, optional, required
from sardonyx.ops.arrays import Array, one_int, wide
from sardonyx.ops.attention.cache_encoding import (
    QUANTIZED,
    WindowedCache,
    check_scale,
    check_window_capacity,
    codec_of,
)
from sardonyx.ops.attention.heads import (
    all_or_none,
    expect_dims,
    grouped_head_size,
    grouped_heads,
    merge_heads,
    rms_normalized,
    same_dims,
    same_rank,
    sink_softmax,
    softcapped,
    split_qkv,
    visible_keys,
)
from sardonyx.ops.attention.kv_cache import append_ranges, cache_length, rotary_positions, rotated
from sardonyx.ops.attention.multi_head import check_attention_bias

SCORES, WEIGHTS = 1, 2  # values of qk_output: before and after the softmax
_FLOATS: Final = frozenset((F32, F16, BF16))

group_query: Final = contrib_op(
    "GroupQueryAttention",
    "query:T key:T? value:T? past_key:C? past_value:C? seqlens_k:M total_sequence_length:M "
    "cos_cache:T? sin_cache:T? position_ids:I? attention_bias:T? head_sink:T? k_scale:S? "
    "v_scale:S? q_norm_weight:T? k_norm_weight:T?",
    "output:T present_key:C? present_value:C? output_qk:T?",
    attrs={
        "causal": 1,
        "do_rotary": 0,
        "k_quant_type": b"NONE",
        "kv_cache_bit_width": 0,
        "kv_num_heads": required("int"),
        "local_window_size": -1,
        "num_heads": required("int"),
        "qk_norm_epsilon": float(np.float32(1e-6)),
        "qk_output": 0,
        "rotary_interleaved": 0,
        "scale": optional("float"),
        "sliding_window_cache": 0,
        "smooth_softmax": -1,
        "softcap": 0.0,
        "v_quant_type": b"NONE",
    },
    types={
        "T": _FLOATS,
        "C": _FLOATS | QUANTIZED,
        "M": frozenset((I32,)),
        "I": frozenset((I64,)),
        "S": frozenset((F32,)),
    },
)


@group_query.typed
def _(types: dict[str, DType], attrs: dict[str, Any]) -> dict[str, DType]:
    return {"C": codec_of(attrs, types["T"], types.get("C")).dtype}


@frozen
class GroupQueryInputs:
    """The inputs of a GroupQueryAttention by name: facts, arrays or values."""

    query: Any
    key: Any
    value: Any
    past_key: Any
    past_value: Any
    seqlens: Any
    total: Any
    cos: Any
    sin: Any
    positions: Any
    bias: Any
    sink: Any
    k_scale: Any
    v_scale: Any
    q_norm: Any
    k_norm: Any


def _check(attrs: dict[str, Any], x: GroupQueryInputs) -> None:
    grouped_heads(attrs)
    if attrs["sliding_window_cache"] and (attrs["local_window_size"] < 1 or x.past_key is None):
        raise InvalidGraph("sliding_window_cache 1 needs past_key and a local_window_size")
    if attrs["causal"] not in (0, 1):
        raise InvalidGraph(f"causal must be 0 or 1, got {attrs['causal']}")
    if attrs["local_window_size"] < 1 and attrs["local_window_size"] != -1:
        size = attrs["local_window_size"]
        raise InvalidGraph(f"local_window_size must be -1 (no window) or positive, got {size}")
    if not attrs["causal"] and attrs["local_window_size"] != -1:
        raise InvalidGraph("local_window_size needs causal attention")
    if attrs["qk_output"] not in (0, SCORES, WEIGHTS):
        raise InvalidGraph(f"qk_output must be one of 0, 1, 2, got {attrs['qk_output']}")
    all_or_none("key and value", x.key, x.value)
    all_or_none("past_key and past_value", x.past_key, x.past_value)
    all_or_none("cos_cache and sin_cache", x.cos, x.sin)
    all_or_none("q_norm_weight and k_norm_weight", x.q_norm, x.k_norm)
    if attrs["do_rotary"] and x.cos is None:
        raise InvalidGraph("do_rotary 1 needs cos_cache and sin_cache")


@group_query.infer
def _(g: Scope, *inputs: Fact | None, **attrs: Any) -> tuple[Fact, ...]:
    x = GroupQueryInputs(*inputs)
    _check(attrs, x)
    heads, kv_heads = attrs["num_heads"], attrs["kv_num_heads"]
    same_rank(3, query=x.query)
    batch, rows, hidden = x.query.dims
    head = grouped_head_size(g, hidden, (heads, kv_heads), is_packed=x.key is None)
    expect_dims(g, (batch, rows, head * kv_heads), key=x.key, value=x.value)
    codec = codec_of(attrs, x.query.dtype, None if x.past_key is None else x.past_key.dtype)
    past: Size = 0
    if x.past_key is not None:
        same_rank(4, past_key=x.past_key, past_value=x.past_value)
        past = x.past_key.dims[2]
        if x.past_key.dtype is not codec.dtype or x.past_value.dtype is not codec.dtype:
            raise InvalidGraph(f"the cache must be of {codec.dtype}, got {x.past_key}")
        expected = (batch, kv_heads, past, codec.width(head))
        expect_dims(g, expected, past_key=x.past_key, past_value=x.past_value)
    _check_optional(g, x, attrs, (batch, rows, head))
    total, length = _lengths(g, x.total, past)
    if attrs["sliding_window_cache"]:
        length = past
    cache = Fact(codec.dtype, (batch, kv_heads, length, codec.width(head)))
    return (
        x.query.shaped((batch, rows, head * heads)),
        cache,
        cache,
        x.query.shaped((batch, heads, rows, total)),
    )


def _check_optional(
    g: Scope, x: GroupQueryInputs, attrs: dict[str, Any], sizes: tuple[Size, ...]
) -> None:
    """Check the shapes of everything but query, key, value and their cache."""
    batch, rows, head = sizes
    heads, kv_heads = attrs["num_heads"], attrs["kv_num_heads"]
    check_scale(g, x.k_scale, attrs["k_quant_type"], (kv_heads, head))
    check_scale(g, x.v_scale, attrs["v_quant_type"], (kv_heads, head))
    expect_dims(g, (head,), q_norm_weight=x.q_norm, k_norm_weight=x.k_norm)
    if x.seqlens.rank not in (1, 2):
        raise InvalidGraph(f"seqlens_k must have one number per batch entry, got {x.seqlens}")
    same_dims(g, x.seqlens.dims, (batch, 1)[: x.seqlens.rank], "seqlens_k")
    _check_rotary(g, x, attrs, sizes)
    expect_dims(g, (heads,), head_sink=x.sink)
    check_attention_bias(g, x.bias, (batch, heads, rows))


def _lengths(g: Scope, total: Fact, past: Size) -> tuple[Size, Size]:
    """Return the number of keys and the length of the new cache."""
    if total.rank > 1:
        raise InvalidGraph(f"total_sequence_length must be one number, got {total}")
    for size in total.dims:
        g.equal(size, 1, "total_sequence_length is one number")
    return g.new_dim("keys") if total.sym is None else total.sym[0], cache_length(g, total, past)


def _check_rotary(
    g: Scope, x: GroupQueryInputs, attrs: dict[str, Any], sizes: tuple[Size, ...]
) -> None:
    batch, rows, head = sizes
    if not attrs["do_rotary"]:
        return
    same_rank(2, cos_cache=x.cos, sin_cache=x.sin)
    same_dims(g, x.sin.dims, x.cos.dims, "sin_cache")
    g.at_least(head, x.cos.dims[1] * 2, "the caches hold more angles than a head has pairs")
    expect_dims(g, (batch, rows), position_ids=x.positions)


@group_query.reference
def _(*inputs: Array | None, **attrs: Any) -> tuple[Array, ...]:
    x = GroupQueryInputs(*inputs)
    heads, kv_heads = attrs["num_heads"], attrs["kv_num_heads"]
    q, k, v = split_qkv(x, heads, kv_heads)
    batch, _, rows, head = q.shape
    if x.q_norm is not None:
        epsilon = attrs["qk_norm_epsilon"]
        q, k = rms_normalized(q, x.q_norm, epsilon), rms_normalized(k, x.k_norm, epsilon)
    total = one_int(x.total, "total_sequence_length")
    firsts, ends = append_ranges(x.seqlens, total, rows)
    if attrs["do_rotary"]:
        positions = rotary_positions(x.positions, firsts, rows, is_first=rows == total)
        q = rotated(q, x.cos, x.sin, positions, attrs["rotary_interleaved"])
        k = rotated(k, x.cos, x.sin, positions, attrs["rotary_interleaved"])
    sides = ((x.past_key, k, x.k_scale), (x.past_value, v, x.v_scale))
    caches = [
        _update_cache(attrs, old, new, scale, (firsts, ends, total)) for old, new, scale in sides
    ]
    y = np.zeros((batch, heads, rows, head), np.float32)
    qk_output = np.zeros((batch, heads, rows, total), np.float32)
    for b in range(batch):
        bias = None if x.bias is None else wide(x.bias[min(b, x.bias.shape[0] - 1)])
        span = (int(firsts[b]), int(ends[b]))
        keys, values = (np.repeat(visible[b], heads // kv_heads, axis=0) for _, visible in caches)
        y[b] = _attend(attrs, wide(q[b]), keys, values, bias, x.sink, span, qk_output[b])
    return (
        merge_heads(y).astype(q.dtype),
        *(cache for cache, _ in caches),
        qk_output.astype(q.dtype),
    )


Spans = tuple[Array, Array, int]  # per batch entry: first new row, end of keys; total length


def _update_cache(
    attrs: dict[str, Any], old: Array | None, new: Array, scale: Array | None, spans: Spans
) -> tuple[Array, Array]:
    """Return the new cache, and all keys or values at their positions as float32."""
    firsts, ends, total = spans
    batch, kv_heads, rows, head = new.shape
    dtypes = (by_numpy(a.dtype) for a in (new, new if old is None else old))
    codec = codec_of(attrs, next(dtypes) or F32, None if old is None else next(dtypes))
    past = 0 if old is None else old.shape[2]
    is_window = bool(attrs["sliding_window_cache"])
    if firsts.size and not is_window and (firsts.max() > past or ends.max() > max(past, total)):
        raise InvalidArgument(f"seqlens_k means {ends.max()} keys, and the past has {past}")
    stored = codec.encode(new, scale)
    if old is not None and is_window:
        check_window_capacity(past, attrs["local_window_size"])
    window = WindowedCache(past, attrs["local_window_size"])
    # All keys at their positions: what a windowed cache no longer holds stays 0 and is not visible.
    padded = np.zeros((batch, kv_heads, max(past, total), stored.shape[3]), stored.dtype)
    cache = np.zeros_like(padded[:, :, :past]) if is_window else padded
    for b in range(batch):
        first, end = int(firsts[b]), int(ends[b])
        if old is not None:
            n_cached = window.n_cached_keys(first) if is_window else first
            padded[b, :, first - n_cached : first] = old[b, :, :n_cached]
        padded[b, :, first : first + rows] = stored[b]
        if is_window:
            n_cached = window.n_cached_keys(end)
            cache[b, :, :n_cached] = padded[b, :, end - n_cached : end]
    return cache, codec.decode(padded, scale, head)


def _attend(  # noqa: PLR0913 - the operands of one attention
    attrs: dict[str, Any],
    q: Array,
    k: Array,
    v: Array,
    bias: Array | None,
    sink: Array | None,
    span: tuple[int, int],
    qk_output: Array,
) -> Array:
    """Return softmax(q k^T) v of one batch entry, and write its scores into `qk_output`."""
    first, end = span
    scale = attrs["scale"] or 1 / math.sqrt(q.shape[-1] or 1)
    with np.errstate(all="ignore"):
        scores = np.matmul(q, k[:, :end].swapaxes(1, 2)) * np.float32(scale)
        scores = softcapped(scores, attrs["softcap"])
        if bias is not None:
            scores = scores + bias[..., :end]
        window = attrs["local_window_size"] - 1, 0 if attrs["causal"] else -1
        (visible,) = visible_keys(np.array([first]), np.array([end]), (q.shape[1], end), window)
        if attrs["qk_output"] == SCORES:
            qk_output[..., :end] = np.where(visible, scores, np.float32(0))
        scores = np.where(visible, scores, np.float32(-np.inf))
        # Smooth softmax: a sink with the score 0.
        smooth = 0.0 if attrs["smooth_softmax"] == 1 else -np.inf
        weights, is_blind = sink_softmax(
            scores, smooth if sink is None else wide(sink)[:, None, None]
        )
        # Padding rows of a shorter prompt may see no key.
        weights = np.where(is_blind, np.float32(0), weights)
        if attrs["qk_output"] == WEIGHTS:
            qk_output[..., :end] = weights
        return np.asarray(np.matmul(weights, v[:, :end]))


OPS: Final = (group_query,)
