"""Sparse attention: Longformer's window with global tokens, and block-sparse layouts (CSR)."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, InvalidGraph
from sardonyx.graph.dtype import BF16, F16, F32, I32
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import contrib_op, optional, required
from sardonyx.ops.arrays import Array, one_int, wide
from sardonyx.ops.attention.heads import (
    all_or_none,
    expect_dims,
    grouped_head_size,
    grouped_heads,
    heads_of,
    merge_heads,
    same_dims,
    same_rank,
    softmax,
    split_heads,
    split_qkv,
)
from sardonyx.ops.attention.kv_cache import rotated

longformer: Final = contrib_op(
    "LongformerAttention",
    "input:T weight:T bias:T mask:T global_weight:T global_bias:T global:G",
    "output:T",
    attrs={"num_heads": required("int"), "window": required("int")},
    types={"T": frozenset((F32, F16)), "G": frozenset((I32,))},
)


@longformer.infer
def _(g: Scope, *inputs: Fact, num_heads: int, window: int) -> Fact:
    x, weight, bias, mask, global_weight, global_bias, chosen = inputs
    same_rank(3, input=x)
    batch, rows, hidden = x.dims
    heads_of(g, num_heads, hidden, "num_heads")
    if window < 1:
        raise InvalidGraph(f"window must be at least 1, got {window}")
    for name, w, b in (("weight", weight, bias), ("global_weight", global_weight, global_bias)):
        same_dims(g, w.dims, (hidden, 3 * hidden), name)
        same_dims(g, b.dims, (3 * hidden,), f"the bias of {name}")
    expect_dims(g, (batch, rows), mask=mask, **{"global": chosen})
    return x.without_contents()


@longformer.reference
@np.errstate(all="ignore")
def _(*inputs: Array, num_heads: int, window: int) -> Array:
    x, weight, bias, mask, global_weight, global_bias, chosen = inputs
    local_qkv, global_qkv = (
        [
            split_heads(part, num_heads)
            for part in np.split(np.matmul(wide(x), wide(w)) + wide(b), 3, 2)
        ]
        for w, b in ((weight, bias), (global_weight, global_bias))
    )
    is_global = chosen != 0
    positions = np.arange(x.shape[1])
    near = np.abs(positions - positions[:, None]) <= window
    # Local rows see their window and all global tokens; global rows, which have their own
    # projection, see every token.
    visible = near | is_global[:, None, None, :]
    hidden = wide(mask)[:, None, None, :]
    y = _attend(local_qkv, np.where(visible, hidden, -np.inf))
    global_rows = _attend(global_qkv, np.broadcast_to(hidden, (len(x), 1, 1, x.shape[1])))
    y = np.where(is_global[:, None, :, None], global_rows, y)
    return merge_heads(y).astype(x.dtype)


def _attend(qkv_heads: list[Array], mask: Array) -> Array:
    q, k, v = qkv_heads
    scores = np.matmul(q, k.swapaxes(2, 3)) / np.float32(math.sqrt(q.shape[3])) + mask
    return np.asarray(np.matmul(softmax(scores, scores.dtype), v))


blocks: Final = contrib_op(
    "SparseAttention",
    "query:T key:T? value:T? past_key:T past_value:T block_row_indices:M block_col_indices:M "
    "total_sequence_length:M key_total_sequence_lengths:M cos_cache:T? sin_cache:T?",
    "output:T present_key:T present_value:T",
    attrs={
        "do_rotary": 0,
        "kv_num_heads": required("int"),
        "num_heads": required("int"),
        "rotary_interleaved": 0,
        "scale": optional("float"),
        "sparse_block_size": required("int"),
    },
    types={"T": frozenset((F32, F16, BF16)), "M": frozenset((I32,))},
)


@blocks.infer
def _(g: Scope, *inputs: Fact | None, **attrs: Any) -> tuple[Fact, ...]:
    x, (heads, kv_heads) = blocks.named(inputs), grouped_heads(attrs)
    if attrs["sparse_block_size"] < 1:
        raise InvalidGraph(
            f"sparse_block_size must be at least 1, got {attrs['sparse_block_size']}"
        )
    all_or_none("key and value", x.key, x.value)
    if attrs["do_rotary"] and (x.cos_cache is None or x.sin_cache is None):
        raise InvalidGraph("do_rotary 1 needs cos_cache and sin_cache")
    same_rank(3, query=x.query)
    batch, rows, hidden = x.query.dims
    head = grouped_head_size(g, hidden, (heads, kv_heads), is_packed=x.key is None)
    expect_dims(g, (batch, rows, head * kv_heads), key=x.key, value=x.value)
    same_rank(4, past_key=x.past_key, past_value=x.past_value)
    cache = (batch, kv_heads, x.past_key.dims[2], head)
    expect_dims(g, cache, past_key=x.past_key, past_value=x.past_value)
    rows_of, columns_of = x.block_row_indices, x.block_col_indices
    same_rank(2, block_row_indices=rows_of, block_col_indices=columns_of)
    g.equal(rows_of.dims[0], columns_of.dims[0], "block_row_indices and block_col_indices differ")
    g.divides(rows_of.dims[0], heads, "the layouts do not divide the heads")
    expect_dims(g, (batch,), key_total_sequence_lengths=x.key_total_sequence_lengths)
    y = x.query.shaped((batch, rows, head * heads))
    return y, x.past_key.without_contents(), x.past_value.without_contents()


@blocks.reference
@np.errstate(all="ignore")
def _(*inputs: Array | None, **attrs: Any) -> tuple[Array, ...]:
    x, (heads, kv_heads) = blocks.named(inputs), grouped_heads(attrs)
    q, k, v = split_qkv(x, heads, kv_heads)
    rows, total = q.shape[2], one_int(x.total_sequence_length, "total_sequence_length")
    lengths = x.key_total_sequence_lengths
    # A prompt starts at 0; later tokens are appended at the end of each entry.
    firsts = np.zeros_like(lengths) if rows == total else lengths - rows
    capacity = x.past_key.shape[2]
    if firsts.size and (firsts.min() < 0 or (firsts + rows).max() > capacity):
        raise InvalidArgument(f"{rows} new rows of keys do not fit into a cache of {capacity}")
    if attrs["do_rotary"]:
        positions = firsts[:, None] + np.arange(rows)
        angles = (x.cos_cache, x.sin_cache, positions, attrs["rotary_interleaved"])
        q, k = rotated(q, *angles), rotated(k, *angles)
    caches = [np.array(x.past_key), np.array(x.past_value)]
    y = np.zeros(q.shape, np.float32)
    scale = np.float32(attrs["scale"] or 1 / math.sqrt(q.shape[3]))
    layouts = _layouts(x, capacity, attrs["sparse_block_size"])
    for b, first in enumerate(firsts):
        for cache, new in zip(caches, (k, v), strict=True):
            cache[b, :, first : first + rows] = new[b]
        end = first + rows
        keys, values = (wide(np.repeat(c[b, :, :end], heads // kv_heads, axis=0)) for c in caches)
        positions = np.arange(first, end)
        # Head h uses layout h modulo the number of layouts.
        visible = layouts[np.arange(heads) % len(layouts)][:, first:end, :end]
        visible = visible & (np.arange(end) <= positions[:, None])
        scores = np.matmul(wide(q[b]), keys.swapaxes(1, 2)) * scale
        scores = np.where(visible, scores, np.float32(-np.inf))
        y[b] = np.matmul(softmax(scores, np.float32), values)
    return merge_heads(y).astype(q.dtype), *caches


def _layouts(x: SimpleNamespace, size: int, block: int) -> Array:
    """Expand block layouts in CSR form to [layout, query position, key position] masks."""
    rows, columns = x.block_row_indices, x.block_col_indices
    count = -(-size // block)
    layouts = np.zeros((len(rows), count, count), bool)
    # CSR: the visible key blocks of query block r are columns[ends[r] : ends[r + 1]].
    for layout, (ends, columns_of) in enumerate(zip(rows, columns, strict=True)):
        if (np.diff(ends) < 0).any() or ends[0] < 0 or ends[-1] > len(columns_of):
            raise InvalidArgument(f"block_row_indices {ends.tolist()} do not split the columns")
        for row in range(min(len(ends) - 1, count)):
            chosen = columns_of[ends[row] : ends[row + 1]]
            layouts[layout, row, chosen[(chosen >= 0) & (chosen < count)]] = True
    # From blocks to single positions.
    return np.repeat(np.repeat(layouts, block, axis=1), block, axis=2)


OPS: Final = (longformer, blocks)
