"""Shared by the attention ops: shape checks, packed and grouped heads, masks and softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph, ShapeError
from sardonyx.graph.dim import Shape, Size
from sardonyx.graph.dtype import BF16, F16, F32, F64, DType
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.ops.arrays import Array, wide

MAX_HEADS: Final = 1 << 24  # a bound that no model reaches; keeps products of sizes in int64
PRECISIONS: Final[dict[int, DType]] = {d.onnx: d for d in (F32, F16, F64, BF16)}


def precision(number: int) -> DType:
    """Return the type that a softmax_precision attribute names."""
    dtype = PRECISIONS.get(number)
    if dtype is None:
        known = ", ".join(map(str, sorted(PRECISIONS)))
        raise InvalidGraph(f"softmax_precision must be one of {known}, got {number}")
    return dtype


def rounded(x: Array, dtype: Any) -> Array:
    """Round to `dtype` and return in the type that arithmetic is done in (float32 for halves)."""
    with np.errstate(all="ignore"):
        return wide(x.astype(dtype, copy=False))


def heads_of(g: Scope, heads: int | None, hidden: Size, what: str) -> tuple[int, Size]:
    """Return the number of heads in a packed dimension, and the size of one."""
    if heads is None or not 1 <= heads <= MAX_HEADS:
        raise InvalidGraph(f"{what} must be 1 to {MAX_HEADS} when heads are packed, got {heads}")
    g.divides(heads, hidden, f"{what} does not split the packed heads")
    return heads, hidden // heads


def positive_heads(attrs: dict[str, Any]) -> int:
    """Return num_heads; raise unless it is 1 or more."""
    heads: int = attrs["num_heads"]
    if heads < 1:
        raise InvalidGraph(f"num_heads must be at least 1, got {heads}")
    return heads


def grouped_heads(attrs: dict[str, Any]) -> tuple[int, int]:
    """Return num_heads and kv_num_heads; raise unless the latter divides the former."""
    heads, kv_heads = attrs["num_heads"], attrs["kv_num_heads"]
    if heads < 1 or kv_heads < 1 or heads % kv_heads:
        raise InvalidGraph(f"kv_num_heads {kv_heads} does not divide num_heads {heads}")
    return heads, kv_heads


def grouped_head_size(g: Scope, hidden: Size, counts: tuple[int, int], is_packed: bool) -> Size:
    """Return the size of a head of the query; a packed query holds the heads of key and value."""
    heads, kv_heads = counts
    n_heads = heads + 2 * kv_heads if is_packed else heads
    g.divides(n_heads, hidden, "the heads do not split the query")
    return hidden // n_heads


def all_or_none(what: str, *inputs: object) -> None:
    """Raise if only some of these optional inputs are present."""
    if len({x is None for x in inputs}) > 1:
        raise InvalidGraph(f"{what} go together: one of them is missing")


def split_heads(x: Array, heads: int) -> Array:
    """[batch, length, heads * size] as [batch, heads, length, size]."""
    batch, length, hidden = x.shape
    return x.reshape(batch, length, heads, hidden // heads).transpose(0, 2, 1, 3)


def split_qkv(x: Any, heads: int, kv_heads: int) -> tuple[Array, ...]:
    """[batch, heads, length, size] of query, key and value, which `x.query` may hold packed."""
    if x.key is not None:
        return (
            split_heads(x.query, heads),
            split_heads(x.key, kv_heads),
            split_heads(x.value, kv_heads),
        )
    packed = split_heads(x.query, heads + 2 * kv_heads)
    return tuple(np.split(packed, (heads, heads + kv_heads), axis=1))


def merge_heads(x: Array) -> Array:
    """[batch, heads, length, size] as [batch, length, heads * size]."""
    batch, heads, length, size = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, length, heads * size)


def grouped_matmul(a: Array, b: Array) -> Array:
    """Multiply each head of `a` by its group's head of `b`, with one matrix product per group."""
    batch, heads, rows, inner = a.shape
    shared = b.shape[1]
    # The query heads of a group are stacked as rows, since they share the right operand.
    if shared not in (0, heads):
        a = a.reshape(batch, shared, heads // shared * rows, inner)
    product: Array = np.matmul(a, b)
    return product.reshape(batch, heads, rows, b.shape[3])


def scaled_scores(q: Array, k: Array, scale: float | None) -> Array:
    """Return scale * q k^T with every step rounded to the type of q; None means 1 / sqrt(head).

    Both are scaled by sqrt(scale), as in the spec's reference: a product of unscaled float16 rows
    can overflow.
    """
    dtype = q.dtype
    factor = 1 / math.sqrt(q.shape[3] or 1) if scale is None else scale
    root = wide(np.sqrt(np.float64(factor)).astype(dtype).reshape(1))
    keys = rounded(wide(k) * root, dtype).swapaxes(2, 3)
    return rounded(grouped_matmul(rounded(wide(q) * root, dtype), keys), dtype)


def softmax(scores: Array, dtype: Any) -> Array:
    """Softmax over the last axis in `dtype`; a row that is all -inf gives NaN, as in Softmax."""
    # softmax_precision is explicit, so every step is done in that type, the sum included.
    x = scores.astype(dtype, copy=False)
    with np.errstate(all="ignore"):
        if x.shape[-1]:
            x = np.exp(x - x.max(axis=-1, keepdims=True))
        return wide(x / x.sum(axis=-1, keepdims=True))


def visible_keys(first: Array, end: Array, span: tuple[int, int], window: Sequence[int]) -> Array:
    """Return which keys each query sees by position, as [batch or 1, rows, keys].

    `first` and `end` are, per batch entry, the position of the first query and the number of keys;
    `window` is how many keys before and after its own position a query sees, -1 for all.
    """
    rows, keys = span
    distance = np.arange(keys) - (first[:, None] + np.arange(rows))[..., None]
    visible = np.broadcast_to(np.arange(keys) < end[:, None, None], distance.shape)
    left, right = window
    if left >= 0:
        visible = visible & (distance >= -left)
    return visible & (distance <= right) if right >= 0 else visible


def sink_softmax(scores: Array, sink: Any = -np.inf) -> tuple[Array, Array]:
    """Softmax over the last axis with one more term, exp(sink), in the denominator.

    Also returns which rows have only terms of 0; their softmax is NaN.
    """
    # The maximum includes the sink, so that no exponential overflows.
    sink = np.asarray(sink, scores.dtype)
    top = np.maximum(scores.max(axis=-1, keepdims=True, initial=-np.inf), sink)
    weights = np.exp(scores - top)
    weights = weights / (weights.sum(axis=-1, keepdims=True) + np.exp(sink - top))
    return weights, top == -np.inf


def softcapped(scores: Array, cap: float) -> Array:
    """Bound scores smoothly to [-cap, cap]; a cap of 0 means none."""
    limit = np.float32(cap)
    return np.tanh(scores / limit) * limit if cap > 0 else scores


def rms_normalized(x: Array, weight: Array, epsilon: float) -> Array:
    """RMS normalization of each head (query and key norm): x / sqrt(mean(x^2) + eps) * weight."""
    with np.errstate(all="ignore"):
        square = np.square(wide(x)).mean(axis=-1, keepdims=True)
        y = wide(x) / np.sqrt(square + np.float32(epsilon)) * wide(weight)
        return np.asarray(y.astype(x.dtype))


def same_rank(rank: int, **facts: Fact) -> None:
    """Raise unless every input has this rank."""
    for name, fact in facts.items():
        if fact.rank != rank:
            raise InvalidGraph(f"{name} must have rank {rank}, got {fact}")


def expect_dims(g: Scope, expected: Shape, **facts: Fact | None) -> None:
    """Require each of these inputs that is present to have this shape."""
    for name, fact in facts.items():
        if fact is not None:
            same_dims(g, fact.dims, expected, name)


def check_mask(g: Scope, mask: Fact | None, scores: Shape) -> None:
    """Require a mask that is present to broadcast to the scores."""
    if mask is None:
        return
    if mask.rank > len(scores):
        raise ShapeError(f"the mask {mask} has more dims than the scores {scores}")
    for a, b in zip(reversed(mask.dims), reversed(scores), strict=False):
        g.equal_or_one(a, b, "the mask does not broadcast to the scores")


def same_dims(g: Scope, actual: Shape, expected: Shape, what: str) -> None:
    """Require two shapes to be equal."""
    if actual == expected:
        return
    problem = f"{what} must have shape {_shape_text(expected)}, and has {_shape_text(actual)}"
    if len(actual) != len(expected):
        raise ShapeError(problem)
    for a, b in zip(actual, expected, strict=True):
        g.equal(a, b, problem)


def _shape_text(shape: Shape) -> str:
    return f"[{','.join(map(str, shape))}]"
