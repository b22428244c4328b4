"""Scaled dot-product attention. Scores are never saved: the backward op computes them again."""

from __future__ import annotations

import math

import numpy as np

from sardonyx.dynamo.aten_builder import AtenBuilder, Unsupported, static
from sardonyx.dynamo.table import lowers
from sardonyx.graph.dtype import BOOL, I64
from sardonyx.graph.graph import Value


@lowers("_scaled_dot_product_flash_attention_for_cpu.default")
def _(
    b: AtenBuilder,
    q: Value,
    k: Value,
    v: Value,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> tuple[Value, Value | None]:
    if dropout:
        raise Unsupported("flash attention with dropout")
    options = {} if scale is None else {"scale": float(scale)}
    if attn_mask is not None and attn_mask.tensor.dtype is not BOOL:
        attn_mask = b.cast(attn_mask, q.tensor.dtype)
    # The row statistics (logsumexp) serve the backward op alone, and ours needs none.
    return b.Attention(q, k, v, attn_mask, is_causal=int(causal), **options), None


@lowers("_scaled_dot_product_flash_attention_for_cpu_backward.default")
def _(
    b: AtenBuilder,
    dy: Value,
    q: Value,
    k: Value,
    v: Value,
    out: Value,
    lse: Value | None,
    dropout: float,
    causal: bool,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> tuple[Value | None, ...]:
    if dropout:
        raise Unsupported("flash attention with dropout")
    width = static(b.fake(1).shape[-1], "the width of the heads")
    scale = 1 / math.sqrt(width) if scale is None else scale
    group = _group_size(b)
    # Scores, probabilities and sums are float32 for 16-bit operands, as in torch's kernel.
    dy, q, k, v, out = (b.wide(x) for x in (dy, q, k, v, out))
    k, v = _repeated(b, k, group), _repeated(b, v, group)
    p = _probabilities(b, b.Mul(b.MatMul(q, _swapped(b, k)), scale), causal, attn_mask)
    dv = b.MatMul(_swapped(b, p), dy)
    # The softmax's backward: ds = p (dp - sum(p dp)), where sum(p dp) = sum(dy out) by row.
    delta = b.ReduceSum(b.Mul(dy, out), b.ints(-1), keepdims=1)
    ds = b.Mul(b.Mul(p, b.Sub(b.MatMul(dy, _swapped(b, v)), delta)), scale)
    dq, dk = b.MatMul(ds, k), b.MatMul(_swapped(b, ds), q)
    return b.typed_as_out(dq, _summed(b, dk, group), _summed(b, dv, group))


def _swapped(b: AtenBuilder, x: Value) -> Value:
    return b.Transpose(x, perm=(0, 1, 3, 2))


def _group_size(b: AtenBuilder) -> int:
    """Return the number of query heads per head of keys and values."""
    heads, kv_heads = (b.fake(i).shape[1] for i in (1, 2))
    if heads is kv_heads or heads == kv_heads:
        return 1
    return static(heads, "the number of heads") // static(kv_heads, "the number of key heads")


def _repeated(b: AtenBuilder, x: Value, group: int) -> Value:
    """[batch, heads, rows, width] with each head repeated."""
    if group == 1:
        return x
    one = b.Unsqueeze(x, b.ints(2))
    copies = b.Expand(one, b.ints(1, 1, group, 1, 1))
    batch, rest = (
        b.Slice(b.Shape(x), b.ints(0), b.ints(1)),
        b.Slice(b.Shape(x), b.ints(2), b.ints(4)),
    )
    return b.Reshape(copies, b.Concat(batch, b.ints(-1), rest, axis=0))


def _summed(b: AtenBuilder, x: Value, group: int) -> Value:
    """Sum the gradients of the copies of each head."""
    if group == 1:
        return x
    batch, rest = (
        b.Slice(b.Shape(x), b.ints(0), b.ints(1)),
        b.Slice(b.Shape(x), b.ints(2), b.ints(4)),
    )
    grouped = b.Reshape(x, b.Concat(batch, b.ints(-1, group), rest, axis=0))
    return b.ReduceSum(grouped, b.ints(2), keepdims=0)


def _probabilities(b: AtenBuilder, scores: Value, causal: bool, mask: Value | None) -> Value:
    """Return the softmax over visible keys; zeros where a query sees none."""
    lowest = b.const(-np.inf, scores.tensor.dtype)
    if mask is not None and mask.tensor.dtype is BOOL:
        scores = b.Where(mask, scores, lowest)
    elif mask is not None:
        scores = b.Add(scores, b.cast(mask, scores.tensor.dtype))
    if causal:
        square = b.Slice(b.Shape(scores), b.ints(-2), b.ints(2**62))
        above = b.Trilu(b.Expand(lowest, square), b.const(1, I64), upper=1)
        scores = b.Add(scores, above)
    p = b.Softmax(scores, axis=-1)
    if mask is None:
        return p
    # A row of -inf gives NaN.
    top = b.ReduceMax(scores, b.ints(-1), keepdims=1)
    return b.Where(b.Equal(top, lowest), b.const(0, p.tensor.dtype), p)
