"""The kernel of attention for few new tokens over a cache whose lengths are on the device."""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc,no-any-return,assignment"

from __future__ import annotations

import triton
import triton.language as tl

from sardonyx.providers.torch.kernels.fixed_point import digits_of, put_digits
from sardonyx.providers.torch.kernels.intrinsics import let_next, wait_before


@triton.jit
def pairs_of(feature, turn: tl.constexpr):
    """The pairs of features, what belongs to each in its pair, and the sign of that.

    `turn` is (pairs of features that turn, whether pairs are neighbours, places).
    """
    pairs: tl.constexpr = turn[0]
    is_near: tl.constexpr = turn[1]
    if is_near:
        is_first = feature % 2 == 0
        return feature // 2, tl.where(is_first, feature + 1, feature - 1), 1 - 2 * is_first
    is_first = feature < pairs
    partner = tl.where(is_first, feature + pairs, feature - pairs)
    return feature % pairs, partner, 1 - 2 * is_first


@triton.jit
def turned(p, at, feature, angles, place, turn: tl.constexpr, head: tl.constexpr):
    """Features of heads at offsets [n, 1], turned by the angles of their places [n, 1].

    `angles` are the cosines and sines. Features behind the pairs stay as they are.
    """
    pairs: tl.constexpr = turn[0]
    ok = (at >= 0) & (feature < head)
    value = tl.load(p + at + feature, ok, 0.0).to(tl.float32)
    if pairs == 0:
        return value
    cos, sin = angles
    pair, partner, sign = pairs_of(feature, turn)
    turns = ok & (feature < 2 * pairs)
    other = tl.load(p + at + partner, turns, 0.0).to(tl.float32)
    c = tl.load(cos + place * pairs + pair, turns, 1.0).to(tl.float32)
    s = tl.load(sin + place * pairs + pair, turns, 0.0).to(tl.float32)
    return value * c + sign * other * s


@triton.jit
def spot_of(spots, first, token, turn: tl.constexpr):
    """Where in the text tokens stand, within the angles that there are."""
    places, batch_row = spots
    n_spots: tl.constexpr = turn[2]
    spot = first + token
    if places is not None:
        spot = tl.load(places + batch_row + token).to(tl.int32)
    return tl.minimum(tl.maximum(spot, 0), n_spots - 1)


@triton.jit
def span_of(
    last, capacity, window, n_new: tl.constexpr, grain: tl.constexpr, has_new: tl.constexpr
):
    """Where the new tokens begin, the first key that they see, keys of a part, and parts.

    `has_new` says whether the new tokens' keys are among those of parts. What does not fit in the
    cache is not written elsewhere: the first is another than `last` says.
    """
    first = tl.minimum(tl.maximum(last + 1 - n_new, 0), capacity - n_new)
    begin = tl.maximum(0, first + 1 - window)
    n_keys = first - begin + (n_new if has_new else 0)
    length = tl.cdiv(tl.cdiv(n_keys, tl.num_programs(0)), grain) * grain
    return first, begin, length, tl.maximum(1, tl.cdiv(n_keys, tl.maximum(length, 1)))


@triton.jit
def powers(x, top):
    """2^(x - top), 0 where both are -inf."""
    return tl.where(x == float("-inf"), 0.0, tl.exp2(x - top))


@triton.jit
def _joined(state, q, k, v, seen, softcap, has_cap: tl.constexpr):
    """A state (tops, sums, weighted values) with more keys [keys, features] and their values."""
    top, total, values = state
    scores = tl.dot(q, tl.trans(k.to(tl.float32)), input_precision="tf32x3")
    if has_cap:
        scores = softcap * (2 / (1 + tl.exp(-2 * scores / softcap)) - 1)
    scores = tl.where(seen, scores * 1.4426950408889634, float("-inf"))
    higher = tl.maximum(top, tl.max(scores, 1))
    fade = powers(top, higher)
    power = powers(scores, higher[:, None])
    total = total * fade + tl.sum(power, 1)
    more = tl.dot(power, v.to(tl.float32), input_precision="tf32x3")
    return higher, total, values * fade[:, None] + more


@triton.jit
def _past(q, caches, tiles, span, place, limits, sizes: tl.constexpr):
    """The state of a span of keys in the cache."""
    k_cache, v_cache = caches
    low, high = span
    window, softcap = limits
    rows: tl.constexpr = sizes[0]
    tile: tl.constexpr = sizes[1]
    features: tl.constexpr = sizes[2]
    head: tl.constexpr = sizes[3]
    has_cap: tl.constexpr = sizes[4]
    feature = tl.arange(0, features)[None, :]
    top = tl.full([rows], float("-inf"), tl.float32)
    state = (top, tl.zeros([rows], tl.float32), tl.zeros([rows, features], tl.float32))
    k, v = tiles
    lane = tl.arange(0, tile)[:, None]
    for start in tl.range(low, high, tile, num_stages=1):
        row = start + tile + lane  # those of the next turn are on their way during this one
        ok = (row < high) & (feature < head)
        k_ahead = tl.load(k_cache + row * head + feature, ok, 0.0)
        v_ahead = tl.load(v_cache + row * head + feature, ok, 0.0)
        key = (start + tl.arange(0, tile))[None, :]
        seen = (key < high) & (key > place[:, None] - window)
        state = _joined(state, q, k, v, seen, softcap, has_cap)
        k = k_ahead
        v = v_ahead
    return state


@triton.jit
def _fresh(state, q, new, caches, place, limits, turn: tl.constexpr, sizes: tl.constexpr):
    """The state with the new tokens' keys, which go into the cache."""
    k_new, v_new, row_stride, angles, first, spots = new
    k_cache, v_cache = caches
    window, softcap = limits
    features: tl.constexpr = sizes[2]
    head: tl.constexpr = sizes[3]
    has_cap: tl.constexpr = sizes[4]
    n_new: tl.constexpr = sizes[5]
    feature = tl.arange(0, features)[None, :]
    token = tl.arange(0, 16)[:, None]
    is_new = token < n_new
    spot = spot_of(spots, first, tl.minimum(token, n_new - 1), turn)
    k = turned(k_new, tl.where(is_new, token * row_stride, -1), feature, angles, spot, turn, head)
    k = k.to(k_cache.dtype.element_ty)
    ok = is_new & (feature < head)
    v = tl.load(v_new + token * row_stride + feature, ok, 0.0).to(v_cache.dtype.element_ty)
    tl.store(k_cache + (first + token) * head + feature, k, ok)
    tl.store(v_cache + (first + token) * head + feature, v, ok)
    key = first + tl.arange(0, 16)[None, :]
    seen = (key <= place[:, None]) & (key > place[:, None] - window) & (key < first + n_new)
    return _joined(state, q, k, v, seen, softcap, has_cap)


@triton.jit
def gathered(scratch, n_parts, sizes: tl.constexpr):
    """The quotients of all parts [rows * features]; several parts at a time."""
    rows: tl.constexpr = sizes[6]
    features: tl.constexpr = sizes[2]
    many: tl.constexpr = sizes[7]
    row = tl.arange(0, rows)
    top = tl.full([rows], float("-inf"), tl.float32)
    total = tl.zeros([rows], tl.float32)
    values = tl.zeros([rows, features], tl.float32)
    for first in range(0, n_parts, many):
        part = first + tl.arange(0, many)
        ok = (part < n_parts)[:, None]
        p = scratch + part[:, None] * (rows * (features + 2)) + row[None, :]
        # Other processors wrote these: they are in the shared cache, not in this one's.
        tops = tl.load(p, ok, float("-inf"), cache_modifier=".cg")
        totals = tl.load(p + rows, ok, 0.0, cache_modifier=".cg")
        at = part[:, None] * (rows * (features + 2)) + 2 * rows
        at = (at + row[None, :] * features)[:, :, None] + tl.arange(0, features)[None, None, :]
        more = tl.load(scratch + at, ok[:, :, None], 0.0, cache_modifier=".cg")
        higher = tl.maximum(top, tl.max(tops, 0))
        fade = powers(top, higher)
        power = powers(tops, higher[None, :])
        total = total * fade + tl.sum(totals * power, 0)
        values = values * fade[:, None] + tl.sum(more * power[:, :, None], 0)
        top = higher
    return tl.reshape(values / tl.where(total > 0, total, 1.0)[:, None], [rows * features])


@triton.jit
def written(y, out, values, rows: tl.constexpr, where, sizes: tl.constexpr):
    """Stores results [rows * features], and their digits where asked."""
    group, shared, n_shared = where
    features: tl.constexpr = sizes[2]
    head: tl.constexpr = sizes[3]
    n_new: tl.constexpr = sizes[5]
    at = tl.arange(0, rows * features)
    row = at // features
    feature = at % features
    ok = (row < n_new * group) & (feature < head)
    rounded = values.to(y.dtype.element_ty)
    place = row // group * (group * n_shared) + shared * group + row % group
    tl.store(y + place * head + feature, rounded, ok)
    if out is not None:  # one token: rows are heads, each of whole units and what fills the tile
        per: tl.constexpr = features // 32
        unit = tl.arange(0, rows * per)
        mine = (shared * group + unit // per) * (head // 32) + unit % per
        mine = tl.where((unit // per < group) & (unit % per < head // 32), mine, -1)
        words = digits_of(tl.where(ok, rounded.to(tl.float32), 0.0), rows * per)
        put_digits(out, words, mine, group * n_shared * (head // 32))


@triton.jit
def attend_kernel(
    q, k_new, v_new, cos, sin, places, lasts, k_cache, v_cache, y, out, scratch, counts,
    scale, window, softcap, q_stride, k_stride, capacity,
    group: tl.constexpr, n_shared: tl.constexpr, sizes: tl.constexpr,
    turn: tl.constexpr, overlap: tl.constexpr,
):  # fmt: skip
    """One program for a part of the keys of one shared head; the last to end gathers the others.

    `sizes` is (rows, keys of a tile, features, features of a head, whether scores are capped,
    new tokens, rows that are gathered, parts gathered at a time); tiles are powers of two.
    """
    let_next(overlap)
    me = tl.program_id(0)
    shared = tl.program_id(1)
    batch = tl.program_id(2)
    rows: tl.constexpr = sizes[0]
    tile: tl.constexpr = sizes[1]
    features: tl.constexpr = sizes[2]
    head: tl.constexpr = sizes[3]
    n_new: tl.constexpr = sizes[5]
    wait_before(overlap)
    last = tl.load(lasts + batch)
    first, begin, length, n_parts = span_of(last, capacity, window, n_new, tile, False)
    if me < n_parts:
        low = begin + me * length
        high = tl.minimum(first, low + length)
        block = (batch * n_shared + shared).to(tl.int64) * capacity * head
        caches = (k_cache + block, v_cache + block)
        feature = tl.arange(0, features)[None, :]
        key = low + tl.arange(0, tile)[:, None]
        ok = (key < high) & (feature < head)
        k = tl.load(k_cache + block + key * head + feature, ok, 0.0)
        v = tl.load(v_cache + block + key * head + feature, ok, 0.0)
        row = tl.arange(0, rows)
        token = tl.minimum(row // group, n_new - 1)
        spots = (places, batch * n_new)
        at = (batch * n_new + token) * q_stride + (shared * group + row % group) * head
        at = tl.where(row < n_new * group, at, -1)[:, None]
        spot = spot_of(spots, first, token, turn)[:, None]
        queries = turned(q, at, feature, (cos, sin), spot, turn, head) * scale
        queries += tl.where(last + 1 == first + n_new, 0.0, float("nan"))
        limits = (window, softcap)
        state = _past(queries, caches, (k, v), (low, high), first + token, limits, sizes)
        if me == n_parts - 1:
            start = batch * n_new * k_stride + shared * head
            new = (k_new + start, v_new + start, k_stride, (cos, sin), first, spots)
            state = _fresh(state, queries, new, caches, first + token, limits, turn, sizes)
        top, total, values = state
        y += batch * (n_new * group * n_shared * head)
        where = (group, shared, n_shared)
        if n_parts == 1:
            values = values / tl.where(total > 0, total, 1.0)[:, None]
            written(y, out, tl.reshape(values, [rows * features]), rows, where, sizes)
        else:
            few: tl.constexpr = sizes[6]
            scratch += (batch * n_shared + shared) * (tl.num_programs(0) * few * (features + 2))
            mine = scratch + me * (few * (features + 2))
            is_few = row < few
            tl.store(mine + row, top, is_few)
            tl.store(mine + few + row, total, is_few)
            place = 2 * few + row[:, None] * features + feature
            tl.store(mine + place, values, is_few[:, None])
            tl.debug_barrier()  # all threads have stored before one says so
            count = counts + batch * n_shared + shared
            if tl.atomic_add(count, 1) == n_parts - 1:
                tl.store(count, 0)
                written(y, out, gathered(scratch, n_parts, sizes), few, where, sizes)
