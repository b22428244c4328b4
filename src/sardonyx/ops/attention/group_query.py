"""GroupQueryAttention: decoders' attention, with rotated positions and a cache in one node."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.errors import InvalidArgument, InvalidGraph
from sardonyx.graph.dim import Size
from sardonyx.graph.dtype import BF16, F16, F32, I32, I64, DType, by_numpy
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import MICROSOFT, Op, optional, required
from sardonyx.ops.arrays import Array, filled, one_int, wide
from sardonyx.ops.attention.cache import first_rows, longer, rotated
from sardonyx.ops.attention.heads import pack, same_dims, same_rank, unpack
from sardonyx.ops.attention.kv_cache import QUANTIZED, Window, check_scale, check_window, codec_of

SCORES, WEIGHTS = 1, 2  # what qk_output asks for
_FLOATS: Final = frozenset((F32, F16, BF16))

group_query: Final = Op(
    "GroupQueryAttention",
    1,
    "query:T key:T? value:T? past_key:C? past_value:C? seqlens_k:M total_sequence_length:M "
    "cos_cache:T? sin_cache:T? position_ids:I? attention_bias:T? head_sink:T? k_scale:S? "
    "v_scale:S? q_norm_weight:T? k_norm_weight:T?",
    "output:T present_key:C? present_value:C? output_qk:T?",
    domain=MICROSOFT,
    attrs={
        "causal": 1,
        "do_rotary": 0,
        "k_quant_type": b"NONE",
        "kv_cache_bit_width": 0,
        "kv_num_heads": required("int"),
        "local_window_size": -1,
        "num_heads": required("int"),
        "qk_norm_epsilon": float(np.float32(1e-6)),
        "qk_output": 0,
        "rotary_interleaved": 0,
        "scale": optional("float"),
        "sliding_window_cache": 0,
        "smooth_softmax": -1,
        "softcap": 0.0,
        "v_quant_type": b"NONE",
    },
    types={
        "T": _FLOATS,
        "C": _FLOATS | QUANTIZED,
        "M": frozenset((I32,)),
        "I": frozenset((I64,)),
        "S": frozenset((F32,)),
    },
)


@group_query.typed
def _(types: dict[str, DType], attrs: dict[str, Any]) -> dict[str, DType]:
    return {"C": codec_of(attrs, types["T"], types.get("C")).dtype}


@frozen
class Inputs:
    """The inputs of a node by name: facts, arrays or values."""

    query: Any
    key: Any
    value: Any
    past_key: Any
    past_value: Any
    seqlens: Any
    total: Any
    cos: Any
    sin: Any
    positions: Any
    bias: Any
    sink: Any
    k_scale: Any
    v_scale: Any
    q_norm: Any
    k_norm: Any


def _check(attrs: dict[str, Any], x: Inputs) -> None:
    heads, shared = attrs["num_heads"], attrs["kv_num_heads"]
    if heads < 1 or shared < 1 or heads % shared:
        raise InvalidGraph(f"kv_num_heads {shared} does not share out num_heads {heads}")
    if attrs["sliding_window_cache"] and (attrs["local_window_size"] < 1 or x.past_key is None):
        raise InvalidGraph("sliding_window_cache 1 needs past_key and a local_window_size")
    if (x.q_norm is None) != (x.k_norm is None):
        raise InvalidGraph("q_norm_weight and k_norm_weight go together: one of them is missing")
    if attrs["causal"] not in (0, 1):
        raise InvalidGraph(f"causal {attrs['causal']} is neither 0 nor 1")
    if attrs["local_window_size"] < 1 and attrs["local_window_size"] != -1:
        raise InvalidGraph(f"local_window_size {attrs['local_window_size']} is neither -1 nor more")
    if not attrs["causal"] and attrs["local_window_size"] != -1:
        raise InvalidGraph("a window goes with causal attention only")
    if attrs["qk_output"] not in (0, SCORES, WEIGHTS):
        raise InvalidGraph(f"qk_output {attrs['qk_output']} is none of 0, 1, 2")
    for one, other, what in (
        (x.key, x.value, "key and value"),
        (x.past_key, x.past_value, "past_key and past_value"),
        (x.cos, x.sin, "cos_cache and sin_cache"),
    ):
        if (one is None) != (other is None):
            raise InvalidGraph(f"{what} go together: one of them is missing")
    if attrs["do_rotary"] and x.cos is None:
        raise InvalidGraph("do_rotary 1 needs cos_cache and sin_cache")


@group_query.infer
def _(g: Scope, *inputs: Fact | None, **attrs: Any) -> tuple[Fact, ...]:
    x = Inputs(*inputs)
    _check(attrs, x)
    heads, shared = attrs["num_heads"], attrs["kv_num_heads"]
    same_rank(3, query=x.query)
    batch, rows, hidden = x.query.dims
    parts = heads if x.key is not None else heads + 2 * shared
    g.divides(parts, hidden, "the heads do not split the query")
    head = hidden // parts
    if x.key is not None:
        for name in ("key", "value"):
            same_dims(g, getattr(x, name).dims, (batch, rows, head * shared), name)
    codec = codec_of(attrs, x.query.dtype, None if x.past_key is None else x.past_key.dtype)
    past: Size = 0
    if x.past_key is not None:
        same_rank(4, past_key=x.past_key, past_value=x.past_value)
        past = x.past_key.dims[2]
        if x.past_key.dtype is not codec.dtype or x.past_value.dtype is not codec.dtype:
            raise InvalidGraph(f"the cache is of {codec.dtype}, not {x.past_key}")
        for name in ("past_key", "past_value"):
            same_dims(g, getattr(x, name).dims, (batch, shared, past, codec.width(head)), name)
    check_scale(g, x.k_scale, attrs["k_quant_type"], (shared, head))
    check_scale(g, x.v_scale, attrs["v_quant_type"], (shared, head))
    for name, weight in (("q_norm_weight", x.q_norm), ("k_norm_weight", x.k_norm)):
        if weight is not None:
            same_dims(g, weight.dims, (head,), name)
    if x.seqlens.rank not in (1, 2):
        raise InvalidGraph(f"seqlens_k has one number for each of the batch, and is {x.seqlens}")
    same_dims(g, x.seqlens.dims, (batch, 1)[: x.seqlens.rank], "seqlens_k")
    total, length = _lengths(g, x.total, past)
    if attrs["sliding_window_cache"]:
        length = past
    _check_rotary(g, x, attrs, (batch, rows, head))
    if x.sink is not None:
        same_dims(g, x.sink.dims, (heads,), "head_sink")
    if x.bias is not None:
        same_rank(4, attention_bias=x.bias)
        g.equal_or_one(x.bias.dims[0], batch, "attention_bias does not broadcast over the batch")
        g.equal_or_one(x.bias.dims[1], heads, "attention_bias does not broadcast over the heads")
        g.equal(x.bias.dims[2], rows, "attention_bias has another number of rows than the query")
    cache = Fact(codec.dtype, (batch, shared, length, codec.width(head)))
    return (
        x.query.shaped((batch, rows, head * heads)),
        cache,
        cache,
        x.query.shaped((batch, heads, rows, total)),
    )


def _lengths(g: Scope, total: Fact, past: Size) -> tuple[Size, Size]:
    """The number of keys, and the length of the new cache."""
    if total.rank > 1:
        raise InvalidGraph(f"total_sequence_length is one number, and is {total}")
    for size in total.dims:
        g.equal(size, 1, "total_sequence_length is one number")
    return g.fresh("keys") if total.sym is None else total.sym[0], longer(g, total, past)


def _check_rotary(g: Scope, x: Inputs, attrs: dict[str, Any], sizes: tuple[Size, ...]) -> None:
    batch, rows, head = sizes
    if not attrs["do_rotary"]:
        return
    same_rank(2, cos_cache=x.cos, sin_cache=x.sin)
    same_dims(g, x.sin.dims, x.cos.dims, "sin_cache")
    g.at_least(head, x.cos.dims[1] * 2, "the caches hold more angles than a head has pairs")
    if x.positions is not None:
        same_dims(g, x.positions.dims, (batch, rows), "position_ids")


@group_query.reference
def _(*inputs: Array | None, **attrs: Any) -> tuple[Array, ...]:
    x = Inputs(*filled(inputs, 16))
    heads, shared = attrs["num_heads"], attrs["kv_num_heads"]
    q, k, v = _split(x, heads, shared)
    batch, _, rows, head = q.shape
    if x.q_norm is not None:
        q, k = (_normal(a, w, attrs) for a, w in ((q, x.q_norm), (k, x.k_norm)))
    total = one_int(x.total, "total_sequence_length")
    firsts, ends = first_rows(x.seqlens, total, rows)
    if attrs["do_rotary"]:
        places = positions_of(x.positions, firsts, rows, is_first=rows == total)
        q = rotated(q, x.cos, x.sin, places, attrs["rotary_interleaved"])
        k = rotated(k, x.cos, x.sin, places, attrs["rotary_interleaved"])
    sides = ((x.past_key, k, x.k_scale), (x.past_value, v, x.v_scale))
    kept = [_kept(attrs, old, new, scale, (firsts, ends, total)) for old, new, scale in sides]
    y = np.zeros((batch, heads, rows, head), np.float32)
    shown = np.zeros((batch, heads, rows, total), np.float32)
    for b in range(batch):
        bias = None if x.bias is None else wide(x.bias[min(b, x.bias.shape[0] - 1)])
        span = (int(firsts[b]), int(ends[b]))
        keys, values = (np.repeat(seen[b], heads // shared, axis=0) for _, seen in kept)
        y[b] = _attend(attrs, wide(q[b]), keys, values, bias, x.sink, span, shown[b])
    return pack(y).astype(q.dtype), *(cache for cache, _ in kept), shown.astype(q.dtype)


def _normal(x: Array, weight: Array, attrs: dict[str, Any]) -> Array:
    """Each head over its root mean square."""
    with np.errstate(all="ignore"):
        square = np.square(wide(x)).mean(axis=-1, keepdims=True)
        y = wide(x) / np.sqrt(square + np.float32(attrs["qk_norm_epsilon"])) * wide(weight)
        return np.asarray(y.astype(x.dtype))


Spans = tuple[Array, Array, int]  # where new rows begin and keys end in each of the batch; the most


def _kept(
    attrs: dict[str, Any], old: Array | None, new: Array, scale: Array | None, spans: Spans
) -> tuple[Array, Array]:
    """The new cache; and all keys or values at their places, as float32."""
    firsts, ends, total = spans
    batch, shared, rows, head = new.shape
    dtypes = (by_numpy(a.dtype) for a in (new, new if old is None else old))
    codec = codec_of(attrs, next(dtypes) or F32, None if old is None else next(dtypes))
    past = 0 if old is None else old.shape[2]
    is_window = bool(attrs["sliding_window_cache"])
    if firsts.size and not is_window and (firsts.max() > past or ends.max() > max(past, total)):
        raise InvalidArgument(f"seqlens_k says {ends.max()} keys, and there are {past} before")
    stored = codec.encode(new, scale)
    if old is not None and is_window:
        check_window(past, attrs["local_window_size"])
    window = Window(past, attrs["local_window_size"])
    whole = np.zeros((batch, shared, max(past, total), stored.shape[3]), stored.dtype)
    cache = np.zeros_like(whole[:, :, :past]) if is_window else whole
    for b in range(batch):
        first, end = int(firsts[b]), int(ends[b])
        if old is not None:
            there = window.resident(first) if is_window else first
            whole[b, :, first - there : first] = old[b, :, :there]
        whole[b, :, first : first + rows] = stored[b]
        if is_window:
            there = window.resident(end)
            cache[b, :, :there] = whole[b, :, end - there : end]
    return cache, codec.decode(whole, scale, head)


def _split(x: Inputs, heads: int, shared: int) -> tuple[Array, Array, Array]:
    if x.key is not None:
        return unpack(x.query, heads), unpack(x.key, shared), unpack(x.value, shared)
    whole = unpack(x.query, heads + 2 * shared)
    return whole[:, :heads], whole[:, heads : heads + shared], whole[:, heads + shared :]


def positions_of(given: Array | None, firsts: Array, rows: int, is_first: bool) -> Array:
    """Where in the text each query stands. Of those given, a first prompt looks at one only."""
    if given is None:
        return np.asarray(firsts[:, None] + np.arange(rows))
    if is_first:
        return np.asarray(given.reshape(-1)[:1] + np.arange(rows)) + np.zeros_like(given)
    return given


def _attend(  # noqa: PLR0913 - the parts of one attention
    attrs: dict[str, Any],
    q: Array,
    k: Array,
    v: Array,
    bias: Array | None,
    sink: Array | None,
    span: tuple[int, int],
    shown: Array,
) -> Array:
    """softmax(q k^T) v of one entry of the batch; its scores go into `shown`."""
    first, end = span
    scale = attrs["scale"] or 1 / math.sqrt(q.shape[-1] or 1)
    with np.errstate(all="ignore"):
        scores = np.matmul(q, k[:, :end].swapaxes(1, 2)) * np.float32(scale)
        if attrs["softcap"] > 0:
            scores = np.tanh(scores / np.float32(attrs["softcap"])) * np.float32(attrs["softcap"])
        if bias is not None:
            scores = scores + bias[..., :end]
        places, keys = np.arange(first, first + q.shape[1])[:, None], np.arange(end)
        seen = keys <= places if attrs["causal"] else keys >= 0
        if attrs["local_window_size"] > 0:
            seen = seen & (keys > places - attrs["local_window_size"])
        if attrs["qk_output"] == SCORES:
            shown[..., :end] = np.where(seen, scores, np.float32(0))
        scores = np.where(seen, scores, np.float32(-np.inf))
        top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        lowest = np.float32(0 if attrs["smooth_softmax"] == 1 else -np.inf)
        extra = lowest if sink is None else wide(sink)[:, None, None]
        top = np.maximum(top, extra)
        weights = np.exp(scores - top)
        weights = weights / (weights.sum(axis=-1, keepdims=True) + np.exp(extra - top))
        # Rows of a prompt that is shorter than others may see no key.
        weights = np.where(top == -np.inf, np.float32(0), weights)
        if attrs["qk_output"] == WEIGHTS:
            shown[..., :end] = weights
        return np.asarray(np.matmul(weights, v[:, :end]))


OPS: Final = (group_query,)
