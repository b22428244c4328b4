"""MultiHeadAttention of com.microsoft: packed or separate query, key and value, with a cache."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.errors import InvalidArgument, InvalidGraph
from sardonyx.graph.dim import Shape, Size
from sardonyx.graph.dtype import BF16, F16, F32, I32
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import contrib_op, optional, required
from sardonyx.ops.arrays import Array, one_int, wide
from sardonyx.ops.attention.heads import (
    all_or_none,
    expect_dims,
    heads_of,
    merge_heads,
    positive_heads,
    same_dims,
    same_rank,
    softmax,
    split_heads,
)

MASKED_SCORE: Final = -10000.0  # onnxruntime's default mask_filter_value
NO_MASK: Final = np.zeros((1, 1, 1, 1), np.float32)  # an additive mask that hides no key
_TYPES: Final = {"T": frozenset((F32, F16, BF16)), "M": frozenset((I32,))}

multi_head: Final = contrib_op(
    "MultiHeadAttention",
    "query:T key:T? value:T? bias:T? key_padding_mask:M? attention_bias:T? past_key:T? "
    "past_value:T? past_sequence_length:M? cache_indirection:M?",
    "output:T present_key:T? present_value:T? qk:T?",
    attrs={
        "mask_filter_value": optional("float"),
        "num_heads": required("int"),
        "scale": optional("float"),
        "unidirectional": 0,
    },
    types=_TYPES,
)


@frozen
class MultiHeadInputs:
    """The inputs of a MultiHeadAttention by name: facts, arrays or values."""

    query: Any
    key: Any
    value: Any
    bias: Any
    padding: Any
    attention_bias: Any
    past_key: Any
    past_value: Any
    past_length: Any
    indirection: Any


def _check(x: MultiHeadInputs) -> None:
    all_or_none("past_key and past_value", x.past_key, x.past_value)
    if x.past_length is not None and x.past_key is None:
        raise InvalidGraph("past_sequence_length needs past_key")
    if x.indirection is not None and x.past_length is None:
        raise InvalidGraph("cache_indirection needs past_sequence_length")


@frozen
class MultiHeadSizes:
    """The sizes of the operands, for each of their layouts."""

    batch: Size
    rows: Size
    head: Size
    keys: Size
    width: Size  # of a value head


def _sizes(g: Scope, x: MultiHeadInputs, heads: int) -> MultiHeadSizes:
    if x.query.rank == 5:
        if x.key is not None or x.value is not None:
            raise InvalidGraph("query holds key and value, and these are inputs too")
        batch, rows, _, _, head = x.query.dims
        same_dims(g, x.query.dims, (batch, rows, heads, 3, head), "a query with key and value")
        return MultiHeadSizes(batch, rows, head, rows, head)
    same_rank(3, query=x.query)
    batch, rows, hidden = x.query.dims
    _, head = heads_of(g, heads, hidden, "num_heads")
    if x.key is None:
        raise InvalidGraph("key is missing, and query does not hold it")
    if x.key.rank == 5:
        if x.value is not None:
            raise InvalidGraph("key holds the values, and value is an input too")
        keys = x.key.dims[1]
        same_dims(g, x.key.dims, (batch, keys, heads, 2, head), "a key with value")
        return MultiHeadSizes(batch, rows, head, keys, head)
    if x.value is None:
        raise InvalidGraph("value is missing, and key does not hold it")
    if x.key.rank == 4:
        keys = x.key.dims[2]
        same_rank(4, value=x.value)
        same_dims(g, x.key.dims, (batch, heads, keys, head), "key")
        same_dims(g, x.value.dims, (batch, heads, keys, x.value.dims[3]), "value")
        return MultiHeadSizes(batch, rows, head, keys, x.value.dims[3])
    same_rank(3, key=x.key, value=x.value)
    keys = x.key.dims[1]
    same_dims(g, x.key.dims, (batch, keys, hidden), "key")
    same_dims(g, x.value.dims, (batch, keys, x.value.dims[2]), "value")
    _, width = heads_of(g, heads, x.value.dims[2], "num_heads")
    return MultiHeadSizes(batch, rows, head, keys, width)


@multi_head.infer
def infer_multi_head(g: Scope, *inputs: Fact | None, **attrs: Any) -> tuple[Fact, ...]:
    x, heads = MultiHeadInputs(*inputs), positive_heads(attrs)
    _check(x)
    s = _sizes(g, x, heads)
    past: Size = 0
    if x.past_key is not None:
        same_rank(4, past_key=x.past_key, past_value=x.past_value)
        past = x.past_key.dims[2]
        same_dims(g, x.past_key.dims, (s.batch, heads, past, s.head), "past_key")
        same_dims(g, x.past_value.dims, (s.batch, heads, past, s.width), "past_value")
    total = length = past + s.keys
    if x.past_length is not None:
        total, length = shared_key_count(g, x.past_length, x.indirection), past
    expect_dims(g, ((2 * s.head + s.width) * heads,), bias=x.bias)
    if x.padding is not None:
        _check_padding(g, x.padding, (s.batch, s.rows, total))
    check_attention_bias(g, x.attention_bias, (s.batch, heads, s.rows, total))
    return (
        x.query.shaped((s.batch, s.rows, s.width * heads)),
        x.query.shaped((s.batch, heads, length, s.head)),
        x.query.shaped((s.batch, heads, length, s.width)),
        x.query.shaped((s.batch, heads, s.rows, total)),
    )


def shared_key_count(g: Scope, past_length: Fact, indirection: Fact | None) -> Size:
    """Return the number of keys in a shared past-present buffer: a new, data-dependent dim."""
    for size in past_length.dims:
        g.equal(size, 1, "past_sequence_length is one number")
    if indirection is not None:
        same_rank(3, cache_indirection=indirection)
    return g.new_dim("keys")


def _check_padding(g: Scope, mask: Fact, scores: Shape) -> None:
    batch, rows, total = scores
    expected = {1: (batch,), 2: (batch, total), 3: (batch, rows, total)}.get(mask.rank)
    if expected is None:
        raise InvalidGraph(f"key_padding_mask must have rank 1, 2 or 3, got {mask.rank}")
    same_dims(g, mask.dims, expected, "key_padding_mask")


def check_attention_bias(g: Scope, bias: Fact | None, scores: Shape) -> None:
    """Require attention_bias to broadcast to the scores; these may leave out their last axis."""
    if bias is None:
        return
    same_rank(4, attention_bias=bias)
    g.equal_or_one(bias.dims[0], scores[0], "attention_bias does not broadcast over the batch")
    g.equal_or_one(bias.dims[1], scores[1], "attention_bias does not broadcast over the heads")
    g.equal(bias.dims[2], scores[2], "attention_bias has another number of rows than the query")
    if len(scores) == 4:
        g.equal(bias.dims[3], scores[3], "attention_bias has another number of columns than keys")


@multi_head.reference
def run_multi_head(*inputs: Array | None, **attrs: Any) -> tuple[Array, ...]:
    x, heads = MultiHeadInputs(*inputs), attrs["num_heads"]
    q, k, v = _heads(x, heads)
    if x.bias is not None:
        width = q.shape[1] * q.shape[3]
        parts = np.split(x.bias, (width, 2 * width))
        q, *rest = (
            (wide(y) + wide(part).reshape(1, heads, 1, -1)).astype(y.dtype)
            for y, part in zip((q, k, v), parts, strict=True)
        )
        if x.key is None or x.key.ndim != 4:  # 4-D keys are a cache: their bias is already added
            k, v = rest
    past = 0
    if x.past_length is not None:
        past = one_int(x.past_length, "past_sequence_length")
        caches = [shared_cache(old, n, past) for old, n in ((x.past_key, k), (x.past_value, v))]
        k, v = (gather_beams(c, past, k.shape[2], x.indirection) for c in caches)
    elif x.past_key is not None:
        past = x.past_key.shape[2]
        caches = [np.concatenate(p, axis=2) for p in ((x.past_key, k), (x.past_value, v))]
        k, v = caches
    else:
        caches = [k, v]
    mask = _mask(x.padding, k.shape[2], attrs["mask_filter_value"])
    if x.attention_bias is not None:
        mask = mask + wide(x.attention_bias)
    y, scores = attend(q, k, v, mask, past, attrs)
    return merge_heads(y), *(np.ascontiguousarray(c) for c in caches), scores.astype(x.query.dtype)


def shared_cache(cache: Array, new: Array, past: int) -> Array:
    """Return a shared cache with new rows after the past ones, and zeros after those."""
    if past < 0 or past + new.shape[2] > cache.shape[2]:
        raise InvalidArgument(
            f"{new.shape[2]} new rows after {past} do not fit into a cache of {cache.shape[2]}"
        )
    result = np.zeros_like(cache)
    result[:, :, :past] = cache[:, :, :past]
    result[:, :, past : past + new.shape[2]] = new
    return result


def gather_beams(cache: Array, past: int, rows: int, indirection: Array | None) -> Array:
    """Return the filled rows; with cache_indirection, each past row comes from its source beam."""
    filled_rows = cache[:, :, : past + rows]
    if indirection is None:
        return filled_rows
    groups, beams, _ = indirection.shape
    source_beams = indirection[:, :, :past]
    if groups * beams != cache.shape[0] or source_beams.shape[2] < past:
        raise InvalidArgument(
            f"cache_indirection {list(indirection.shape)} does not fit a batch of {cache.shape[0]} "
            f"with {past} keys"
        )
    if source_beams.size and (source_beams.min() < 0 or source_beams.max() >= beams):
        raise InvalidArgument(f"cache_indirection names beams outside [0, {beams})")
    # Beams of a group are adjacent in the batch; indirection names the beam within the group that
    # each past key was written by.
    first = np.arange(groups)[:, None, None] * beams
    source = (source_beams + first).reshape(cache.shape[0], past)
    old = cache[source, :, np.arange(past)].swapaxes(1, 2)
    return np.concatenate((old, filled_rows[:, :, past:]), axis=2)


def _heads(x: MultiHeadInputs, heads: int) -> tuple[Array, Array, Array]:
    """Query, key and value as [batch, heads, rows, head]."""
    if x.query.ndim == 5:
        q, k, v = x.query.transpose(3, 0, 2, 1, 4)
        return q, k, v
    q = split_heads(x.query, heads)
    if x.key.ndim == 5:
        k, v = x.key.transpose(3, 0, 2, 1, 4)
        return q, k, v
    if x.key.ndim == 4:
        return q, x.key, x.value
    return q, split_heads(x.key, heads), split_heads(x.value, heads)


def _mask(padding: Array | None, keys: int, low: float | None) -> Array:
    """Return the additive mask for scores [batch, heads, rows, keys]."""
    if padding is None:
        return NO_MASK
    return additive_mask(np.arange(keys) < padding[:, None] if padding.ndim == 1 else padding, low)


def additive_mask(visible: Array, low: float | None) -> Array:
    """Return 0 for visible keys and mask_filter_value for others, from [batch, (rows,) keys]."""
    shape = (len(visible), 1, 1 if visible.ndim == 2 else visible.shape[1], visible.shape[-1])
    lowest = MASKED_SCORE if low is None else low
    return np.where(visible.reshape(shape) > 0, 0, lowest).astype(np.float32)


def attend(
    q: Array, k: Array, v: Array, mask: Array, past: int, attrs: dict[str, Any]
) -> tuple[Array, Array]:
    """Return softmax(scale q k^T + mask) v, and the scores before the softmax."""
    scale = attrs["scale"] or 1 / math.sqrt(q.shape[-1] or 1)
    rows, keys = q.shape[2], k.shape[2]
    with np.errstate(all="ignore"):
        scores = np.matmul(wide(q), wide(k).swapaxes(2, 3)) * np.float32(scale) + mask
        # A finite mask value, as in onnxruntime: rows whose keys are all masked do not become NaN.
        if attrs["unidirectional"]:
            visible = np.arange(keys) <= np.arange(past, past + rows)[:, None]
            scores = np.where(visible, scores, np.finfo(np.float32).min)
        weights = softmax(scores, scores.dtype)
        return np.matmul(weights, wide(v)).astype(q.dtype), scores.astype(q.dtype)


OPS: Final = (multi_head,)
