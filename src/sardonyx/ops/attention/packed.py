"""Batches packed without padding: RemovePadding, RestorePadding, and attention on packed tokens."""

from __future__ import annotations

import itertools
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument
from sardonyx.graph.dtype import F16, F32, I32
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import contrib_op, optional, required
from sardonyx.ops.arrays import Array, wide
from sardonyx.ops.attention.heads import (
    all_or_none,
    expect_dims,
    heads_of,
    positive_heads,
    same_dims,
    same_rank,
)
from sardonyx.ops.attention.multi_head import NO_MASK, attend, check_attention_bias
from sardonyx.ops.attention.projected import checked_qkv_widths, qkv_widths

_TYPES: Final = {"T": frozenset((F32, F16)), "M": frozenset((I32,))}

remove: Final = contrib_op(
    "RemovePadding",
    "input:T sequence_token_count:M",
    "output:T token_offset:M cumulated_seq_len:M max_seq_len:M",
    types=_TYPES,
)


@remove.infer
def _(g: Scope, x: Fact, counts: Fact) -> tuple[Fact, ...]:
    same_rank(3, input=x)
    batch, length, hidden = x.dims
    same_dims(g, counts.dims, (batch,), "sequence_token_count")
    return (
        x.shaped((g.new_dim("tokens"), hidden)),
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
    positions = np.arange(batch * length, dtype=np.int32)
    tokens = positions[is_token.reshape(-1)]
    # Flat positions of the tokens in the padded batch, then those of the padding.
    offsets = np.concatenate((tokens, positions[~is_token.reshape(-1)])).reshape(batch, length)
    ends = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    longest = np.array([counts.max(initial=0)], np.int32)
    return x.reshape(batch * length, hidden)[tokens], offsets, ends, longest


restore: Final = contrib_op("RestorePadding", "input:T token_offset:M", "output:T", types=_TYPES)


@restore.infer
def _(g: Scope, x: Fact, offsets: Fact) -> Fact:
    same_rank(2, input=x, token_offset=offsets)
    return x.shaped((*offsets.dims, x.dims[1]))


@restore.reference
def restored(x: Array, offsets: Array) -> Array:
    """Return a padded batch with tokens at their offsets and zeros as padding."""
    positions = offsets.reshape(-1)[: len(x)]
    wrong = positions[(positions < 0) | (positions >= offsets.size)]
    if wrong.size or len(positions) < len(x):
        raise InvalidArgument(f"token_offset does not say where each of {len(x)} tokens goes")
    y = np.zeros((offsets.size, x.shape[1]), x.dtype)
    y[positions] = x
    return y.reshape(*offsets.shape, x.shape[1])


packed: Final = contrib_op(
    "PackedAttention",
    "input:T weights:T bias:T token_offset:M cumulative_sequence_length:M attention_bias:T?",
    "output:T",
    attrs={
        "num_heads": required("int"),
        "qkv_hidden_sizes": optional("ints"),
        "scale": optional("float"),
    },
    types=_TYPES,
)
multi_packed: Final = contrib_op(
    "PackedMultiHeadAttention",
    "query:T key:T? value:T? bias:T? token_offset:M cumulative_sequence_length:M attention_bias:T?",
    "output:T",
    attrs={
        "mask_filter_value": optional("float"),
        "num_heads": required("int"),
        "scale": optional("float"),
    },
    types=_TYPES,
)


def _check_batch(
    g: Scope, heads: int, offsets: Fact, ends: Fact, attention_bias: Fact | None
) -> None:
    same_rank(2, token_offset=offsets)
    batch, length = offsets.dims
    same_dims(g, ends.dims, (batch + 1,), "cumulative_sequence_length")
    check_attention_bias(g, attention_bias, (batch, heads, length, length))


@packed.infer
def _(g: Scope, *inputs: Any, **attrs: Any) -> Any:
    x, weights, bias, offsets, ends, attention_bias = inputs
    heads = positive_heads(attrs)
    same_rank(2, input=x, weights=weights)
    columns = weights.dims[1]
    g.equal(weights.dims[0], x.dims[1], "weights do not fit the input")
    expect_dims(g, (columns,), bias=bias)
    _, value = checked_qkv_widths(g, columns, attrs)
    _check_batch(g, heads, offsets, ends, attention_bias)
    return x.shaped((x.dims[0], value))


@packed.reference
def _(*inputs: Any, **attrs: Any) -> Array:
    x, weights, bias, _, ends, attention_bias = inputs
    projected = (np.matmul(wide(x), wide(weights)) + wide(bias)).astype(x.dtype)
    width, _, _ = qkv_widths(weights.shape[1], attrs)
    assert isinstance(width, int)
    qkv = np.split(projected, (width, 2 * width), axis=1)
    return _attended(qkv, ends, attention_bias, attrs)


@multi_packed.infer
def _(g: Scope, *inputs: Any, **attrs: Any) -> Any:
    query, key, value, bias, offsets, ends, attention_bias = inputs
    all_or_none("key and value", key, value)
    same_rank(4 if key is None else 2, query=query)
    heads, width = attrs["num_heads"], query.dims[-1]
    tokens = query.dims[0]
    if key is None or value is None:
        same_dims(g, query.dims, (tokens, heads, 3, width), "a query with key and value")
        hidden = last = width * heads
    else:
        same_rank(2, value=value)
        heads_of(g, heads, width, "num_heads")
        heads_of(g, heads, value.dims[1], "num_heads")
        expect_dims(g, (tokens, width), key=key)
        expect_dims(g, (tokens, value.dims[1]), value=value)
        hidden, last = width, value.dims[1]
    expect_dims(g, (2 * hidden + last,), bias=bias)
    _check_batch(g, heads, offsets, ends, attention_bias)
    return query.shaped((tokens, last))


@multi_packed.reference
def _(*inputs: Any, **attrs: Any) -> Array:
    query, key, value, bias, _, ends, attention_bias = inputs
    qkv = [query, key, value]
    if key is None:
        # [tokens, heads, 3, head] as three matrices [tokens, heads * head].
        qkv = [p.reshape(len(query), -1) for p in query.swapaxes(0, 2).swapaxes(1, 2)]
    if bias is not None:
        width = qkv[0].shape[1]
        biases = np.split(bias, (width, 2 * width))
        biased = (wide(p) + wide(b) for p, b in zip(qkv, biases, strict=True))
        qkv = [s.astype(query.dtype) for s in biased]
    return _attended(qkv, ends, attention_bias, attrs)


def _attended(
    qkv: list[Array], ends: Array, attention_bias: Array | None, attrs: dict[str, Any]
) -> Array:
    """Self-attention within each sequence; sequences are concatenated along the tokens."""
    heads, tokens = attrs["num_heads"], len(qkv[0])
    if ends[0] != 0 or ends[-1] != tokens or (np.diff(ends) < 0).any():
        raise InvalidArgument(
            f"cumulative_sequence_length {ends.tolist()} does not split {tokens} tokens"
        )
    q, k, v = (p.reshape(tokens, heads, -1).swapaxes(0, 1)[None] for p in qkv)
    y = np.zeros((tokens, heads, v.shape[3]), v.dtype)
    for b, (first, end) in enumerate(itertools.pairwise(ends)):
        length = end - first
        mask = NO_MASK
        if attention_bias is not None:
            mask = wide(attention_bias[min(b, len(attention_bias) - 1)][None, :, :length, :length])
        sequence = [x[:, :, first:end] for x in (q, k, v)]
        attention_attrs = {"scale": attrs["scale"], "unidirectional": 0}
        result, _ = attend(sequence[0], sequence[1], sequence[2], mask, 0, attention_attrs)
        y[first:end] = result[0].swapaxes(0, 1)
    return y.reshape(tokens, -1)


OPS: Final = (remove, restore, packed, multi_packed)
