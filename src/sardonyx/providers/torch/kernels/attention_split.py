"""The kernel of attention for one new token, or few: a program for a part of each query head."""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc,no-any-return,assignment"

from __future__ import annotations

import triton
import triton.language as tl

from sardonyx.providers.torch.kernels.attention_cached import (
    gathered,
    pairs_of,
    powers,
    span_of,
    spot_of,
    written,
)
from sardonyx.providers.torch.kernels.intrinsics import let_next, wait_before


@triton.jit
def _tile(p, start, high, sizes: tl.constexpr):
    """Keys or values [keys, features] from `start` on; zeros from `high` on."""
    tile: tl.constexpr = sizes[1]
    features: tl.constexpr = sizes[2]
    head: tl.constexpr = sizes[3]
    row = start + tl.arange(0, tile)[:, None]
    feature = tl.arange(0, features)[None, :]
    return tl.load(p + row * head + feature, (row < high) & (feature < head), 0.0)


@triton.jit
def _angles(cos, sin, spot, turn: tl.constexpr, sizes: tl.constexpr):
    """Cosines and sines [features] of a place, with the signs of what they are multiplied by."""
    features: tl.constexpr = sizes[2]
    pairs: tl.constexpr = turn[0]
    feature = tl.arange(0, features)
    if pairs == 0:
        return tl.full([features], 1.0, tl.float32), tl.zeros([features], tl.float32)
    pair, _, sign = pairs_of(feature, turn)
    turns = feature < 2 * pairs
    c = tl.load(cos + spot * pairs + pair, turns, 1.0).to(tl.float32)
    return c, sign * tl.load(sin + spot * pairs + pair, turns, 0.0).to(tl.float32)


@triton.jit
def _all_angles(cos, sin, spots, first, turn: tl.constexpr, sizes: tl.constexpr):
    """The angles of each new token."""
    n_new: tl.constexpr = sizes[5]
    angles = ()
    for t in tl.static_range(n_new):
        angles = angles + (_angles(cos, sin, spot_of(spots, first, t, turn), turn, sizes),)
    return angles


@triton.jit
def _halves(p, turn: tl.constexpr, sizes: tl.constexpr):
    """The features of a head, and those that they are paired with."""
    features: tl.constexpr = sizes[2]
    head: tl.constexpr = sizes[3]
    pairs: tl.constexpr = turn[0]
    feature = tl.arange(0, features)
    value = tl.load(p + feature, feature < head, 0.0).to(tl.float32)
    if pairs == 0:
        return value, value
    _, partner, _ = pairs_of(feature, turn)
    return value, tl.load(p + partner, feature < 2 * pairs, 0.0).to(tl.float32)


@triton.jit
def _all_halves(p, stride, turn: tl.constexpr, sizes: tl.constexpr):
    """The halves of each new token's head."""
    n_new: tl.constexpr = sizes[5]
    halves = ()
    for t in tl.static_range(n_new):
        halves = halves + (_halves(p + t * stride, turn, sizes),)
    return halves


@triton.jit
def _joined(state, queries, k, v, key, first, limits, sizes: tl.constexpr):
    """States with more keys. Each key of a tile has its own, so that no thread waits for another.

    A state is (tops [keys], sums [keys], weighted values [keys, features]) for each query.
    """
    high, window, softcap = limits
    rows: tl.constexpr = sizes[0]
    has_cap: tl.constexpr = sizes[4]
    joined = ()
    for i in tl.static_range(rows):
        top, total, values = state[i]
        place = first + i
        score = tl.sum(k * queries[i][None, :], 1)
        if has_cap:
            score = softcap * (2 / (1 + tl.exp(-2 * score / softcap)) - 1)
        seen = (key < high) & (key <= place) & (key > place - window)
        score = tl.where(seen, score * 1.4426950408889634, float("-inf"))
        higher = tl.maximum(top, score)
        fade = powers(top, higher)
        power = powers(score, higher)
        more = values * fade[:, None] + power[:, None] * v
        joined = joined + ((higher, total * fade + power, more),)
    return joined


@triton.jit
def _stacked(parts, few: tl.constexpr):
    """Tensors side by side along a new last axis; the last fills up to the power of two."""
    if few == 1:
        stack = tl.expand_dims(parts[0], -1)
    elif few == 2:
        stack = tl.join(parts[0], parts[1])
    else:
        last: tl.constexpr = len(parts) - 1
        both = tl.join(tl.join(parts[0], parts[2]), tl.join(parts[1], parts[last]))
        stack = tl.reshape(both, parts[0].shape + [4])
    return stack


@triton.jit
def _apart(x, few: tl.constexpr):
    """What `_stacked` put together [n, few], as tensors [n]."""
    if few == 1:
        parts = (tl.reshape(x, [x.shape[0]]),)
    elif few == 2:
        parts = tl.split(x)
    else:
        even, odd = tl.split(tl.reshape(x, [x.shape[0], 2, 2]))
        a, c = tl.split(even)
        b, d = tl.split(odd)
        parts = (a, b, c, d)
    return parts


@triton.jit
def _leave(state, mine, sizes: tl.constexpr):
    """Stores what the keys of tiles have in sum: tops, sums and weighted values."""
    rows: tl.constexpr = sizes[0]
    features: tl.constexpr = sizes[2]
    few: tl.constexpr = sizes[6]
    tops = ()
    totals = ()
    for i in tl.static_range(rows):
        tops = tops + (state[i][0],)
        totals = totals + (state[i][1],)
    stack = _stacked(tops, few)
    top = tl.max(stack, 0)
    power = powers(stack, top[None, :])
    total = tl.sum(_stacked(totals, few) * power, 0)
    each = _apart(power, few)
    values = ()
    for i in tl.static_range(rows):
        values = values + (state[i][2] * each[i][:, None],)
    row = tl.arange(0, few)
    tl.store(mine + row, top)
    tl.store(mine + few + row, total)
    at = row[None, :] * features + tl.arange(0, features)[:, None]
    tl.store(mine + 2 * few + at, tl.sum(_stacked(values, few), 0))


@triton.jit
def _new_tokens(k_new, v_new, turn: tl.constexpr, sizes: tl.constexpr, stride):
    """Keys in halves and values [features] of each new token."""
    features: tl.constexpr = sizes[2]
    head: tl.constexpr = sizes[3]
    n_new: tl.constexpr = sizes[5]
    feature = tl.arange(0, features)
    fresh = ()
    for t in tl.static_range(n_new):
        value = tl.load(v_new + t * stride + feature, feature < head, 0.0)
        fresh = fresh + (_halves(k_new + t * stride, turn, sizes) + (value,),)
    return fresh


@triton.jit
def _kept(fresh, angles, caches, first, span, sizes: tl.constexpr):
    """The new tokens' keys and values, as the cache has them; those of the span go there."""
    k_cache, v_cache = caches
    low, high = span
    features: tl.constexpr = sizes[2]
    head: tl.constexpr = sizes[3]
    n_new: tl.constexpr = sizes[5]
    feature = tl.arange(0, features)
    kept = ()
    for t in tl.static_range(n_new):
        c, s = angles[t]
        value, other, v = fresh[t]
        k = (value * c + other * s).to(k_cache.dtype.element_ty)
        v = v.to(v_cache.dtype.element_ty)
        key = first + t
        ok = (feature < head) & (key >= low) & (key < high)
        tl.store(k_cache + key * head + feature, k, ok)
        tl.store(v_cache + key * head + feature, v, ok)
        kept = kept + ((k.to(tl.float32), v.to(tl.float32)),)
    return kept


@triton.jit
def _attended(queries, kept, tiles, caches, span, limits, sizes: tl.constexpr):
    """The states of a span of keys, new ones among them; its first tiles are there."""
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
        state = state + ((top, tl.zeros([tile], tl.float32), none),)
    for start in tl.range(low, high, tile, num_stages=1):
        key = start + tl.arange(0, tile)
        k_ahead = _tile(k_cache, start + tile, high, sizes)
        v_ahead = _tile(v_cache, start + tile, high, sizes)
        k = k.to(tl.float32)
        v = v.to(tl.float32)
        for t in tl.static_range(n_new):  # what the cache has there is older
            is_new = (key == first + t)[:, None]
            k = tl.where(is_new, kept[t][0][None, :], k)
            v = tl.where(is_new, kept[t][1][None, :], v)
        state = _joined(state, queries, k, v, key, first, limits, sizes)
        k = k_ahead
        v = v_ahead
    return state


@triton.jit
def attend_few_kernel(
    q, k_new, v_new, cos, sin, places, lasts, k_cache, v_cache, y, out, scratch, counts,
    scale, window, softcap, q_stride, k_stride, capacity,
    group: tl.constexpr, n_shared: tl.constexpr, sizes: tl.constexpr,
    turn: tl.constexpr, overlap: tl.constexpr,
):  # fmt: skip
    """As `attend_kernel`, for each head of queries: those that share keys read them from the cache.

    Lengths are read before the kernel in front has ended, as a guess that is looked at again: most
    are from long before, and all else can be asked for at once.
    """
    let_next(overlap)
    me = tl.program_id(0)
    number = tl.program_id(1)
    n_heads = tl.num_programs(1)
    batch = tl.program_id(2)
    rows: tl.constexpr = sizes[0]
    features: tl.constexpr = sizes[2]
    head: tl.constexpr = sizes[3]
    n_new: tl.constexpr = sizes[5]
    few: tl.constexpr = sizes[6]
    tile: tl.constexpr = sizes[1]
    shared = number // group
    block = (batch * n_shared + shared).to(tl.int64) * capacity * head
    k_cache += block
    v_cache += block
    caches = (k_cache, v_cache)
    guess = tl.load(lasts + batch, cache_modifier=".cg")
    first, begin, length, n_parts = span_of(guess, capacity, window, n_new, tile, True)
    low = begin + me * length
    high = tl.minimum(first + n_new, low + length)
    wait_before(overlap)
    angles = _all_angles(cos, sin, (None, 0), first, turn, sizes)
    k = _tile(k_cache, low, high, sizes)
    v = _tile(v_cache, low, high, sizes)
    halves = _all_halves(q + (batch * n_new * q_stride + number * head), q_stride, turn, sizes)
    start = batch * n_new * k_stride + shared * head
    fresh = _new_tokens(k_new + start, v_new + start, turn, sizes, k_stride)
    last = tl.load(lasts + batch, cache_modifier=".cg")
    if last != guess:
        first, begin, length, n_parts = span_of(last, capacity, window, n_new, tile, True)
        low = begin + me * length
        high = tl.minimum(first + n_new, low + length)
        k = _tile(k_cache, low, high, sizes)
        v = _tile(v_cache, low, high, sizes)
        angles = _all_angles(cos, sin, (None, 0), first, turn, sizes)
    if places is not None:
        angles = _all_angles(cos, sin, (places, batch * n_new), first, turn, sizes)
    bad = tl.where(last + 1 == first + n_new, 0.0, float("nan"))
    queries = ()
    for i in tl.static_range(rows):
        c, s = angles[i]
        value, other = halves[i]
        queries = queries + ((value * c + other * s) * scale + bad,)
    if me < n_parts:
        end = tl.where(number % group == 0, high, low)  # one of those that share stores
        kept = _kept(fresh, angles, caches, first, (low, end), sizes)
        limits = (high, window, softcap)
        state = _attended(queries, kept, (k, v), caches, (first, low, high), limits, sizes)
        scratch += (batch * n_heads + number) * (tl.num_programs(0) * few * (features + 2))
        _leave(state, scratch + me * (few * (features + 2)), sizes)
        tl.debug_barrier()  # all threads have stored before one says so
        count = counts + batch * n_heads + number
        if tl.atomic_add(count, 1) == n_parts - 1:
            tl.store(count, 0)
            y += batch * (n_new * n_heads * head)
            where = (1, number, n_heads)
            written(y, out, gathered(scratch, n_parts, sizes), few, where, sizes)
