"""Decoder attention of com.microsoft: one query row per step, with caches that may be shared."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.errors import InvalidArgument, InvalidGraph
from sardonyx.graph.dim import Size, product
from sardonyx.graph.dtype import BOOL, F16, F32, I32, DType
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import contrib_op, optional, required
from sardonyx.ops.arrays import Array, wide
from sardonyx.ops.attention.heads import (
    expect_dims,
    heads_of,
    merge_heads,
    positive_heads,
    same_dims,
    same_rank,
    split_heads,
)
from sardonyx.ops.attention.multi_head import (
    MASKED_SCORE,
    NO_MASK,
    attend,
    infer_multi_head,
    run_multi_head,
)
from sardonyx.ops.attention.projected import infer_projected, run_projected

_FLOATS: Final = frozenset((F32, F16))
_TYPES: Final = {"T": _FLOATS, "M": frozenset((I32,))}

masked: Final = contrib_op(
    "DecoderMaskedMultiHeadAttention",
    "query:T key:T? value:T? mask_index:M? attention_bias:T? past_key:T? past_value:T? "
    "past_sequence_length:M? beam_width:M? cache_indirection:M? bias:T?",
    "output:T present_key:T? present_value:T? qk:Q?",
    attrs={
        "mask_filter_value": optional("float"),
        "num_heads": required("int"),
        "output_qk": 0,
        "past_present_share_buffer": 0,
        "scale": optional("float"),
    },
    types={**_TYPES, "Q": _FLOATS},
    singles="past_sequence_length beam_width",
)


@masked.typed
def _(types: dict[str, DType], attrs: dict[str, Any]) -> dict[str, DType]:
    return {"Q": types["T"]}


@frozen
class DecoderInputs:
    """The inputs of DecoderMaskedMultiHeadAttention by name: facts, arrays or values."""

    query: Any
    key: Any
    value: Any
    mask: Any
    attention_bias: Any
    past_key: Any
    past_value: Any
    past_length: Any
    beams: Any
    indirection: Any
    bias: Any

    def as_multi_head(self, attrs: dict[str, Any]) -> tuple[Any, ...]:
        """The inputs in MultiHeadAttention's order; keys of cross-attention have no past."""
        is_shared = attrs["past_present_share_buffer"] and self.past_key is not None
        buffer = (self.past_length, self.indirection) if is_shared else (None, None)
        operands = (self.query, self.key, self.value, self.bias, self.mask, self.attention_bias)
        return (*operands, self.past_key, self.past_value, *buffer)


def multi_head_attrs(attrs: dict[str, Any]) -> dict[str, Any]:
    """The attributes of the equivalent MultiHeadAttention."""
    shared = {k: attrs[k] for k in ("mask_filter_value", "num_heads", "scale")}
    return {**shared, "unidirectional": 0}


@masked.infer
def _(g: Scope, *inputs: Any, **attrs: Any) -> Any:
    x, heads = DecoderInputs(*inputs), positive_heads(attrs)
    same_rank(3, query=x.query)
    g.equal(x.query.dims[1], 1, "a decoder's query has one row")
    if attrs["past_present_share_buffer"] and (x.past_key is None) != (x.past_length is None):
        raise InvalidGraph("past_key and past_sequence_length go together: one is missing")
    if x.key is None:  # query, key and value are concatenated along the last axis of query
        batch, rows, width = x.query.dims
        g.divides(3 * heads, width, "num_heads does not split query, key and value")
        x = DecoderInputs(*(Fact(x.query.dtype, (batch, rows, width // 3)),) * 3, *inputs[3:])
    return infer_multi_head(g, *x.as_multi_head(attrs), **multi_head_attrs(attrs))


@masked.reference
def _(*inputs: Any, **attrs: Any) -> Any:
    x = DecoderInputs(*inputs)
    if x.key is None:
        x = DecoderInputs(*np.split(x.query, 3, axis=2), *inputs[3:])
    return run_multi_head(*x.as_multi_head(attrs), **multi_head_attrs(attrs))


masked_self: Final = contrib_op(
    "DecoderMaskedSelfAttention",
    "input:T weights:T bias:T mask_index:M? past:T attention_bias:T? past_sequence_length:M "
    "beam_width:M? cache_indirection:M?",
    "output:T present:T",
    attrs={
        "do_rotary": 0,
        "mask_filter_value": optional("float"),
        "num_heads": required("int"),
        "past_present_share_buffer": 0,
        "scale": optional("float"),
    },
    types=_TYPES,
    singles="past_sequence_length beam_width",
)


def projected_attrs(attrs: dict[str, Any]) -> dict[str, Any]:
    """The attributes of the equivalent com.microsoft Attention."""
    rest = {"qkv_hidden_sizes": None, "rotary_embedding_dim": 0, "unidirectional": 0}
    return {**attrs, **rest}


@masked_self.infer
def _(g: Scope, *inputs: Any, **attrs: Any) -> Any:
    x = inputs[0]
    if inputs[8] is not None:
        raise InvalidGraph(
            "cache_indirection (beam search) is not supported here; "
            "use DecoderMaskedMultiHeadAttention"
        )
    same_rank(3, input=x)
    g.equal(x.dims[1], 1, "a decoder's input has one row")
    length = inputs[6] if attrs["past_present_share_buffer"] else None
    return infer_projected(g, *inputs[:6], length, **projected_attrs(attrs))


@masked_self.reference
def _(*inputs: Any, **attrs: Any) -> Any:
    length = inputs[6] if attrs["past_present_share_buffer"] else None
    return run_projected(*inputs[:6], length, **projected_attrs(attrs))


# Query, key and output are sequence-first: [rows, batch, hidden].
seq_first: Final = contrib_op(
    "DecoderAttention",
    "query:T key:T q_weight:T kv_weight:T bias:T key_padding_mask:B? key_cache:T? value_cache:T? "
    "static_kv:B use_past:B has_layer_state:B has_key_padding_mask:B",
    "output:T new_key_cache:T? new_value_cache:T?",
    attrs={"mask_filter_value": optional("float"), "num_heads": required("int")},
    types={"T": _FLOATS, "B": frozenset((BOOL,))},
)


def _flag(fact: Fact) -> bool | None:
    return None if fact.sym is None or len(fact.sym) != 1 else bool(fact.sym[0])


def _check_seq_first(g: Scope, inputs: tuple[Any, ...], heads: int, head: Size) -> None:
    query, key, q_weight, kv_weight, bias, mask, past_key, past_value, *flags = inputs
    _, batch, hidden = query.dims
    expect_dims(g, (key.dims[0], batch, hidden), key=key)
    expect_dims(g, (hidden, hidden), q_weight=q_weight)
    expect_dims(g, (hidden, 2 * hidden), kv_weight=kv_weight)
    expect_dims(g, (3 * hidden,), bias=bias)
    if mask is not None:
        same_rank(2, key_padding_mask=mask)
        same_dims(g, mask.dims, (batch, mask.dims[1]), "key_padding_mask")
    for name, cache in (("key_cache", past_key), ("value_cache", past_value)):
        if cache is not None:
            same_rank(4, **{name: cache})
            same_dims(g, cache.dims, (batch, heads, cache.dims[2], head), name)
    if past_key is not None and past_value is not None:
        g.equal(past_key.dims[2], past_value.dims[2], "key_cache and value_cache differ in length")
    for flag in flags:
        if flag is not None:
            g.equal(product(flag.dims), 1, "static_kv, use_past and the other flags are scalars")


@seq_first.infer
def _(g: Scope, *inputs: Any, **attrs: Any) -> tuple[Fact, ...]:
    query, key, past_key, *flags = inputs[0], inputs[1], inputs[6], *inputs[8:]
    same_rank(3, query=query, key=key)
    rows, batch, hidden = query.dims
    heads, head = heads_of(g, attrs["num_heads"], hidden, "num_heads")
    _check_seq_first(g, inputs, heads, head)
    # static_kv: cross-attention, whose keys come from `key` once and are cached as they are.
    is_static, uses_past = (_flag(f) for f in flags[:2] if f is not None)
    length: Size = g.new_dim("keys")
    if uses_past is False and is_static is not None:
        length = key.dims[0] if is_static else rows
    elif uses_past and is_static is not None and past_key is not None:
        length = past_key.dims[2] if is_static else past_key.dims[2] + rows
    cache = query.shaped((batch, heads, length, head))
    return query.without_contents(), cache, cache


@seq_first.reference
def _(*inputs: Any, **attrs: Any) -> tuple[Array, ...]:
    query, key, q_weight, kv_weight, bias, mask, old_key, old_value, *flags = inputs
    is_static, uses_past, _, is_masked = (bool(np.asarray(f).reshape(-1)[0]) for f in flags)
    heads, hidden = attrs["num_heads"], query.shape[2]
    q = _projection(query, q_weight, bias[:hidden], heads)
    if uses_past and (old_key is None or old_value is None):
        raise InvalidGraph("use_past needs key_cache and value_cache")
    if uses_past and is_static:
        k, v = old_key, old_value
    else:
        source = key if is_static else query
        kv = zip(np.split(kv_weight, 2, axis=1), np.split(bias[hidden:], 2), strict=True)
        k, v = (_projection(source, *weight_and_bias, heads) for weight_and_bias in kv)
        if uses_past:
            k, v = (np.concatenate(p, axis=2) for p in ((old_key, k), (old_value, v)))
    low = attrs["mask_filter_value"]
    mask_bias = NO_MASK
    if is_masked and mask is not None:  # true where a key is padding
        if mask.shape[1] != k.shape[2]:
            raise InvalidArgument(
                f"key_padding_mask is for {mask.shape[1]} keys, and there are {k.shape[2]}"
            )
        lowest = np.float32(MASKED_SCORE if low is None else low)
        mask_bias = np.where(mask[:, None, None, :], lowest, np.float32(0))
    y, _ = attend(q, k, v, mask_bias, 0, {"scale": None, "unidirectional": 0})
    return merge_heads(y).swapaxes(0, 1).copy(), np.ascontiguousarray(k), np.ascontiguousarray(v)


def _projection(x: Array, weight: Array, bias: Array, heads: int) -> Array:
    """Project [rows, batch, hidden] and return it as [batch, heads, rows, head]."""
    y = np.matmul(wide(x), wide(weight)) + wide(bias)
    return split_heads(y.swapaxes(0, 1), heads).astype(x.dtype)


OPS: Final = (masked, masked_self, seq_first)
