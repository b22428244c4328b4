"""Attention: softmax(Q K^T) V with masks, sliding windows, key-value caches and grouped heads."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.errors import InvalidGraph
from sardonyx.graph.dim import Shape, Size
from sardonyx.graph.dtype import BOOL, FLOATS, I64, NUMBERS
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op, optional
from sardonyx.ops.arrays import Array, wide
from sardonyx.ops.attention.heads import (
    grouped_matmul,
    heads_of,
    merge_heads,
    precision,
    rounded,
    same_dims,
    same_rank,
    scaled_scores,
    softmax,
    split_heads,
    visible_keys,
)
from sardonyx.ops.attention.kv_cache import check_key_counts

RAW, CAPPED, BIASED, PROBABILITIES = range(4)  # qk_matmul_output_mode: the stage that is returned

attention: Final = Op(
    "Attention",
    25,
    "Q:T1 K:T1 V:T2 attn_mask:U? past_key:T1? past_value:T2? nonpad_kv_seqlen:I?",
    "Y:T1 present_key:T1? present_value:T2? qk_matmul_output:T1?",
    attrs={
        "is_causal": 0,
        "kv_num_heads": optional("int"),
        "left_window_size": -1,
        "q_num_heads": optional("int"),
        "qk_matmul_output_mode": 0,
        "right_window_size": -1,
        "scale": optional("float"),
        "softcap": 0.0,
        "softmax_precision": optional("int"),
    },
    types={"T1": FLOATS, "T2": FLOATS, "U": NUMBERS | {BOOL}, "I": frozenset((I64,))},
)


@frozen
class AttentionAttrs:
    """The attributes of an Attention node."""

    is_causal: int
    kv_num_heads: int | None
    left_window_size: int
    q_num_heads: int | None
    qk_matmul_output_mode: int
    right_window_size: int
    scale: float | None
    softcap: float
    softmax_precision: int | None

    def check(self) -> None:
        """Raise for values outside the op's specification."""
        if self.qk_matmul_output_mode not in range(4):
            mode = self.qk_matmul_output_mode
            raise InvalidGraph(f"qk_matmul_output_mode must be one of 0, 1, 2, 3, got {mode}")
        for side, size in (("left", self.left_window_size), ("right", self.right_window_size)):
            if size < -1:
                raise InvalidGraph(f"{side}_window_size must be at least -1 (no bound), got {size}")
        if self.softmax_precision is not None:
            precision(self.softmax_precision)


@frozen
class AttentionSizes:
    """The sizes of Q, K and V, from packed 3-D or from 4-D inputs."""

    batch: Size
    q_heads: Size
    rows: Size
    head: Size
    kv_heads: Size
    keys: Size
    v_head: Size


@attention.infer
def _(g: Scope, *inputs: Any, **attrs: Any) -> tuple[Fact, ...]:
    s = AttentionAttrs(**attrs)
    s.check()
    q, k, v, mask, past_key, past_value, nonpad = inputs
    same_rank(q.rank, K=k, V=v)
    d = _packed(g, s, q.dims, k.dims, v.dims) if q.rank == 3 else _unpacked(g, q, k, v)
    g.divides(d.kv_heads, d.q_heads, "the heads of K and V do not divide those of Q")
    past = _past(g, d, past_key, past_value)
    if nonpad is not None:
        if past_key is not None:
            raise InvalidGraph("nonpad_kv_seqlen and past_key exclude each other")
        same_dims(g, nonpad.dims, (d.batch,), "nonpad_kv_seqlen")
    total = past + d.keys
    if mask is not None:
        _check_mask(g, mask, (d.batch, d.q_heads, d.rows), total)
    y = (d.batch, d.rows, d.q_heads * d.v_head)
    return (
        q.shaped(y if q.rank == 3 else (d.batch, d.q_heads, d.rows, d.v_head)),
        k.shaped((d.batch, d.kv_heads, total, d.head)),
        v.shaped((d.batch, d.kv_heads, total, d.v_head)),
        q.shaped((d.batch, d.q_heads, d.rows, total)),
    )


def _packed(g: Scope, s: AttentionAttrs, q: Shape, k: Shape, v: Shape) -> AttentionSizes:
    q_heads, head = heads_of(g, s.q_num_heads, q[2], "q_num_heads")
    kv_heads, k_head = heads_of(g, s.kv_num_heads, k[2], "kv_num_heads")
    _, v_head = heads_of(g, s.kv_num_heads, v[2], "kv_num_heads")
    batch = g.equal(g.equal(q[0], k[0], "batches differ"), v[0], "batches differ")
    head = g.equal(head, k_head, "heads of Q and K have different sizes")
    keys = g.equal(k[1], v[1], "K and V have different lengths")
    return AttentionSizes(batch, q_heads, q[1], head, kv_heads, keys, v_head)


def _unpacked(g: Scope, q: Fact, k: Fact, v: Fact) -> AttentionSizes:
    if q.rank != 4:
        raise InvalidGraph(f"Q must have rank 3 or 4, got {q}")
    batch, q_heads, rows, head = q.dims
    batch = g.equal(g.equal(batch, k.dims[0], "batches differ"), v.dims[0], "batches differ")
    kv_heads = g.equal(k.dims[1], v.dims[1], "K and V have different numbers of heads")
    keys = g.equal(k.dims[2], v.dims[2], "K and V have different lengths")
    head = g.equal(head, k.dims[3], "heads of Q and K have different sizes")
    return AttentionSizes(batch, q_heads, rows, head, kv_heads, keys, v.dims[3])


def _past(g: Scope, d: AttentionSizes, key: Fact | None, value: Fact | None) -> Size:
    """Return the length of the cache before the new keys and values are appended."""
    if key is None or value is None:
        if key is not value:
            raise InvalidGraph("past_key and past_value go together: one of them is missing")
        return 0
    same_rank(4, past_key=key, past_value=value)
    past = g.equal(key.dims[2], value.dims[2], "past_key and past_value have different lengths")
    same_dims(g, key.dims, (d.batch, d.kv_heads, past, d.head), "past_key")
    same_dims(g, value.dims, (d.batch, d.kv_heads, past, d.v_head), "past_value")
    return past


def _check_mask(g: Scope, mask: Fact, outer: Shape, total: Size) -> None:
    if not 1 <= mask.rank <= 4:
        raise InvalidGraph(f"attn_mask must have rank 1 to 4, got {mask}")
    g.at_least(total, mask.dims[-1], "attn_mask has more columns than there are keys")
    leading = mask.dims[:-1]
    for a, b in zip(leading, outer[len(outer) - len(leading) :], strict=True):
        g.equal_or_one(a, b, "attn_mask does not broadcast to the scores")


@attention.reference
def _(*inputs: Any, **attrs: Any) -> tuple[Array, ...]:
    s = AttentionAttrs(**attrs)
    q, k, v, mask, past_key, past_value, nonpad = inputs
    is_packed = q.ndim == 3
    if is_packed:
        q = split_heads(q, attrs["q_num_heads"])
        k, v = split_heads(k, attrs["kv_num_heads"]), split_heads(v, attrs["kv_num_heads"])
    offset = 0 if past_key is None else past_key.shape[2]
    k = np.array(k) if past_key is None else np.concatenate((past_key, k), axis=2)
    v = np.array(v) if past_value is None else np.concatenate((past_value, v), axis=2)
    span = (q.shape[2], k.shape[2])
    bias = _bias(mask, span[1], q.dtype)
    first, end = np.array([offset]), np.array([span[1]])
    if nonpad is not None:
        check_key_counts(nonpad, span[1])
        first, end = nonpad - span[0], nonpad
    window = s.left_window_size, 0 if s.is_causal else s.right_window_size
    visible = visible_keys(first, end, span, window)[:, None]
    bias = np.where(visible, bias, -np.inf).astype(bias.dtype)
    out, qk_output = _attend(s, q, k, v, bias)
    y = (merge_heads(out) if is_packed else out).astype(q.dtype)
    return y, k, v, qk_output.astype(q.dtype)


def _bias(mask: Array | None, total: int, dtype: Any) -> Array:
    """Return the additive mask; keys after the mask's last column get -inf, as the spec says."""
    if mask is None:
        return wide(np.zeros(1, dtype))
    if mask.dtype == np.bool_:
        mask = np.where(mask, np.float32(0), np.float32(-np.inf))
    bias = rounded(mask, dtype)
    missing = total - bias.shape[-1]
    if not missing:
        return bias
    return np.pad(bias, [(0, 0)] * (bias.ndim - 1) + [(0, missing)], constant_values=-np.inf)


def _attend(s: AttentionAttrs, q: Array, k: Array, v: Array, bias: Array) -> tuple[Array, Array]:
    """Return the output and the scores selected by qk_matmul_output_mode.

    Every step rounds to the type of Q.
    """
    dtype = q.dtype
    with np.errstate(all="ignore"):
        # Q and K are scaled before the product; RAW scores are already scaled.
        qk_output = scores = scaled_scores(q, k, s.scale)
        if s.softcap > 0:
            cap = wide(np.array([s.softcap]).astype(dtype))
            scores = rounded(np.tanh(rounded(scores / cap, dtype)), dtype)
            scores = rounded(scores * cap, dtype)
        if s.qk_matmul_output_mode == CAPPED:
            qk_output = scores
        scores = rounded(scores + bias, dtype)
        if s.qk_matmul_output_mode == BIASED:
            qk_output = scores
        kind = dtype if s.softmax_precision is None else precision(s.softmax_precision).np
        probabilities = rounded(softmax(scores, kind), dtype)
        # A query that may see no key gives zeros; the bias tells, since scores may hold NaN.
        is_blind = bias.max(axis=-1, keepdims=True, initial=-np.inf) == -np.inf
        probabilities = np.where(is_blind, probabilities.dtype.type(0), probabilities)
        if s.qk_matmul_output_mode == PROBABILITIES:
            qk_output = probabilities
        return grouped_matmul(probabilities, wide(v)), qk_output


OPS: Final = (attention,)
