"""Grouped flash decoding: attention of a few new tokens over a KV cache, on matrix units.

Split-KV: the keys of one KV head are divided among programs (splits). Each computes an online
softmax over its keys for all query heads that share the KV head, and leaves a partial state
(maximum, denominator, weighted values); the last program to finish merges the states.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc,no-any-return,assignment"

from __future__ import annotations

import triton
import triton.language as tl

from sardonyx.providers.torch.kernels.fixed_point import store_fixed_point, to_fixed_point
from sardonyx.providers.torch.kernels.intrinsics import launch_dependents, wait_for_previous


@triton.jit
def rotation_pairs(feature, rotary: tl.constexpr):
    """Return each feature's pair index, its partner in the pair, and the sign of sin.

    `rotary` is (rotated pairs, whether pairs are interleaved, positions in cos and sin).
    """
    pairs: tl.constexpr = rotary[0]
    is_interleaved: tl.constexpr = rotary[1]
    if is_interleaved:
        is_first = feature % 2 == 0
        return feature // 2, tl.where(is_first, feature + 1, feature - 1), 1 - 2 * is_first
    is_first = feature < pairs
    partner = tl.where(is_first, feature + pairs, feature - pairs)
    return feature % pairs, partner, 1 - 2 * is_first


@triton.jit
def rotated(p, offset, feature, tables, position, rotary: tl.constexpr, head: tl.constexpr):
    """Return heads at offsets [n, 1], rotated (RoPE) by their positions [n, 1]; offset < 0: zeros.

    `tables` are the cosines and sines. Features after the rotated pairs are unchanged.
    """
    pairs: tl.constexpr = rotary[0]
    ok = (offset >= 0) & (feature < head)
    value = tl.load(p + offset + feature, ok, 0.0).to(tl.float32)
    # Not an early return: Triton compiles the code after it, where the tables are None.
    if pairs > 0:
        cos, sin = tables
        pair, partner, sign = rotation_pairs(feature, rotary)
        is_rotated = ok & (feature < 2 * pairs)
        other = tl.load(p + offset + partner, is_rotated, 0.0).to(tl.float32)
        c = tl.load(cos + position * pairs + pair, is_rotated, 1.0).to(tl.float32)
        s = tl.load(sin + position * pairs + pair, is_rotated, 0.0).to(tl.float32)
        value = value * c + sign * other * s
    return value


@triton.jit
def rotary_position(positions, first, token, rotary: tl.constexpr):
    """Return the position of new tokens, clamped to the rows of the cosine and sine tables."""
    position_ids, batch_offset = positions
    n_positions: tl.constexpr = rotary[2]
    position = first + token
    if position_ids is not None:
        position = tl.load(position_ids + batch_offset + token).to(tl.int32)
    return tl.minimum(tl.maximum(position, 0), n_positions - 1)


@triton.jit
def split_range(
    last, capacity, window, n_new: tl.constexpr, tile: tl.constexpr, has_new: tl.constexpr
):
    """Return the new tokens' first position, the first visible key, keys per split, and splits.

    `has_new` says whether the splits cover the new tokens' keys, too. The first position is clamped
    so that nothing is written outside of the cache; it then differs from what `last` says.
    """
    first = tl.minimum(tl.maximum(last + 1 - n_new, 0), capacity - n_new)
    begin = tl.maximum(0, first + 1 - window)
    n_keys = first - begin + (n_new if has_new else 0)
    # Whole tiles per split. The grid is sized for the capacity: short caches leave splits empty.
    length = tl.cdiv(tl.cdiv(n_keys, tl.num_programs(0)), tile) * tile
    return first, begin, length, tl.maximum(1, tl.cdiv(n_keys, tl.maximum(length, 1)))


@triton.jit
def load_tile(p, low, high, sizes: tl.constexpr):
    """Return cached keys or values [keys, features] from row `low` on; zeros from `high` on."""
    tile: tl.constexpr = sizes[1]
    features: tl.constexpr = sizes[2]
    head: tl.constexpr = sizes[3]
    feature = tl.arange(0, features)[None, :]
    key = low + tl.arange(0, tile)[:, None]
    return tl.load(p + key * head + feature, (key < high) & (feature < head), 0.0)


@triton.jit
def exp2_below(x, top):
    """Return 2^(x - top), and 0 where both are -inf: a row without visible keys has no NaN."""
    return tl.where(x == float("-inf"), 0.0, tl.exp2(x - top))


@triton.jit
def _softmax_update(state, q, k, v, seen, softcap, has_cap: tl.constexpr):
    """Online softmax: add keys [keys, features] and values to (maxima, denominators, values)."""
    top, total, values = state
    # Three TF32 products per float32 product: float32 accuracy on matrix units.
    scores = tl.dot(q, tl.trans(k.to(tl.float32)), input_precision="tf32x3")
    if has_cap:  # softcap * tanh(scores / softcap)
        scores = softcap * (2 / (1 + tl.exp(-2 * scores / softcap)) - 1)
    # log2(e), so that exponentials are powers of two, which have an instruction.
    scores = tl.where(seen, scores * 1.4426950408889634, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    decay = exp2_below(top, new_top)
    weight = exp2_below(scores, new_top[:, None])
    total = total * decay + tl.sum(weight, 1)
    more = tl.dot(weight, v.to(tl.float32), input_precision="tf32x3")
    return new_top, total, values * decay[:, None] + more


@triton.jit
def _attend_cached(q, caches, tiles, span, position, limits, sizes: tl.constexpr):
    """Return the softmax state of a span of cached keys, whose first tiles are loaded already."""
    k_cache, v_cache = caches
    low, high = span
    window, softcap = limits
    rows: tl.constexpr = sizes[0]
    tile: tl.constexpr = sizes[1]
    features: tl.constexpr = sizes[2]
    has_cap: tl.constexpr = sizes[4]
    top = tl.full([rows], float("-inf"), tl.float32)
    state = (top, tl.zeros([rows], tl.float32), tl.zeros([rows, features], tl.float32))
    k, v = tiles
    for start in tl.range(low, high, tile, num_stages=1):
        # Software prefetch: the next tiles are loaded while these are multiplied.
        next_k = load_tile(k_cache, start + tile, high, sizes)
        next_v = load_tile(v_cache, start + tile, high, sizes)
        key = (start + tl.arange(0, tile))[None, :]
        seen = (key < high) & (key > position[:, None] - window)
        state = _softmax_update(state, q, k, v, seen, softcap, has_cap)
        k = next_k
        v = next_v
    return state


@triton.jit
def _attend_new(state, q, new, caches, position, limits, rotary: tl.constexpr, sizes: tl.constexpr):
    """Rotate the new tokens' keys, store keys and values in the cache, add them to the state."""
    k_new, v_new, row_stride, tables, first, positions = new
    k_cache, v_cache = caches
    window, softcap = limits
    features: tl.constexpr = sizes[2]
    head: tl.constexpr = sizes[3]
    has_cap: tl.constexpr = sizes[4]
    n_new: tl.constexpr = sizes[5]
    feature = tl.arange(0, features)[None, :]
    token = tl.arange(0, 16)[:, None]  # 16: the smallest side of a tl.dot
    is_new = token < n_new
    at = rotary_position(positions, first, tl.minimum(token, n_new - 1), rotary)
    k = rotated(k_new, tl.where(is_new, token * row_stride, -1), feature, tables, at, rotary, head)
    # Rounded as the cache stores them, so that later steps see the same keys.
    k = k.to(k_cache.dtype.element_ty)
    ok = is_new & (feature < head)
    v = tl.load(v_new + token * row_stride + feature, ok, 0.0).to(v_cache.dtype.element_ty)
    tl.store(k_cache + (first + token) * head + feature, k, ok)
    tl.store(v_cache + (first + token) * head + feature, v, ok)
    key = first + tl.arange(0, 16)[None, :]
    seen = (key <= position[:, None]) & (key > position[:, None] - window) & (key < first + n_new)
    return _softmax_update(state, q, k, v, seen, softcap, has_cap)


@triton.jit
def merge_splits(scratch, n_splits, sizes: tl.constexpr):
    """Return the attention [rows * features] from the states of all splits, several at a time.

    A split's state in scratch is maxima [rows], denominators [rows], values [rows, features].
    """
    rows: tl.constexpr = sizes[6]
    features: tl.constexpr = sizes[2]
    at_once: tl.constexpr = sizes[7]
    row = tl.arange(0, rows)
    top = tl.full([rows], float("-inf"), tl.float32)
    total = tl.zeros([rows], tl.float32)
    values = tl.zeros([rows, features], tl.float32)
    for first in range(0, n_splits, at_once):
        split = first + tl.arange(0, at_once)
        ok = (split < n_splits)[:, None]
        p = scratch + split[:, None] * (rows * (features + 2)) + row[None, :]
        # Other processors wrote these: .cg reads from L2 and bypasses this one's L1.
        tops = tl.load(p, ok, float("-inf"), cache_modifier=".cg")
        totals = tl.load(p + rows, ok, 0.0, cache_modifier=".cg")
        at = split[:, None] * (rows * (features + 2)) + 2 * rows
        at = (at + row[None, :] * features)[:, :, None] + tl.arange(0, features)[None, None, :]
        more = tl.load(scratch + at, ok[:, :, None], 0.0, cache_modifier=".cg")
        new_top = tl.maximum(top, tl.max(tops, 0))
        decay = exp2_below(top, new_top)
        weight = exp2_below(tops, new_top[None, :])
        total = total * decay + tl.sum(totals * weight, 0)
        values = values * decay[:, None] + tl.sum(more * weight[:, :, None], 0)
        top = new_top
    return tl.reshape(values / tl.where(total > 0, total, 1.0)[:, None], [rows * features])


@triton.jit
def store_output(y, out, values, rows: tl.constexpr, head_ids, sizes: tl.constexpr):
    """Store results [rows * features]; if `out` is given, also in fixed point."""
    group, kv_head, n_kv_heads = head_ids
    features: tl.constexpr = sizes[2]
    head: tl.constexpr = sizes[3]
    n_new: tl.constexpr = sizes[5]
    at = tl.arange(0, rows * features)
    row = at // features
    feature = at % features
    ok = (row < n_new * group) & (feature < head)
    rounded = values.to(y.dtype.element_ty)
    y_row = row // group * (group * n_kv_heads) + kv_head * group + row % group
    tl.store(y + y_row * head + feature, rounded, ok)
    if out is not None:  # one token: each row is a head of whole units, padded to the tile
        units_per_row: tl.constexpr = features // 32
        unit = tl.arange(0, rows * units_per_row)
        local = unit % units_per_row
        y_unit = (kv_head * group + unit // units_per_row) * (head // 32) + local
        y_unit = tl.where((unit // units_per_row < group) & (local < head // 32), y_unit, -1)
        words = to_fixed_point(tl.where(ok, rounded.to(tl.float32), 0.0), rows * units_per_row)
        store_fixed_point(out, words, y_unit, group * n_kv_heads * (head // 32))


@triton.jit
def _store_state(p, state, sizes: tl.constexpr):
    """Store a split's state for `merge_splits`; rows that only pad the tile are left out."""
    top, total, values = state
    rows: tl.constexpr = sizes[0]
    features: tl.constexpr = sizes[2]
    stored_rows: tl.constexpr = sizes[6]
    row = tl.arange(0, rows)
    is_stored = row < stored_rows
    tl.store(p + row, top, is_stored)
    tl.store(p + stored_rows + row, total, is_stored)
    at = 2 * stored_rows + row[:, None] * features + tl.arange(0, features)[None, :]
    tl.store(p + at, values, is_stored[:, None])


@triton.jit
def grouped_decode_kernel(
    q, k_new, v_new, cos, sin, position_ids, seqlens, k_cache, v_cache, y, out, scratch, counts,
    scale, window, softcap, q_stride, k_stride, capacity,
    group: tl.constexpr, n_kv_heads: tl.constexpr, sizes: tl.constexpr,
    rotary: tl.constexpr, overlap: tl.constexpr,
):  # fmt: skip
    """Grid (splits, KV heads, batch): one program for one split of the keys of one KV head.

    `sizes` is (query rows, keys of a tile, features, features of a head, whether scores are capped,
    new tokens, query rows in scratch, splits merged at a time); all tile sizes are powers of two.
    """
    launch_dependents(overlap)
    split = tl.program_id(0)
    kv_head = tl.program_id(1)
    batch = tl.program_id(2)
    rows: tl.constexpr = sizes[0]
    features: tl.constexpr = sizes[2]
    head: tl.constexpr = sizes[3]
    n_new: tl.constexpr = sizes[5]
    stored_rows: tl.constexpr = sizes[6]
    wait_for_previous(overlap)
    last = tl.load(seqlens + batch)
    first, begin, length, n_splits = split_range(last, capacity, window, n_new, sizes[1], False)
    if split < n_splits:
        low = begin + split * length
        high = tl.minimum(first, low + length)
        block = (batch * n_kv_heads + kv_head).to(tl.int64) * capacity * head
        caches = (k_cache + block, v_cache + block)
        tiles = (load_tile(caches[0], low, high, sizes), load_tile(caches[1], low, high, sizes))
        row = tl.arange(0, rows)
        token = tl.minimum(row // group, n_new - 1)
        positions = (position_ids, batch * n_new)
        at = (batch * n_new + token) * q_stride + (kv_head * group + row % group) * head
        at = tl.where(row < n_new * group, at, -1)[:, None]
        angle = rotary_position(positions, first, token, rotary)[:, None]
        feature = tl.arange(0, features)[None, :]
        queries = rotated(q, at, feature, (cos, sin), angle, rotary, head) * scale
        # A sequence that does not fit in the cache was clamped: its result is NaN.
        queries += tl.where(last + 1 == first + n_new, 0.0, float("nan"))
        limits = (window, softcap)
        state = _attend_cached(queries, caches, tiles, (low, high), first + token, limits, sizes)
        if split == n_splits - 1:
            start = batch * n_new * k_stride + kv_head * head
            new = (k_new + start, v_new + start, k_stride, (cos, sin), first, positions)
            state = _attend_new(state, queries, new, caches, first + token, limits, rotary, sizes)
        y += batch * (n_new * group * n_kv_heads * head)
        head_ids = (group, kv_head, n_kv_heads)
        if n_splits == 1:
            _, total, values = state
            quotient = values / tl.where(total > 0, total, 1.0)[:, None]
            store_output(y, out, tl.reshape(quotient, [rows * features]), rows, head_ids, sizes)
        else:
            slot = batch * n_kv_heads + kv_head
            scratch += slot * (tl.num_programs(0) * stored_rows * (features + 2))
            _store_state(scratch + split * (stored_rows * (features + 2)), state, sizes)
            tl.debug_barrier()  # all threads have stored before one of them counts the split
            if tl.atomic_add(counts + slot, 1) == n_splits - 1:
                tl.store(counts + slot, 0)  # ready for the next launch
                merged = merge_splits(scratch, n_splits, sizes)
                store_output(y, out, merged, stored_rows, head_ids, sizes)
