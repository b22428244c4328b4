"""Flash decoding per query head: attention of up to four new tokens without matrix units.

As in `attention_cached`, keys are split among programs, and the last one merges the states. A
program serves one query head, so heads that share a KV head read its keys once each: L2 serves the
repeated reads, and more programs keep more loads in flight.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc,no-any-return,assignment"

from __future__ import annotations

import triton
import triton.language as tl

from sardonyx.providers.torch.kernels.attention_cached import (
    exp2_below,
    load_tile,
    merge_splits,
    rotary_position,
    rotation_pairs,
    split_range,
    store_output,
)
from sardonyx.providers.torch.kernels.intrinsics import launch_dependents, wait_for_previous


@triton.jit
def _angles(cos, sin, position, rotary: tl.constexpr, sizes: tl.constexpr):
    """Return cosines and signed sines [features] of one position."""
    features: tl.constexpr = sizes[2]
    pairs: tl.constexpr = rotary[0]
    feature = tl.arange(0, features)
    if pairs > 0:
        pair, _, sign = rotation_pairs(feature, rotary)
        is_rotated = feature < 2 * pairs
        c = tl.load(cos + position * pairs + pair, is_rotated, 1.0).to(tl.float32)
        s = sign * tl.load(sin + position * pairs + pair, is_rotated, 0.0).to(tl.float32)
    else:
        c = tl.full([features], 1.0, tl.float32)
        s = tl.zeros([features], tl.float32)
    return c, s


@triton.jit
def _token_angles(cos, sin, positions, first, rotary: tl.constexpr, sizes: tl.constexpr):
    """Return the angles of each new token."""
    n_new: tl.constexpr = sizes[5]
    # Tuples, not arrays: registers of Triton cannot be indexed at run time.
    angles = ()
    for t in tl.static_range(n_new):
        position = rotary_position(positions, first, t, rotary)
        angles = angles + (_angles(cos, sin, position, rotary, sizes),)
    return angles


@triton.jit
def _head_and_partners(p, rotary: tl.constexpr, sizes: tl.constexpr):
    """Return the features of a head, and the features they are paired with in the rotation."""
    features: tl.constexpr = sizes[2]
    head: tl.constexpr = sizes[3]
    pairs: tl.constexpr = rotary[0]
    feature = tl.arange(0, features)
    value = tl.load(p + feature, feature < head, 0.0).to(tl.float32)
    other = value
    if pairs > 0:
        _, partner, _ = rotation_pairs(feature, rotary)
        other = tl.load(p + partner, feature < 2 * pairs, 0.0).to(tl.float32)
    return value, other


@triton.jit
def _load_queries(p, stride, rotary: tl.constexpr, sizes: tl.constexpr):
    """Return head and partner features of each new token's query."""
    n_new: tl.constexpr = sizes[5]
    queries = ()
    for t in tl.static_range(n_new):
        queries = queries + (_head_and_partners(p + t * stride, rotary, sizes),)
    return queries


@triton.jit
def _rotate_queries(loaded, angles, scale, invalid, sizes: tl.constexpr):
    """Return the rotated and scaled queries; `invalid`, 0 or NaN, is added."""
    rows: tl.constexpr = sizes[0]
    queries = ()
    for i in tl.static_range(rows):
        c, s = angles[i]
        value, other = loaded[i]
        queries = queries + ((value * c + other * s) * scale + invalid,)
    return queries


@triton.jit
def _softmax_update(state, queries, k, v, key, first, limits, sizes: tl.constexpr):
    """Online softmax with a separate state for each key of a tile: no reductions across threads.

    A state is (maxima [keys], denominators [keys], weighted values [keys, features]) per query.
    """
    high, window, softcap = limits
    rows: tl.constexpr = sizes[0]
    has_cap: tl.constexpr = sizes[4]
    updated = ()
    for i in tl.static_range(rows):
        top, total, values = state[i]
        position = first + i
        score = tl.sum(k * queries[i][None, :], 1)
        if has_cap:  # softcap * tanh(score / softcap)
            score = softcap * (2 / (1 + tl.exp(-2 * score / softcap)) - 1)
        seen = (key < high) & (key <= position) & (key > position - window)
        # log2(e), so that exponentials are powers of two, which have an instruction.
        score = tl.where(seen, score * 1.4426950408889634, float("-inf"))
        new_top = tl.maximum(top, score)
        # Rescale the old state to the new maximum.
        decay = exp2_below(top, new_top)
        weight = exp2_below(score, new_top)
        more = values * decay[:, None] + weight[:, None] * v
        updated = updated + ((new_top, total * decay + weight, more),)
    return updated


@triton.jit
def _stack(tensors, rows: tl.constexpr):
    """Stack tensors along a new last axis of a power of two; the last one is repeated as padding.

    tl.join doubles the last axis, so a stack of four is a tree of joins.
    """
    if rows == 1:
        stack = tl.expand_dims(tensors[0], -1)
    elif rows == 2:
        stack = tl.join(tensors[0], tensors[1])
    else:
        last: tl.constexpr = len(tensors) - 1
        both = tl.join(tl.join(tensors[0], tensors[2]), tl.join(tensors[1], tensors[last]))
        stack = tl.reshape(both, tensors[0].shape + [4])
    return stack


@triton.jit
def _unstack(x, rows: tl.constexpr):
    """Undo `_stack`: tensors [n] of a stack [n, rows]."""
    if rows == 1:
        tensors = (tl.reshape(x, [x.shape[0]]),)
    elif rows == 2:
        tensors = tl.split(x)
    else:
        even, odd = tl.split(tl.reshape(x, [x.shape[0], 2, 2]))
        a, c = tl.split(even)
        b, d = tl.split(odd)
        tensors = (a, b, c, d)
    return tensors


@triton.jit
def _store_state(state, p, sizes: tl.constexpr):
    """Reduce the per-key states and store maxima, denominators and values for `merge_splits`.

    All queries are stacked first, so that each reduction across threads happens once.
    """
    rows: tl.constexpr = sizes[0]
    features: tl.constexpr = sizes[2]
    stored_rows: tl.constexpr = sizes[6]
    tops = ()
    totals = ()
    for i in tl.static_range(rows):
        tops = tops + (state[i][0],)
        totals = totals + (state[i][1],)
    stack = _stack(tops, stored_rows)
    top = tl.max(stack, 0)
    weight = exp2_below(stack, top[None, :])
    total = tl.sum(_stack(totals, stored_rows) * weight, 0)
    weights = _unstack(weight, stored_rows)
    values = ()
    for i in tl.static_range(rows):
        values = values + (state[i][2] * weights[i][:, None],)
    row = tl.arange(0, stored_rows)
    tl.store(p + row, top)
    tl.store(p + stored_rows + row, total)
    at = row[None, :] * features + tl.arange(0, features)[:, None]
    tl.store(p + 2 * stored_rows + at, tl.sum(_stack(values, stored_rows), 0))


@triton.jit
def _load_new(k_new, v_new, rotary: tl.constexpr, sizes: tl.constexpr, stride):
    """Return (key, its partners, value) [features] of each new token."""
    features: tl.constexpr = sizes[2]
    head: tl.constexpr = sizes[3]
    n_new: tl.constexpr = sizes[5]
    feature = tl.arange(0, features)
    new = ()
    for t in tl.static_range(n_new):
        value = tl.load(v_new + t * stride + feature, feature < head, 0.0)
        new = new + (_head_and_partners(k_new + t * stride, rotary, sizes) + (value,),)
    return new


@triton.jit
def _update_cache(new, angles, caches, first, span, sizes: tl.constexpr):
    """Rotate the new keys and store those of the span; return all keys and values as stored."""
    k_cache, v_cache = caches
    low, high = span
    features: tl.constexpr = sizes[2]
    head: tl.constexpr = sizes[3]
    n_new: tl.constexpr = sizes[5]
    feature = tl.arange(0, features)
    stored = ()
    for t in tl.static_range(n_new):
        c, s = angles[t]
        value, other, v = new[t]
        # Rounded as the cache stores them, so that later steps see the same keys.
        k = (value * c + other * s).to(k_cache.dtype.element_ty)
        v = v.to(v_cache.dtype.element_ty)
        key = first + t
        ok = (feature < head) & (key >= low) & (key < high)
        tl.store(k_cache + key * head + feature, k, ok)
        tl.store(v_cache + key * head + feature, v, ok)
        stored = stored + ((k.to(tl.float32), v.to(tl.float32)),)
    return stored


@triton.jit
def _attend_span(queries, new, tiles, caches, span, limits, sizes: tl.constexpr):
    """Return the states of a span of keys, new ones included; its first tiles are loaded."""
    k, v = tiles
    k_cache, v_cache = caches
    first, low, high = span
    rows: tl.constexpr = sizes[0]
    tile: tl.constexpr = sizes[1]
    features: tl.constexpr = sizes[2]
    n_new: tl.constexpr = sizes[5]
    state = ()
    for _ in tl.static_range(rows):
        top = tl.full([tile], float("-inf"), tl.float32)
        none = tl.zeros([tile, features], tl.float32)
        # The empty softmax: maximum -inf, denominator 0, values 0.
        state = state + ((top, tl.zeros([tile], tl.float32), none),)
    for start in tl.range(low, high, tile, num_stages=1):
        key = start + tl.arange(0, tile)
        # Software prefetch, as in `attention_cached`.
        next_k = load_tile(k_cache, start + tile, high, sizes)
        next_v = load_tile(v_cache, start + tile, high, sizes)
        k = k.to(tl.float32)
        v = v.to(tl.float32)
        for t in tl.static_range(n_new):  # the tile was loaded before the new rows were stored
            is_new = (key == first + t)[:, None]
            k = tl.where(is_new, new[t][0][None, :], k)
            v = tl.where(is_new, new[t][1][None, :], v)
        state = _softmax_update(state, queries, k, v, key, first, limits, sizes)
        k = next_k
        v = next_v
    return state


@triton.jit
def per_head_decode_kernel(
    q, k_new, v_new, cos, sin, position_ids, seqlens, k_cache, v_cache, y, out, scratch, counts,
    scale, window, softcap, q_stride, k_stride, capacity,
    group: tl.constexpr, n_kv_heads: tl.constexpr, sizes: tl.constexpr,
    rotary: tl.constexpr, overlap: tl.constexpr,
):  # fmt: skip
    """Grid (splits, query heads, batch); arguments as for `grouped_decode_kernel`.

    Lengths are read speculatively before the previous kernel has ended, and checked afterwards:
    they rarely come from that kernel, and all other loads can then be issued together.
    """
    launch_dependents(overlap)
    split = tl.program_id(0)
    q_head = tl.program_id(1)
    n_heads = tl.num_programs(1)
    batch = tl.program_id(2)
    features: tl.constexpr = sizes[2]
    head: tl.constexpr = sizes[3]
    n_new: tl.constexpr = sizes[5]
    stored_rows: tl.constexpr = sizes[6]
    tile: tl.constexpr = sizes[1]
    kv_head = q_head // group
    block = (batch * n_kv_heads + kv_head).to(tl.int64) * capacity * head
    k_cache += block
    v_cache += block
    # Speculation: addresses follow from this length.
    guess = tl.load(seqlens + batch, cache_modifier=".cg")
    first, begin, length, n_splits = split_range(guess, capacity, window, n_new, tile, True)
    low = begin + split * length
    high = tl.minimum(first + n_new, low + length)
    wait_for_previous(overlap)
    angles = _token_angles(cos, sin, (None, 0), first, rotary, sizes)
    k = load_tile(k_cache, low, high, sizes)
    v = load_tile(v_cache, low, high, sizes)
    loaded = _load_queries(q + (batch * n_new * q_stride + q_head * head), q_stride, rotary, sizes)
    start = batch * n_new * k_stride + kv_head * head
    new = _load_new(k_new + start, v_new + start, rotary, sizes, k_stride)
    last = tl.load(seqlens + batch, cache_modifier=".cg")
    # Mis-speculation, when the previous kernel wrote the lengths: load everything again.
    if last != guess:
        first, begin, length, n_splits = split_range(last, capacity, window, n_new, tile, True)
        low = begin + split * length
        high = tl.minimum(first + n_new, low + length)
        k = load_tile(k_cache, low, high, sizes)
        v = load_tile(v_cache, low, high, sizes)
        angles = _token_angles(cos, sin, (None, 0), first, rotary, sizes)
    if position_ids is not None:
        angles = _token_angles(cos, sin, (position_ids, batch * n_new), first, rotary, sizes)
    # A sequence that does not fit in the cache was clamped: its result is NaN.
    invalid = tl.where(last + 1 == first + n_new, 0.0, float("nan"))
    queries = _rotate_queries(loaded, angles, scale, invalid, sizes)
    if split < n_splits:
        caches = (k_cache, v_cache)
        # One head of a group stores; an empty span for the others.
        end = tl.where(q_head % group == 0, high, low)
        stored = _update_cache(new, angles, caches, first, (low, end), sizes)
        limits = (high, window, softcap)
        state = _attend_span(queries, stored, (k, v), caches, (first, low, high), limits, sizes)
        slot = batch * n_heads + q_head
        scratch += slot * (tl.num_programs(0) * stored_rows * (features + 2))
        _store_state(state, scratch + split * (stored_rows * (features + 2)), sizes)
        tl.debug_barrier()  # all threads have stored before one of them counts the split
        if tl.atomic_add(counts + slot, 1) == n_splits - 1:
            tl.store(counts + slot, 0)  # ready for the next launch
            y += batch * (n_new * n_heads * head)
            merged = merge_splits(scratch, n_splits, sizes)
            store_output(y, out, merged, stored_rows, (1, q_head, n_heads), sizes)
