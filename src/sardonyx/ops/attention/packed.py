"""Batches without their padding: how it is removed and restored, and attention in between."""

from __future__ import annotations

import itertools
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, InvalidGraph
from sardonyx.graph.dim import Size
from sardonyx.graph.dtype import F16, F32, I32
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import MICROSOFT, Op, optional, required
from sardonyx.ops.arrays import Array, filled, wide
from sardonyx.ops.attention.heads import heads_of, same_dims, same_rank
from sardonyx.ops.attention.multi_head import attend, check_added
from sardonyx.ops.attention.projected import widths_of

_TYPES: Final = {"T": frozenset((F32, F16)), "M": frozenset((I32,))}

remove: Final = Op(
    "RemovePadding",
    1,
    "input:T sequence_token_count:M",
    "output:T token_offset:M cumulated_seq_len:M max_seq_len:M",
    domain=MICROSOFT,
    types=_TYPES,
)


@remove.infer
def _(g: Scope, x: Fact, counts: Fact) -> tuple[Fact, ...]:
    same_rank(3, input=x)
    batch, length, hidden = x.dims
    same_dims(g, counts.dims, (batch,), "sequence_token_count")
    return (
        x.shaped((g.fresh("tokens"), hidden)),
        Fact(I32, (batch, length)),
        Fact(I32, (batch + 1,)),
        Fact(I32, (1,)),
    )


@remove.reference
def _(x: Array, counts: Array) -> tuple[Array, ...]:
    batch, length, hidden = x.shape
    wrong = counts[(counts < 0) | (counts > length)]
    if wrong.size:
        raise InvalidArgument(f"sequence_token_count {int(wrong[0])} is outside [0, {length}]")
    is_token = np.arange(length) < counts[:, None]
    places = np.arange(batch * length, dtype=np.int32)
    tokens = places[is_token.reshape(-1)]
    offsets = np.concatenate((tokens, places[~is_token.reshape(-1)])).reshape(batch, length)
    ends = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    longest = np.array([counts.max(initial=0)], np.int32)
    return x.reshape(batch * length, hidden)[tokens], offsets, ends, longest


restore: Final = Op(
    "RestorePadding", 1, "input:T token_offset:M", "output:T", domain=MICROSOFT, types=_TYPES
)


@restore.infer
def _(g: Scope, x: Fact, offsets: Fact) -> Fact:
    same_rank(2, input=x, token_offset=offsets)
    return x.shaped((*offsets.dims, x.dims[1]))


@restore.reference
def _(x: Array, offsets: Array) -> Array:
    return restored(x, offsets)


def restored(x: Array, offsets: Array) -> Array:
    """Tokens at their places in a batch, and zeros where its padding is."""
    places = offsets.reshape(-1)[: len(x)]
    wrong = places[(places < 0) | (places >= offsets.size)]
    if wrong.size or len(places) < len(x):
        raise InvalidArgument(f"token_offset does not say where each of {len(x)} tokens goes")
    y = np.zeros((offsets.size, x.shape[1]), x.dtype)
    y[places] = x
    return y.reshape(*offsets.shape, x.shape[1])


packed: Final = Op(
    "PackedAttention",
    1,
    "input:T weights:T bias:T token_offset:M cumulative_sequence_length:M attention_bias:T?",
    "output:T",
    domain=MICROSOFT,
    attrs={
        "num_heads": required("int"),
        "qkv_hidden_sizes": optional("ints"),
        "scale": optional("float"),
    },
    types=_TYPES,
)
multi_packed: Final = Op(
    "PackedMultiHeadAttention",
    1,
    "query:T key:T? value:T? bias:T? token_offset:M cumulative_sequence_length:M attention_bias:T?",
    "output:T",
    domain=MICROSOFT,
    attrs={
        "mask_filter_value": optional("float"),
        "num_heads": required("int"),
        "scale": optional("float"),
    },
    types=_TYPES,
)


def _check_batch(g: Scope, heads: int, offsets: Fact, ends: Fact, added: Fact | None) -> None:
    same_rank(2, token_offset=offsets)
    batch, length = offsets.dims
    same_dims(g, ends.dims, (batch + 1,), "cumulative_sequence_length")
    if added is not None:
        check_added(g, added, (batch, heads, length, length))


@packed.infer
def _(g: Scope, *inputs: Fact | None, **attrs: Any) -> Fact:
    x, weights, bias, offsets, ends, added = inputs
    assert x is not None
    assert weights is not None
    assert bias is not None
    assert offsets is not None
    assert ends is not None
    heads = attrs["num_heads"]
    if heads < 1:
        raise InvalidGraph(f"num_heads is {heads}, and must be 1 or more")
    same_rank(2, input=x, weights=weights)
    columns = weights.dims[1]
    g.equal(weights.dims[0], x.dims[1], "weights do not fit the input")
    same_dims(g, bias.dims, (columns,), "bias")
    width, _, value = widths_of(columns, attrs)
    if attrs["qkv_hidden_sizes"]:
        g.equal(columns, 2 * width + value, "weights and qkv_hidden_sizes differ")
    else:
        g.divides(3 * heads, columns, "weights do not hold query, key and value of all heads")
    _check_batch(g, heads, offsets, ends, added)
    return x.shaped((x.dims[0], value))


@packed.reference
def _(*inputs: Array | None, **attrs: Any) -> Array:
    arrays: Any = filled(inputs, 6)
    x, weights, bias, _, ends, added = arrays
    product = (np.matmul(wide(x), wide(weights)) + wide(bias)).astype(x.dtype)
    width, _, _ = widths_of(weights.shape[1], attrs)
    assert isinstance(width, int)
    parts = np.split(product, (width, 2 * width), axis=1)
    return _attended(parts, ends, added, attrs)


@multi_packed.infer
def _(g: Scope, *inputs: Fact | None, **attrs: Any) -> Fact:
    query, key, value, bias, offsets, ends, added = inputs
    assert query is not None
    assert offsets is not None
    assert ends is not None
    if (key is None) != (value is None):
        raise InvalidGraph("key and value go together: one of them is missing")
    same_rank(4 if key is None else 2, query=query)
    heads, width = attrs["num_heads"], query.dims[-1]
    tokens = query.dims[0]
    if key is None or value is None:
        same_dims(g, query.dims, (tokens, heads, 3, width), "a query with key and value")
        hidden: Size = width * heads
        last = hidden
    else:
        same_rank(2, value=value)
        heads_of(g, heads, width, "num_heads")
        heads_of(g, heads, value.dims[1], "num_heads")
        same_dims(g, key.dims, (tokens, width), "key")
        same_dims(g, value.dims, (tokens, value.dims[1]), "value")
        hidden, last = width, value.dims[1]
    if bias is not None:
        same_dims(g, bias.dims, (2 * hidden + last,), "bias")
    _check_batch(g, heads, offsets, ends, added)
    return query.shaped((tokens, last))


@multi_packed.reference
def _(*inputs: Array | None, **attrs: Any) -> Array:
    arrays: Any = filled(inputs, 7)
    query, key, value, bias, _, ends, added = arrays
    parts = [query, key, value]
    if key is None:
        parts = [p.reshape(len(query), -1) for p in query.swapaxes(0, 2).swapaxes(1, 2)]
    if bias is not None:
        width = parts[0].shape[1]
        pieces = np.split(bias, (width, 2 * width))
        sums = (wide(p) + wide(b) for p, b in zip(parts, pieces, strict=True))
        parts = [s.astype(query.dtype) for s in sums]
    return _attended(parts, ends, added, attrs)


def _attended(parts: list[Array], ends: Array, added: Array | None, attrs: dict[str, Any]) -> Array:
    """Attention of each text to itself; texts lie one behind the other."""
    heads, tokens = attrs["num_heads"], len(parts[0])
    if ends[0] != 0 or ends[-1] != tokens or (np.diff(ends) < 0).any():
        raise InvalidArgument(
            f"cumulative_sequence_length {ends.tolist()} does not part {tokens} tokens"
        )
    q, k, v = (p.reshape(tokens, heads, -1).swapaxes(0, 1)[None] for p in parts)
    y = np.zeros((tokens, heads, v.shape[3]), v.dtype)
    for b, (first, end) in enumerate(itertools.pairwise(ends)):
        length = end - first
        mask = np.zeros((1, 1, 1, 1), np.float32)
        if added is not None:
            mask = wide(added[min(b, len(added) - 1)][None, :, :length, :length])
        text = slice(first, end)
        made, _ = attend(
            *(q[:, :, text], k[:, :, text], v[:, :, text], mask, 0),
            {"scale": attrs["scale"], "unidirectional": 0},
        )
        y[first:end] = made[0].swapaxes(0, 1)
    return y.reshape(tokens, -1)


OPS: Final = (remove, restore, packed, multi_packed)
