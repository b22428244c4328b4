"""PagedAttention: keys and values in a block pool, and block tables per sequence."""

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
from sardonyx.ops.arrays import Array, wide
from sardonyx.ops.attention.heads import (
    all_or_none,
    expect_dims,
    grouped_head_size,
    grouped_heads,
    rms_normalized,
    same_rank,
    sink_softmax,
    softcapped,
    visible_keys,
)
from sardonyx.ops.attention.kv_cache import rotated

_FLOATS: Final = frozenset((F16, BF16))
_UNSUPPORTED: Final = {  # attributes of which only these values are implemented
    "k_cache_dtype": b"",
    "k_quant_type": b"NONE",
    "kv_cache_layout": b"SEPARATE",
    "v_cache_dtype": b"",
    "v_head_size": 0,
    "v_quant_type": b"NONE",
}

paged: Final = contrib_op(
    "PagedAttention",
    "query:T key:T? value:T? key_cache:T value_cache:T? cumulative_sequence_length:S "
    "past_seqlens:S block_table:S cos_cache:T? sin_cache:T? slot_mapping:S? head_sink:T? "
    "q_norm_weight:T? k_norm_weight:T? k_scale:F? v_scale:F? attention_metadata:S?",
    "output:T key_cache_out:T? value_cache_out:T?",
    attrs={
        **_UNSUPPORTED,
        "do_rotary": 0,
        "is_causal": 1,
        "kv_num_heads": required("int"),
        "local_window_size": -1,
        "num_heads": required("int"),
        "qk_norm_epsilon": float(np.float32(1e-6)),
        "rotary_interleaved": 0,
        "rotary_offset": 0,
        "scale": optional("float"),
        "softcap": 0.0,
    },
    types={"T": _FLOATS, "S": frozenset((I32,)), "F": frozenset((F32,))},
)


def _check(x: SimpleNamespace, attrs: dict[str, Any]) -> None:
    for name, value in _UNSUPPORTED.items():
        if attrs[name] != value:
            raise InvalidGraph(
                f"{name} {attrs[name]!r} is not supported; use separate caches of floats"
            )
    if x.value_cache is None:
        raise InvalidGraph("value_cache is missing")
    all_or_none("key and value", x.key, x.value)
    all_or_none("the weights of norms", x.q_norm_weight, x.k_norm_weight)
    if attrs["do_rotary"] and (x.cos_cache is None or x.sin_cache is None):
        raise InvalidGraph("do_rotary 1 needs cos_cache and sin_cache")


@paged.infer
def _(g: Scope, *inputs: Fact | None, **attrs: Any) -> tuple[Fact, ...]:
    x, (heads, kv_heads) = paged.named(inputs), grouped_heads(attrs)
    _check(x, attrs)
    same_rank(2, query=x.query, block_table=x.block_table)
    same_rank(4, key_cache=x.key_cache, value_cache=x.value_cache)
    tokens, width = x.query.dims
    head = grouped_head_size(g, width, (heads, kv_heads), is_packed=x.key is None)
    batch = x.block_table.dims[0]
    expect_dims(g, (tokens, head * kv_heads), key=x.key, value=x.value)
    cache = (*x.key_cache.dims[:2], kv_heads, head)
    expect_dims(g, cache, key_cache=x.key_cache, value_cache=x.value_cache)
    expect_dims(g, (batch + 1,), cumulative_sequence_length=x.cumulative_sequence_length)
    expect_dims(g, (batch,), past_seqlens=x.past_seqlens)
    expect_dims(g, (tokens,), slot_mapping=x.slot_mapping)
    expect_dims(g, (heads,), head_sink=x.head_sink)
    expect_dims(g, (head,), q_norm_weight=x.q_norm_weight, k_norm_weight=x.k_norm_weight)
    if attrs["do_rotary"]:
        same_rank(2, cos_cache=x.cos_cache, sin_cache=x.sin_cache)
        expect_dims(g, x.cos_cache.dims, sin_cache=x.sin_cache)
        rotary_end = attrs["rotary_offset"] + x.cos_cache.dims[1] * 2
        g.at_least(head, rotary_end, "the caches hold more angles than a head has pairs")
    y = x.query.shaped((tokens, head * heads))
    return y, x.key_cache.without_contents(), x.value_cache.without_contents()


@paged.reference
@np.errstate(all="ignore")
def _(*inputs: Array | None, **attrs: Any) -> tuple[Array, ...]:
    x, (heads, kv_heads) = paged.named(inputs), grouped_heads(attrs)
    tokens = len(x.query)
    q, k, v = _split(x, heads, kv_heads)
    if x.q_norm_weight is not None:
        epsilon = attrs["qk_norm_epsilon"]
        q = rms_normalized(q, x.q_norm_weight, epsilon)
        k = rms_normalized(k, x.k_norm_weight, epsilon)
    positions, sequences = _token_positions(x, tokens)
    if attrs["do_rotary"]:
        q, k = (_rotate(a, x, positions, attrs) for a in (q, k))
    # The new keys and values are stored first, so that attention reads all of them from the pool.
    slots = _slots(x, positions, sequences)
    caches = [np.array(x.key_cache), np.array(x.value_cache)]
    is_stored = slots >= 0
    for cache, new in zip(caches, (k, v), strict=True):
        cache.reshape(-1, *cache.shape[2:])[slots[is_stored]] = new[is_stored]
    y = np.zeros((tokens, heads, q.shape[2]), np.float32)
    for b, past in enumerate(x.past_seqlens):
        tokens_of = np.flatnonzero(sequences == b)
        keys, values = (_read(c, x.block_table[b], int(past) + len(tokens_of)) for c in caches)
        y[tokens_of] = _attend(q[tokens_of], keys, values, x.head_sink, int(past), attrs)
    return y.reshape(tokens, -1).astype(x.query.dtype), *caches


def _split(x: SimpleNamespace, heads: int, kv_heads: int) -> tuple[Array, ...]:
    """Query, key and value as [tokens, heads, head]."""
    if x.key is not None:
        counts = (heads, kv_heads, kv_heads)
        qkv_heads = zip((x.query, x.key, x.value), counts, strict=True)
        return tuple(a.reshape(len(a), n, -1) for a, n in qkv_heads)
    packed = x.query.reshape(len(x.query), heads + 2 * kv_heads, -1)
    return tuple(np.split(packed, (heads, heads + kv_heads), axis=1))


def _token_positions(x: SimpleNamespace, tokens: int) -> tuple[Array, Array]:
    """Return each token's position in its sequence, and the number of that sequence."""
    ends, past = x.cumulative_sequence_length, x.past_seqlens
    counts = np.diff(ends)
    if ends[0] != 0 or ends[-1] != tokens or (counts < 0).any():
        raise InvalidArgument(
            f"cumulative_sequence_length {ends.tolist()} does not split {tokens} tokens"
        )
    if (past < 0).any():
        raise InvalidArgument(f"past_seqlens {past.tolist()} must not be negative")
    sequences = np.repeat(np.arange(len(counts)), counts)
    # The position within the new tokens, after those of the past.
    return np.arange(tokens) - ends[sequences] + past[sequences], sequences


def _rotate(a: Array, x: SimpleNamespace, positions: Array, attrs: dict[str, Any]) -> Array:
    offset, interleaved = attrs["rotary_offset"], attrs["rotary_interleaved"]
    part = a[None, :, :, offset:].swapaxes(1, 2)
    rotated_part = rotated(part, x.cos_cache, x.sin_cache, positions[None], interleaved)
    result = np.array(a)
    result[:, :, offset:] = rotated_part[0].swapaxes(0, 1)
    return result


def _slots(x: SimpleNamespace, positions: Array, sequences: Array) -> Array:
    """Return the row of the block pool for each token's key and value; -1 stores nothing."""
    blocks, size = x.key_cache.shape[:2]
    slots = x.slot_mapping
    if slots is None:
        if positions.size and positions.max() // size >= x.block_table.shape[1]:
            raise InvalidArgument(f"block_table has no block for position {int(positions.max())}")
        # A position is at offset `position % size` of the sequence's block `position // size`.
        slots = x.block_table[sequences, positions // size] * size + positions % size
    wrong = slots[(slots < -1) | (slots >= blocks * size)]
    if wrong.size:
        raise InvalidArgument(f"slot {int(wrong[0])} is outside [0, {blocks * size})")
    return np.asarray(slots)


def _read(cache: Array, table: Array, count: int) -> Array:
    """Return the first `count` keys or values of a sequence, as [heads, keys, head]."""
    size = cache.shape[1]
    blocks = table[: -(-count // size)]
    if (blocks < 0).any() or (blocks >= len(cache)).any() or len(blocks) * size < count:
        raise InvalidArgument(f"block_table {table.tolist()} does not hold {count} keys")
    rows = cache[blocks].reshape(-1, *cache.shape[2:])[:count]
    return wide(rows).swapaxes(0, 1)


def _attend(
    q: Array, keys: Array, values: Array, sink: Array | None, past: int, attrs: dict[str, Any]
) -> Array:
    """softmax(q k^T) v of one sequence; q is [rows, heads, head]."""
    group = attrs["num_heads"] // attrs["kv_num_heads"]
    k, v = (np.repeat(a, group, axis=0) for a in (keys, values))
    scale = np.float32(attrs["scale"] or 1 / math.sqrt(q.shape[2]))
    scores = np.matmul(wide(q).swapaxes(0, 1), k.swapaxes(1, 2)) * scale
    scores = softcapped(scores, attrs["softcap"])
    window = attrs["local_window_size"], 0 if attrs["is_causal"] else -1
    first, end = np.array([past]), np.array([k.shape[1]])
    (visible,) = visible_keys(first, end, (len(q), k.shape[1]), window)
    scores = np.where(visible, scores, np.float32(-np.inf))
    weights, _ = sink_softmax(scores, -np.inf if sink is None else wide(sink)[:, None, None])
    return np.asarray(np.matmul(weights, v).swapaxes(0, 1))


OPS: Final = (paged,)
