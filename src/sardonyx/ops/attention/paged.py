"""PagedAttention: keys and values in blocks of a pool, and tables that say whose they are."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.errors import InvalidArgument, InvalidGraph
from sardonyx.graph.dtype import BF16, F16, F32, I32
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import MICROSOFT, Op, optional, required
from sardonyx.ops.arrays import Array, filled, wide
from sardonyx.ops.attention.cache import rotated
from sardonyx.ops.attention.heads import same_dims, same_rank

_FLOATS: Final = frozenset((F16, BF16))
_LATER: Final = {  # what only some devices have, and what stands for its absence
    "k_cache_dtype": b"",
    "k_quant_type": b"NONE",
    "kv_cache_layout": b"SEPARATE",
    "v_cache_dtype": b"",
    "v_head_size": 0,
    "v_quant_type": b"NONE",
}

paged: Final = Op(
    "PagedAttention",
    1,
    "query:T key:T? value:T? key_cache:T value_cache:T? cumulative_sequence_length:S "
    "past_seqlens:S block_table:S cos_cache:T? sin_cache:T? slot_mapping:S? head_sink:T? "
    "q_norm_weight:T? k_norm_weight:T? k_scale:F? v_scale:F? attention_metadata:S?",
    "output:T key_cache_out:T? value_cache_out:T?",
    domain=MICROSOFT,
    attrs={
        **_LATER,
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


@frozen
class Inputs:
    """The inputs of a node by name: facts or arrays."""

    query: Any
    key: Any
    value: Any
    key_cache: Any
    value_cache: Any
    ends: Any
    past: Any
    table: Any
    cos: Any
    sin: Any
    slots: Any
    sink: Any
    q_norm: Any
    k_norm: Any
    k_scale: Any
    v_scale: Any
    metadata: Any


def _check(x: Inputs, attrs: dict[str, Any]) -> None:
    heads, shared = attrs["num_heads"], attrs["kv_num_heads"]
    if heads < 1 or shared < 1 or heads % shared:
        raise InvalidGraph(f"kv_num_heads {shared} does not share out num_heads {heads}")
    for name, value in _LATER.items():
        if attrs[name] != value:
            raise InvalidGraph(
                f"{name} {attrs[name]!r} is not known here; keep separate caches of floats"
            )
    if x.value_cache is None:
        raise InvalidGraph("value_cache is missing")
    pairs = (x.key, x.value, "key and value"), (x.q_norm, x.k_norm, "the weights of norms")
    for one, other, what in pairs:
        if (one is None) != (other is None):
            raise InvalidGraph(f"{what} go together: one of them is missing")
    if attrs["do_rotary"] and (x.cos is None or x.sin is None):
        raise InvalidGraph("do_rotary 1 needs cos_cache and sin_cache")


@paged.infer
def _(g: Scope, *inputs: Fact | None, **attrs: Any) -> tuple[Fact, ...]:
    x, heads, shared = Inputs(*inputs), attrs["num_heads"], attrs["kv_num_heads"]
    _check(x, attrs)
    same_rank(2, query=x.query, block_table=x.table)
    same_rank(4, key_cache=x.key_cache, value_cache=x.value_cache)
    tokens, width = x.query.dims
    parts = heads if x.key is not None else heads + 2 * shared
    g.divides(parts, width, "the heads do not split the query")
    head, batch = width // parts, x.table.dims[0]
    for name in ("key", "value") if x.key is not None else ():
        same_dims(g, getattr(x, name).dims, (tokens, head * shared), name)
    blocks, size = x.key_cache.dims[:2]
    for name in ("key_cache", "value_cache"):
        same_dims(g, getattr(x, name).dims, (blocks, size, shared, head), name)
    same_dims(g, x.ends.dims, (batch + 1,), "cumulative_sequence_length")
    same_dims(g, x.past.dims, (batch,), "past_seqlens")
    for name, fact, wanted in (
        ("slot_mapping", x.slots, tokens),
        ("head_sink", x.sink, heads),
        ("q_norm_weight", x.q_norm, head),
        ("k_norm_weight", x.k_norm, head),
    ):
        if fact is not None:
            same_dims(g, fact.dims, (wanted,), name)
    if attrs["do_rotary"]:
        turned = attrs["rotary_offset"] + x.cos.dims[1] * 2
        g.at_least(head, turned, "the caches hold more angles than a head has pairs")
    y = x.query.shaped((tokens, head * heads))
    return y, x.key_cache.plain(), x.value_cache.plain()


@paged.reference
@np.errstate(all="ignore")
def _(*inputs: Array | None, **attrs: Any) -> tuple[Array, ...]:
    x, heads, shared = Inputs(*filled(inputs, 17)), attrs["num_heads"], attrs["kv_num_heads"]
    tokens = len(x.query)
    q, k, v = _split(x, heads, shared)
    if x.q_norm is not None:
        q, k = (_normal(a, w, attrs) for a, w in ((q, x.q_norm), (k, x.k_norm)))
    places, owners = _places(x, tokens)
    if attrs["do_rotary"]:
        q, k = (_turned(a, x, places, attrs) for a in (q, k))
    slots = _slots(x, places, owners)
    caches = [np.array(x.key_cache), np.array(x.value_cache)]
    is_kept = slots >= 0
    for cache, new in zip(caches, (k, v), strict=True):
        cache.reshape(-1, *cache.shape[2:])[slots[is_kept]] = new[is_kept]
    y = np.zeros((tokens, heads, q.shape[2]), np.float32)
    for b, past in enumerate(x.past):
        mine = np.flatnonzero(owners == b)
        keys, values = (_read(c, x.table[b], int(past) + len(mine)) for c in caches)
        y[mine] = _attend(q[mine], keys, values, x.sink, places[mine], attrs)
    return y.reshape(tokens, -1).astype(x.query.dtype), *caches


def _split(x: Inputs, heads: int, shared: int) -> tuple[Array, ...]:
    """Query, key and value as [tokens, heads, head]."""
    if x.key is not None:
        counts = (heads, shared, shared)
        parts = zip((x.query, x.key, x.value), counts, strict=True)
        return tuple(a.reshape(len(a), n, -1) for a, n in parts)
    whole = x.query.reshape(len(x.query), heads + 2 * shared, -1)
    return tuple(np.split(whole, (heads, heads + shared), axis=1))


def _normal(x: Array, weight: Array, attrs: dict[str, Any]) -> Array:
    square = np.square(wide(x)).mean(axis=-1, keepdims=True)
    y = wide(x) / np.sqrt(square + np.float32(attrs["qk_norm_epsilon"])) * wide(weight)
    return np.asarray(y.astype(x.dtype))


def _places(x: Inputs, tokens: int) -> tuple[Array, Array]:
    """Where in its text each token stands, and whose it is."""
    counts = np.diff(x.ends)
    if x.ends[0] != 0 or x.ends[-1] != tokens or (counts < 0).any():
        raise InvalidArgument(
            f"cumulative_sequence_length {x.ends.tolist()} does not part {tokens} tokens"
        )
    if (x.past < 0).any():
        raise InvalidArgument(f"past_seqlens {x.past.tolist()} must not be negative")
    owners = np.repeat(np.arange(len(counts)), counts)
    return np.arange(tokens) - x.ends[owners] + x.past[owners], owners


def _turned(a: Array, x: Inputs, places: Array, attrs: dict[str, Any]) -> Array:
    offset = attrs["rotary_offset"]
    part = a[None, :, :, offset:].swapaxes(1, 2)
    made = np.array(a)
    turned = rotated(part, x.cos, x.sin, places[None], attrs["rotary_interleaved"])
    made[:, :, offset:] = turned[0].swapaxes(0, 1)
    return made


def _slots(x: Inputs, places: Array, owners: Array) -> Array:
    """Where in the pool each token's key and value go; -1 for those that are not kept."""
    blocks, size = x.key_cache.shape[:2]
    slots = x.slots
    if slots is None:
        if places.size and places.max() // size >= x.table.shape[1]:
            raise InvalidArgument(f"block_table has no block for position {int(places.max())}")
        slots = x.table[owners, places // size] * size + places % size
    wrong = slots[(slots < -1) | (slots >= blocks * size)]
    if wrong.size:
        raise InvalidArgument(f"slot {int(wrong[0])} is outside [0, {blocks * size})")
    return np.asarray(slots)


def _read(cache: Array, table: Array, count: int) -> Array:
    """So many keys or values of a text, from its blocks, as [heads, keys, head]."""
    size = cache.shape[1]
    blocks = table[: -(-count // size)]
    if (blocks < 0).any() or (blocks >= len(cache)).any() or len(blocks) * size < count:
        raise InvalidArgument(f"block_table {table.tolist()} does not hold {count} keys")
    rows = cache[blocks].reshape(-1, *cache.shape[2:])[:count]
    return wide(rows).swapaxes(0, 1)


def _attend(
    q: Array, keys: Array, values: Array, sink: Array | None, places: Array, attrs: dict[str, Any]
) -> Array:
    """softmax(q k^T) v of one text; rows are [rows, heads, head]."""
    group = attrs["num_heads"] // attrs["kv_num_heads"]
    k, v = (np.repeat(a, group, axis=0) for a in (keys, values))
    scale = np.float32(attrs["scale"] or 1 / math.sqrt(q.shape[2]))
    scores = np.matmul(wide(q).swapaxes(0, 1), k.swapaxes(1, 2)) * scale
    cap = np.float32(attrs["softcap"])
    if cap > 0:
        scores = np.tanh(scores / cap) * cap
    ahead = np.arange(k.shape[1]) - places[:, None]
    seen = ahead <= 0 if attrs["is_causal"] else np.ones(ahead.shape, bool)
    if attrs["local_window_size"] >= 0:
        seen = seen & (ahead >= -attrs["local_window_size"])
    scores = np.where(seen, scores, -np.inf)
    extra = np.float32(-np.inf) if sink is None else wide(sink)[:, None, None]
    top = np.maximum(scores.max(axis=-1, keepdims=True, initial=-np.inf), extra)
    weights = np.exp(scores - top)
    weights = weights / (weights.sum(axis=-1, keepdims=True) + np.exp(extra - top))
    return np.asarray(np.matmul(weights, v).swapaxes(0, 1))


OPS: Final = (paged,)
