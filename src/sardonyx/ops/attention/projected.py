"""Attention of com.microsoft: projects its input to query, key and value, then attends."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.errors import InvalidArgument, InvalidGraph
from sardonyx.graph.dim import Size
from sardonyx.graph.dtype import BF16, F16, F32, I32
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import contrib_op, optional, required
from sardonyx.ops.arrays import Array, one_int, wide
from sardonyx.ops.attention.heads import (
    expect_dims,
    merge_heads,
    positive_heads,
    same_dims,
    same_rank,
    split_heads,
)
from sardonyx.ops.attention.kv_cache import rotated
from sardonyx.ops.attention.multi_head import (
    NO_MASK,
    additive_mask,
    attend,
    check_attention_bias,
    shared_cache,
    shared_key_count,
)

projected: Final = contrib_op(
    "Attention",
    "input:T weights:T bias:T? mask_index:M? past:T? attention_bias:T? past_sequence_length:M?",
    "output:T present:T?",
    attrs={
        "do_rotary": 0,
        "mask_filter_value": optional("float"),
        "num_heads": required("int"),
        "past_present_share_buffer": 0,
        "qkv_hidden_sizes": optional("ints"),
        "rotary_embedding_dim": 0,
        "scale": optional("float"),
        "unidirectional": 0,
    },
    types={"T": frozenset((F32, F16, BF16)), "M": frozenset((I32,))},
)


@frozen
class ProjectedInputs:
    """The inputs of a com.microsoft Attention by name: facts, arrays or values."""

    x: Any
    weights: Any
    bias: Any
    mask: Any
    past: Any
    attention_bias: Any
    past_length: Any


def qkv_widths(columns: Size, attrs: dict[str, Any]) -> tuple[Size, Size, Size]:
    """Return how many of the projected columns are query, key and value."""
    sizes = attrs["qkv_hidden_sizes"]
    if not sizes:
        return columns // 3, columns // 3, columns // 3
    if len(sizes) != 3 or sizes[0] != sizes[1] or any(s % attrs["num_heads"] for s in sizes):
        raise InvalidGraph(
            f"qkv_hidden_sizes {sizes} are not three sizes of which the first two are equal and "
            f"num_heads {attrs['num_heads']} divides all"
        )
    return sizes[0], sizes[1], sizes[2]


def checked_qkv_widths(g: Scope, columns: Size, attrs: dict[str, Any]) -> tuple[Size, Size]:
    """Return the columns of query (or key) and value, checked against those of the weights."""
    width, _, value_width = qkv_widths(columns, attrs)
    if attrs["qkv_hidden_sizes"]:
        g.equal(columns, 2 * width + value_width, "weights and qkv_hidden_sizes differ")
    else:
        what = "weights do not hold query, key and value of all heads"
        g.divides(3 * attrs["num_heads"], columns, what)
    return width, value_width


@projected.infer
def infer_projected(g: Scope, *inputs: Fact | None, **attrs: Any) -> tuple[Fact, ...]:
    x, heads = ProjectedInputs(*inputs), positive_heads(attrs)
    if attrs["past_present_share_buffer"] and (x.past is None or x.past_length is None):
        raise InvalidGraph("past_present_share_buffer 1 needs past and past_sequence_length")
    same_rank(3, input=x.x)
    same_rank(2, weights=x.weights)
    batch, rows, inner = x.x.dims
    g.equal(x.weights.dims[0], inner, "weights do not fit the input")
    columns = x.weights.dims[1]
    width, value_width = checked_qkv_widths(g, columns, attrs)
    expect_dims(g, (columns,), bias=x.bias)
    head, past = width // heads, 0
    if x.past is not None:
        same_rank(5, past=x.past)
        past = x.past.dims[3]
        same_dims(g, x.past.dims, (2, batch, heads, past, head), "past")
        g.equal(value_width, width, "a past needs keys and values of the same width")
    total = length = past + rows
    if attrs["past_present_share_buffer"]:
        total, length = shared_key_count(g, x.past_length, None), past
    if attrs["do_rotary"]:
        g.at_least(head, attrs["rotary_embedding_dim"], "rotary_embedding_dim exceeds a head")
        g.divides(2, attrs["rotary_embedding_dim"] or head, "features are rotated in pairs")
    if x.mask is not None:
        _check_mask(g, x.mask, (batch, rows, total))
    check_attention_bias(g, x.attention_bias, (batch, heads, rows, total))
    present = x.x.shaped((2, batch, heads, length, head))
    return x.x.shaped((batch, rows, value_width)), present


def _check_mask(g: Scope, mask: Fact, sizes: tuple[Size, Size, Size]) -> None:
    batch, rows, total = sizes
    if mask.rank == 1:
        count = mask.dims[0]
        is_static = isinstance(batch, int) and isinstance(count, int)
        if is_static and count not in _mask_lengths(batch):
            raise InvalidGraph(f"mask_index has {count} numbers for a batch of {batch}")
    elif mask.rank == 2:
        g.equal_or_one(mask.dims[0], batch, "mask_index does not broadcast over the batch")
        g.equal(mask.dims[1], total, "mask_index has another number of columns than keys")
    elif mask.rank == 3:
        same_dims(g, mask.dims, (batch, rows, total), "mask_index")
    elif mask.rank == 4:
        same_dims(g, mask.dims, (batch, 1, mask.dims[2], mask.dims[2]), "mask_index")
        g.at_least(mask.dims[2], total, "mask_index has fewer columns than there are keys")
    else:
        raise InvalidGraph(f"mask_index must have rank 1 to 4, got {mask.rank}")


def _mask_lengths(batch: Any) -> tuple[Any, ...]:
    """Lengths of a 1-D mask_index: key ends; ends and starts; or cumulative sequence lengths."""
    return batch, 2 * batch, 3 * batch + 2


@projected.reference
def run_projected(*inputs: Array | None, **attrs: Any) -> tuple[Array, ...]:
    x = ProjectedInputs(*inputs)
    qkv = np.matmul(wide(x.x), wide(x.weights))
    if x.bias is not None:
        qkv = qkv + wide(x.bias)
    return attend_to_qkv(x, qkv.astype(x.x.dtype), attrs)


def attend_to_qkv(x: ProjectedInputs, qkv: Array, attrs: dict[str, Any]) -> tuple[Array, ...]:
    """Attention on the projection [batch, rows, query | key | value]; also used by QAttention."""
    heads = attrs["num_heads"]
    # Query and key have the same width; the rest is the value.
    width, _, _ = qkv_widths(qkv.shape[2], attrs)
    assert isinstance(width, int)
    parts = np.split(qkv, (width, 2 * width), axis=2)
    q, k, v = (split_heads(part, heads) for part in parts)
    past = 0
    if attrs["past_present_share_buffer"]:
        past = one_int(x.past_length, "past_sequence_length")
    elif x.past is not None:
        past = x.past.shape[3]
    if attrs["do_rotary"]:
        q, k = (_rotate(part, past, attrs["rotary_embedding_dim"]) for part in (q, k))
    caches = [k, v]
    if attrs["past_present_share_buffer"]:
        # A shared buffer has the capacity of the present: new rows are written after the past ones.
        caches = [shared_cache(old, new, past) for old, new in zip(x.past, (k, v), strict=True)]
    elif x.past is not None:
        pairs = zip(x.past, (k, v), strict=True)
        caches = [np.concatenate(pair, axis=2) for pair in pairs]
    k, v = (c[:, :, : past + q.shape[2]] for c in caches)
    mask = _mask(x.mask, (x.x.shape[0], past, *q.shape[2:3]), attrs["mask_filter_value"])
    if x.attention_bias is not None:
        mask = mask + wide(x.attention_bias)
    y, _ = attend(q, k, v, mask, past, attrs)
    # Keys and values of different widths have no past (see infer): the present is not used then.
    same = k.shape == v.shape
    return merge_heads(y), np.stack(caches) if same else np.zeros((2, *k.shape), k.dtype)


def _rotate(x: Array, past: int, width: int) -> Array:
    """RoPE of [batch, heads, rows, head] with the frequencies 10000^(-i / half)."""
    half = (width or x.shape[3]) // 2
    frequencies = 10000.0 ** (-np.arange(half) / max(half, 1))
    angles = np.arange(past + x.shape[2])[:, None] * frequencies
    positions = np.arange(past, past + x.shape[2])[None] + np.zeros((x.shape[0], 1), np.int64)
    cos, sin = (f(angles).astype(np.float32) for f in (np.cos, np.sin))
    return rotated(x, cos, sin, positions, 0)


def _mask(mask: Array | None, sizes: tuple[int, ...], low: float | None) -> Array:
    """Return the additive mask for scores [batch, heads, rows, keys]."""
    batch, past, rows = sizes
    keys = past + rows
    if mask is None:
        return NO_MASK
    positions = np.arange(keys)
    if mask.ndim == 1:
        if mask.shape[0] not in _mask_lengths(batch):
            raise InvalidArgument(f"mask_index has {mask.shape[0]} numbers for a batch of {batch}")
        ends, starts = mask[:batch, None], mask[batch : 2 * batch, None]
        visible = positions < ends
        if mask.shape[0] == 2 * batch:
            # Left-padded: keys before the start are padding too.
            visible = visible & (positions >= starts)
    elif mask.ndim == 4:
        # A square causal mask of the maximum length: the rows of the new queries.
        visible = mask[:, 0, past:keys, :keys] > 0
    else:
        visible = mask > 0
    return additive_mask(visible, low)


OPS: Final = (projected,)
