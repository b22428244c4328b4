"""The kernel of attention for few new tokens over a cache whose lengths are on the device."""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc,no-any-return"

from __future__ import annotations

import triton
import triton.language as tl

from sardonyx.providers.torch.kernels.device import let_next, wait_before
from sardonyx.providers.torch.kernels.digits import digits_of, store_digits


@triton.jit
def turned(p, at, feature, angles, place, turn: tl.constexpr, head: tl.constexpr):
    """Features of heads at offsets [n, 1], turned by the angles of their places [n, 1].

    `turn` is (pairs of features that turn, whether pairs are neighbours, places); `angles` the
    cosines and sines. Features behind the pairs stay as they are.
    """
    pairs: tl.constexpr = turn[0]
    is_near: tl.constexpr = turn[1]
    ok = (at >= 0) & (feature < head)
    value = tl.load(p + at + feature, ok, 0.0).to(tl.float32)
    if pairs == 0:
        return value
    cos, sin = angles
    if is_near:
        pair = feature // 2
        is_first = feature % 2 == 0
        partner = tl.where(is_first, feature + 1, feature - 1)
    else:
        pair = feature % pairs
        is_first = feature < pairs
        partner = tl.where(is_first, feature + pairs, feature - pairs)
    turns = ok & (feature < 2 * pairs)
    other = tl.load(p + at + partner, turns, 0.0).to(tl.float32)
    c = tl.load(cos + place * pairs + pair, turns, 1.0).to(tl.float32)
    s = tl.load(sin + place * pairs + pair, turns, 0.0).to(tl.float32)
    return value * c + tl.where(is_first, -other, other) * s


@triton.jit
def _spot(spots, first, token, turn: tl.constexpr):
    """Where in the text tokens stand, within the angles that there are."""
    places, batch_row = spots
    n_spots: tl.constexpr = turn[2]
    spot = first + token
    if places is not None:
        spot = tl.load(places + batch_row + token).to(tl.int32)
    return tl.minimum(tl.maximum(spot, 0), n_spots - 1)


@triton.jit
def _scores(q, keys, softcap, has_cap: tl.constexpr):
    """[rows, keys] of queries [rows, features], which have the scale, and keys."""
    scores = tl.sum(q[:, None, :] * keys[None, :, :], 2)
    if has_cap:
        scores = softcap * (2 / (1 + tl.exp(-2 * scores / softcap)) - 1)
    return scores


@triton.jit
def _powers(x, top):
    """exp(x - top), 0 where both are -inf."""
    return tl.where(x == float("-inf"), 0.0, tl.exp(x - top))


@triton.jit
def _past(q, caches, span, place, limits, sizes: tl.constexpr):
    """Tops, sums and weighted values of a span of keys in the cache.

    Each of a tile's keys has a top and a sum of its own until the end: so threads that hold other
    keys need not meet in each turn.
    """
    k_cache, v_cache = caches
    low, high = span
    window, softcap = limits
    rows: tl.constexpr = sizes[0]
    tile: tl.constexpr = sizes[1]
    features: tl.constexpr = sizes[2]
    head: tl.constexpr = sizes[3]
    has_cap: tl.constexpr = sizes[4]
    feature = tl.arange(0, features)[None, :]
    top = tl.full([rows, tile], float("-inf"), tl.float32)
    total = tl.zeros([rows, tile], tl.float32)
    values = tl.zeros([rows, tile, features], tl.float32)
    for start in range(low, high, tile):
        key = start + tl.arange(0, tile)
        ok = (key < high)[:, None] & (feature < head)
        at = key[:, None] * head + feature
        k = tl.load(k_cache + at, ok, 0.0).to(tl.float32)
        v = tl.load(v_cache + at, ok, 0.0).to(tl.float32)
        seen = (key < high)[None, :] & (key[None, :] > place[:, None] - window)
        scores = tl.where(seen, _scores(q, k, softcap, has_cap), float("-inf"))
        higher = tl.maximum(top, scores)
        fade = _powers(top, higher)
        power = _powers(scores, higher)
        total = total * fade + power
        values = values * fade[:, :, None] + power[:, :, None] * v[None, :, :]
        top = higher
    best = tl.max(top, 1)
    fade = _powers(top, best[:, None])
    return best, tl.sum(total * fade, 1), tl.sum(values * fade[:, :, None], 1)


@triton.jit
def _joined(state, scores, v):
    """A state with the scores [rows, keys] and values of more keys."""
    top, total, values = state
    higher = tl.maximum(top, tl.max(scores, 1))
    fade = _powers(top, higher)
    power = _powers(scores, higher[:, None])
    values = values * fade[:, None] + tl.sum(power[:, :, None] * v[None, :, :], 1)
    return higher, total * fade + tl.sum(power, 1), values


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
    for t in tl.static_range(n_new):
        one = tl.zeros([1, 1], tl.int32)
        at = one + t * row_stride
        k = turned(k_new, at, feature, angles, _spot(spots, first, one + t, turn), turn, head)
        k = k.to(k_cache.dtype.element_ty)
        v = tl.load(v_new + at + feature, feature < head, 0.0).to(v_cache.dtype.element_ty)
        tl.store(k_cache + (first + t) * head + feature, k, feature < head)
        tl.store(v_cache + (first + t) * head + feature, v, feature < head)
        scores = _scores(q, k.to(tl.float32), softcap, has_cap)
        seen = (first + t <= place[:, None]) & (first + t > place[:, None] - window)
        state = _joined(state, tl.where(seen, scores, float("-inf")), v.to(tl.float32))
    return state


@triton.jit
def _gathered(scratch, n_splits: tl.constexpr, sizes: tl.constexpr):
    """The state of all splits."""
    rows: tl.constexpr = sizes[0]
    features: tl.constexpr = sizes[2]
    row = tl.arange(0, rows)
    feature = tl.arange(0, features)
    top = tl.full([rows], float("-inf"), tl.float32)
    total = tl.zeros([rows], tl.float32)
    values = tl.zeros([rows, features], tl.float32)
    for i in range(n_splits):
        p = scratch + i * (rows * (features + 2))
        # Other processors wrote these: they are in the shared cache, not in this one's.
        other = tl.load(p + row, cache_modifier=".cg")
        more = tl.load(p + rows + row, cache_modifier=".cg")
        at = 2 * rows + row[:, None] * features + feature[None, :]
        v = tl.load(p + at, cache_modifier=".cg")
        higher = tl.maximum(top, other)
        fade = _powers(top, higher)
        power = _powers(other, higher)
        total = total * fade + more * power
        values = values * fade[:, None] + v * power[:, None]
        top = higher
    return top, total, values


@triton.jit
def _written(y, out, state, row, group, shared, sizes: tl.constexpr, n_shared: tl.constexpr):
    """Stores the quotients, and their digits where asked."""
    _, total, values = state
    features: tl.constexpr = sizes[2]
    head: tl.constexpr = sizes[3]
    n_new: tl.constexpr = sizes[5]
    feature = tl.arange(0, features)[None, :]
    values = values / tl.where(total > 0, total, 1.0)[:, None]
    token = row // group
    at = (token * (group * n_shared) + shared * group + row % group)[:, None] * head + feature
    ok = (row < n_new * group)[:, None] & (feature < head)
    tl.store(y + at, values.to(y.dtype.element_ty), ok)
    if out is not None:
        tl.debug_barrier()  # all features of the heads are stored
        units: tl.constexpr = sizes[6]
        count = group * head
        flat = tl.arange(0, units * 32)
        numbers = tl.load(y + shared * count + flat, flat < count, 0.0).to(tl.float32)
        first = shared * count // 32
        n_units = n_shared * count // 32
        store_digits(out, digits_of(numbers, units), first, n_units, first + count // 32, units)


@triton.jit
def attend_kernel(
    q, k_new, v_new, cos, sin, places, lasts, k_cache, v_cache, y, out, scratch, counts,
    scale, window, softcap, q_stride, k_stride, capacity,
    group: tl.constexpr, n_shared: tl.constexpr, n_splits: tl.constexpr, sizes: tl.constexpr,
    turn: tl.constexpr, overlap: tl.constexpr,
):  # fmt: skip
    """One program for a span of keys of one shared head; the last of them gathers the rest.

    `sizes` is (rows, keys of a tile, features, features of a head, whether scores are capped,
    new tokens, units of the digits), powers of two where they are sizes of tiles.
    """
    let_next(overlap)
    wait_before(overlap)
    split = tl.program_id(0)
    shared = tl.program_id(1)
    batch = tl.program_id(2)
    rows: tl.constexpr = sizes[0]
    tile: tl.constexpr = sizes[1]
    features: tl.constexpr = sizes[2]
    head: tl.constexpr = sizes[3]
    n_new: tl.constexpr = sizes[5]
    given = tl.load(lasts + batch) + 1 - n_new
    # What does not fit in the cache is not written elsewhere: the result is NaN.
    first = tl.minimum(tl.maximum(given, 0), capacity - n_new)
    row = tl.arange(0, rows)
    token = tl.minimum(row // group, n_new - 1)
    spots = (places, batch * n_new)
    at = (batch * n_new + token) * q_stride + (shared * group + row % group) * head
    at = tl.where(row < n_new * group, at, -1)[:, None]
    feature = tl.arange(0, features)[None, :]
    place = first + token
    spot = _spot(spots, first, token, turn)[:, None]
    queries = turned(q, at, feature, (cos, sin), spot, turn, head) * scale
    queries += tl.where(given == first, 0.0, float("nan"))
    block = (batch * n_shared + shared).to(tl.int64) * capacity * head
    caches = (k_cache + block, v_cache + block)
    limits = (window, softcap)
    begin = tl.maximum(0, first + 1 - window)
    part = tl.cdiv(tl.cdiv(first - begin, n_splits), tile) * tile
    low = begin + split * part
    state = _past(queries, caches, (low, tl.minimum(first, low + part)), place, limits, sizes)
    if split == n_splits - 1:
        start = batch * n_new * k_stride + shared * head
        new = (k_new + start, v_new + start, k_stride, (cos, sin), first, spots)
        state = _fresh(state, queries, new, caches, place, limits, turn, sizes)
    y += batch * (n_new * group * n_shared * head)
    if n_splits == 1:
        _written(y, out, state, row, group, shared, sizes, n_shared)
    else:
        top, total, values = state
        scratch += (batch * n_shared + shared) * (n_splits * rows * (features + 2))
        mine = scratch + split * (rows * (features + 2))
        tl.store(mine + row, top)
        tl.store(mine + rows + row, total)
        tl.store(mine + 2 * rows + row[:, None] * features + feature, values)
        tl.debug_barrier()  # all threads have stored before one says so
        count = counts + batch * n_shared + shared
        if tl.atomic_add(count, 1) == n_splits - 1:
            tl.store(count, 0)
            whole = _gathered(scratch, n_splits, sizes)
            _written(y, out, whole, row, group, shared, sizes, n_shared)
