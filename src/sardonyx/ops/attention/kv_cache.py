"""Key-value caches: the internal ops that attention ops with a past are lowered to."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, InvalidGraph
from sardonyx.graph.dim import Size, maximum
from sardonyx.graph.dtype import BF16, F16, F32, I32, I64
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import internal_op
from sardonyx.ops.arrays import Array, one_int, wide

_TYPES: Final = {
    "T": frozenset((F32, F16, BF16)),
    "I": frozenset((I32,)),
    "L": frozenset((I32, I64)),
    "P": frozenset((I64,)),
}

# [batch, 2]: per batch entry the position of its first new row, and its number of keys including
# the new ones.
spans: Final = internal_op(
    "Spans",
    # Either seqlens_k (lengths - 1) and the total length, or nonpad_kv_seqlen counts and the keys.
    # Of query and keys, [batch, heads, rows, head], only the sizes are read.
    "lengths:L total:I? query:T keys:T?",
    "y:I",
    types=_TYPES,
)

# Appends new rows to the cache; with cos and sin, query and key are rotated by position (RoPE).
append: Final = internal_op(
    "Append",
    "key:T value:T past_key:T? past_value:T? spans:I? total:I? query:T? cos:T? sin:T? positions:P?",
    "present_key:T present_value:T rotated_query:T?",
    attrs={"interleaved": 0},  # RoPE pairs are (2i, 2i+1), not (i, i + half)
    types=_TYPES,
)


def append_ranges(seqlens: Array, total: int, rows: int) -> tuple[Array, Array]:
    """Return per batch entry the position of its first new row and its number of keys after them.

    A prompt (as many new rows as the total length) starts at 0, whatever seqlens_k says: shorter
    prompts of the batch are padded at the end.
    """
    ends = seqlens.reshape(-1).astype(np.int64) + 1
    wrong = ends[(ends < 1) | (ends > max(total, 1))]
    if wrong.size:
        raise InvalidArgument(f"seqlens_k {int(wrong[0]) - 1} is outside [0, {total})")
    firsts = np.zeros_like(ends) if rows == total else ends - rows
    if firsts.size and firsts.min() < 0:
        raise InvalidArgument(f"seqlens_k {int(ends.min()) - 1} is too small for {rows} new rows")
    return firsts, ends


def rotated(x: Array, cos: Array, sin: Array, positions: Array, interleaved: int) -> Array:
    """Rotary embedding (RoPE) of [batch, heads, rows, head]: feature pairs rotated by position."""
    check_positions(positions, cos)
    c, s = wide(cos)[positions][:, None], wide(sin)[positions][:, None]
    return rotated_pairs(wide(x), c, s, interleaved).astype(x.dtype)


def check_positions(positions: Array, cos: Array) -> None:
    """Raise for a position that is not a row of the cos cache."""
    wrong = positions[(positions < 0) | (positions >= cos.shape[0])]
    if wrong.size:
        raise InvalidArgument(f"position {int(wrong[0])} is outside [0, {cos.shape[0]})")


def rotated_pairs(x: Array, cos: Array, sin: Array, interleaved: int) -> Array:
    """Rotate the first feature pairs of each head, as many as there are angles."""
    half = cos.shape[-1]
    even, odd = slice(0, half), slice(half, 2 * half)
    if interleaved:
        even, odd = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    result = np.array(x)
    first, second = x[..., even], x[..., odd]
    with np.errstate(all="ignore"):
        result[..., even] = cos * first - sin * second
        result[..., odd] = sin * first + cos * second
    return result


def rotary_positions(position_ids: Array | None, firsts: Array, rows: int, is_first: bool) -> Array:
    """Return the position of each query.

    As in onnxruntime, a prompt (`is_first`) uses position_ids[0] only and counts up from there.
    """
    offsets = np.arange(rows) + np.zeros((len(firsts), 1), np.int64)
    if position_ids is None:
        return np.asarray(firsts[:, None] + offsets)
    return position_ids.reshape(-1)[:1] + offsets if is_first else position_ids


def cache_length(g: Scope, total: Fact, past: Size) -> Size:
    """Return the length of a cache that holds `total` keys: max(total, past)."""
    if total.sym is None or len(total.sym) != 1:
        return g.new_dim("total")
    # The symbolic total is kept where a guard can make it at least as long as the past.
    number = total.sym[0]
    length = maximum(number, past)
    return length if isinstance(length, int) or not g.assume_at_least(number, past) else number


@spans.infer
def _(g: Scope, lengths: Fact, total: Fact | None, query: Fact, keys: Fact | None) -> Fact:
    return Fact(I32, (query.dims[0], 2))


@spans.reference
def _(lengths: Array, total: Array | None, query: Array, keys: Array | None) -> Array:
    rows = query.shape[2]
    if keys is not None:
        check_key_counts(lengths, keys.shape[2])
        firsts, ends = lengths - rows, lengths
    else:
        firsts, ends = append_ranges(lengths, one_int(total, "total_sequence_length"), rows)
    return np.stack((firsts, ends), axis=1).astype(np.int32)


def check_key_counts(counts: Array, keys: int) -> None:
    """Raise unless every count is within [0, keys]."""
    wrong = counts[(counts < 0) | (counts > keys)]
    if wrong.size:
        raise InvalidArgument(f"nonpad_kv_seqlen {int(wrong[0])} is outside [0, {keys}]")


@append.infer
def _(g: Scope, *inputs: Any, **attrs: Any) -> tuple[Fact, ...]:
    key, value, past_key, _, _, total, query = inputs[:7]
    batch, heads, rows, head = key.dims
    past = 0 if past_key is None else past_key.dims[2]
    length = past + rows if total is None else cache_length(g, total, past)
    if key.rank != 4:
        raise InvalidGraph(f"keys must be [batch, heads, rows, head], got {key}")
    cache = key.shaped((batch, heads, length, head))
    presents = cache, value.shaped((batch, heads, length, value.dims[3]))
    return presents if query is None else (*presents, query.without_contents())


@append.reference
def _(*inputs: Any, **attrs: Any) -> tuple[Array, ...]:
    key, value, past_key, past_value, spans, total, query, cos, sin, position_ids = inputs
    batch, _, rows, _ = key.shape
    past = 0 if past_key is None else past_key.shape[2]
    length = past + rows if total is None else max(past, one_int(total, "the length"))
    # Without spans every batch entry appends after the whole past.
    firsts = np.full(batch, past) if spans is None else spans[:, 0]
    if firsts.size and (firsts.max() > past or firsts.max() + rows > length):
        raise InvalidArgument(f"{rows} new rows start at {firsts.max()}, and the past has {past}")
    extra: tuple[Array, ...] = ()
    if cos is not None:
        is_prompt = total is not None and rows == one_int(total, "the length")
        positions = rotary_positions(position_ids, firsts, rows, is_prompt)
        key = rotated(key, cos, sin, positions, attrs["interleaved"])
        extra = (rotated(query, cos, sin, positions, attrs["interleaved"]),)
    caches = []
    for old, new in ((past_key, key), (past_value, value)):
        cache = np.zeros((*new.shape[:2], length, new.shape[3]), new.dtype)
        for b in range(batch):
            if old is not None:
                cache[b, :, : firsts[b]] = old[b, :, : firsts[b]]
            cache[b, :, firsts[b] : firsts[b] + rows] = new[b]
        caches.append(cache)
    return (*caches, *extra)


OPS: Final = (append, spans)
