"""Lowering of attention over many heads: each op to the one that has a kernel."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from sardonyx.graph.dim import Size
from sardonyx.graph.dtype import BOOL, F32, I32
from sardonyx.graph.graph import Node, Value
from sardonyx.graph.op import INTERNAL
from sardonyx.ops.attention.decoder import Masked, multi_head_attrs, projected_attrs
from sardonyx.ops.attention.dot_product import Settings
from sardonyx.ops.attention.fused import UNSEEN
from sardonyx.ops.attention.multi_head import SHUT_OUT
from sardonyx.ops.attention.multi_head import Inputs as MultiHead
from sardonyx.ops.attention.projected import Inputs as Projected
from sardonyx.ops.attention.projected import widths_of
from sardonyx.ops.builder import Builder
from sardonyx.passes.attention import KERNELS, wide_value
from sardonyx.passes.rule import need, ranked

HEADS_FIRST: Final = (0, 2, 1, 3)  # [batch, rows, heads, head] as [batch, heads, rows, head]
Spans = dict[tuple[Any, ...], Value]  # those of a graph, by what they are made of


def given(node: Node, count: int) -> tuple[Value | None, ...]:
    """The inputs of a node, None for those left out at the end."""
    return (*node.inputs, *[None] * (count - len(node.inputs)))


def parts_of(b: Builder, x: Value, parts: int) -> Value:
    """[batch, rows, parts * size] as [batch, rows, parts, size]."""
    made: Value = b.Reshape(x, b.ints(0, 0, parts, known(x.tensor.dims[2]) // parts))
    return made


def known(size: Size) -> int:
    """A size that must be a number."""
    need(isinstance(size, int), "the size of a head is not known")
    assert isinstance(size, int)
    return size


def need_columns(b: Builder, mask: Value, keys: Value) -> None:
    """Says no to a mask that has fewer columns than there are keys, or may have in most runs."""
    columns, count = mask.tensor.dims[-1], keys.tensor.dims[2]
    if columns == count:
        return
    is_open = not isinstance(columns, int) or not isinstance(count, int)
    need(is_open and columns != 1, "a mask of fewer keys")
    need(b.graph.scope.assume_at_least(columns, count), "a mask that may be of fewer keys")


def joined(b: Builder, y: Value, width: int) -> Value:
    """[batch, rows, heads, size] with the heads side by side."""
    made: Value = b.Reshape(y, b.ints(0, 0, width))
    return made


def _heads_first(b: Builder, x: Value, heads: int) -> Value:
    made: Value = b.Transpose(parts_of(b, x, heads), perm=HEADS_FIRST)
    return made


def _is_shown(node: Node, output: int) -> bool:
    return len(node.outputs) > output and node.outputs[output].is_used


def _appended(b: Builder, k: Value, v: Value, past: tuple[Any, Any]) -> tuple[Value, Value]:
    """Keys and values behind those of the past."""
    if past[0] is None:
        return k, v
    key, value = b.Append(k, v, *past, domain=INTERNAL, outputs=2)
    return key, value


def _shown(b: Builder, present: tuple[Value, Value]) -> tuple[Value, ...]:
    """Keys and values as outputs, which have names of their own."""
    return tuple(p if p.op == "Append" else b.Identity(p) for p in present)


def _shut_out(b: Builder, seen: Value, low: float | None, axes: tuple[int, ...]) -> Value:
    """What a mask adds to the scores, with axes for what it is the same for."""
    zero, lowest = b.const(0.0, F32), b.const(SHUT_OUT if low is None else low, F32)
    made: Value = b.Unsqueeze(b.Where(seen, zero, lowest), b.ints(*axes))
    return made


def _places(b: Builder, keys: Value) -> Value:
    """0, 1, 2, ... for each of the keys [batch, heads, keys, head]."""
    count = b.Cast(b.Squeeze(b.Shape(keys, start=2, end=3), b.ints(0)), to=I32.onnx)
    made: Value = b.Range(b.const(0, I32), count, b.const(1, I32))
    return made


def _by_lengths(b: Builder, mask: Value, keys: Value) -> Value:
    """Which keys come before the end of each of the batch."""
    made: Value = b.Less(_places(b, keys), b.Unsqueeze(mask, b.ints(1)))
    return made


def _added(b: Builder, mask: Value | None, more: Value | None) -> Value | None:
    if mask is None or more is None:
        return more if mask is None else mask
    made: Value = b.Add(mask, more)
    return made


def multi_head(b: Builder, node: Node, spans: Spans) -> tuple[Value | None, ...]:
    """MultiHeadAttention."""
    x, attrs = MultiHead(*given(node, 10)), node.attrs
    ranked(*[v for v in node.inputs if v is not None])
    return _multi_head(b, x, node, attrs)


def masked(b: Builder, node: Node, spans: Spans) -> tuple[Value | None, ...]:
    """DecoderMaskedMultiHeadAttention."""
    x = Masked(*given(node, 11))
    ranked(*[v for v in node.inputs if v is not None])
    if x.key is None:
        parts = b.Split(x.query, axis=2, num_outputs=3, outputs=3)
        x = Masked(*parts, *given(node, 11)[3:])
    arranged = MultiHead(*x.arranged(node.attrs))
    return _multi_head(b, arranged, node, multi_head_attrs(node.attrs))


def _multi_head(
    b: Builder, x: MultiHead, node: Node, attrs: dict[str, Any]
) -> tuple[Value | None, ...]:
    q, k, v = _operands(b, x, attrs["num_heads"])
    if x.past_length is not None:
        return _over_shared(b, (q, k, v), x, node, attrs)
    present = _appended(b, k, v, (x.past_key, x.past_value))
    mask = None
    if x.padding is not None:
        rank = x.padding.tensor.rank
        low, zero = attrs["mask_filter_value"], b.const(0, I32)
        is_seen = _by_lengths(b, x.padding, present[0]) if rank == 1 else b.Greater(x.padding, zero)
        mask = _shut_out(b, is_seen, low, (1,) if rank == 3 else (1, 2))
    mask = _added(b, mask, wide_value(b, x.added))
    scores = None
    if _is_shown(node, 3):
        y, scores = _spelled(b, (q, *present), mask, attrs)
    else:
        y = _attend(b, (q, *present), mask, attrs, x.past_key is not None and k)
    if scores is None and not _is_shown(node, 1) and not _is_shown(node, 2):
        return (y,)
    return y, *_shown(b, present), scores


def _spelled(
    b: Builder, operands: tuple[Value, Value, Value], mask: Value | None, attrs: dict[str, Any]
) -> tuple[Value, Value]:
    """Attention by its parts, and the scores among them."""
    q, k, v = operands
    need(not attrs["unidirectional"], "scores of keys that are not seen")
    need(q.tensor.dtype is F32, "scores in another type than they are computed in")
    scale = attrs["scale"] or 1 / math.sqrt(known(q.tensor.dims[3]))
    scores = b.Mul(b.MatMul(q, b.Transpose(k, perm=(0, 1, 3, 2))), b.const(scale, F32))
    if mask is not None:
        scores = b.Add(scores, mask)
    y = b.Transpose(b.MatMul(b.Softmax(scores, axis=-1), v), perm=HEADS_FIRST)
    return joined(b, y, known(v.tensor.dims[1]) * known(v.tensor.dims[3])), scores


def _over_shared(
    b: Builder,
    operands: tuple[Value, Value, Value],
    x: MultiHead,
    node: Node,
    attrs: dict[str, Any],
) -> tuple[Value | None, ...]:
    """Over a cache with room for more, in which past_length says where new rows go."""
    need(not _is_shown(node, 3), "shows its scores")
    need(x.padding is None and x.added is None, "a mask of fewer keys")
    need(x.indirection is None, "beams of one cache")
    (q, k, v), past = operands, (x.past_key, x.past_value)
    need(past[0].tensor.dtype is k.tensor.dtype, "a cache of another type")
    span, length = _shared_span(b, q, k, past[0], x.past_length)
    present = b.Append(k, v, *past, span, length, domain=INTERNAL, outputs=2)
    y = b.Attention(
        *(q, *present, None, span),
        domain=INTERNAL,
        scale=attrs["scale"] or 1 / math.sqrt(known(q.tensor.dims[3])),
        rows_first=1,
        behind=0 if attrs["unidirectional"] else -1,
    )
    width = known(v.tensor.dims[1]) * known(v.tensor.dims[3])
    return joined(b, y, width), *present


def _shared_span(
    b: Builder, q: Value, k: Value, cache: Value, past_length: Value
) -> tuple[Value, Value]:
    """Where new rows and their keys stand, and the length of the cache."""
    length, rows = (b.Cast(b.Shape(v, start=2, end=3), to=I32.onnx) for v in (cache, k))
    last = b.Sub(b.Add(b.Reshape(past_length, b.ints(1)), rows), b.const([1], I32))
    lasts = b.Expand(last, b.Shape(q, start=0, end=1))
    return b.Spans(lasts, length, q, domain=INTERNAL), length


def _attend(
    b: Builder,
    operands: tuple[Value, Value, Value],
    mask: Value | None,
    attrs: dict[str, Any],
    appended: Value | bool | None,
) -> Value:
    """One Attention; with keys that were appended, rows stand where these do."""
    q, k, v = operands
    if attrs["unidirectional"] and isinstance(appended, Value):
        need(appended.tensor.dims[2] == q.tensor.dims[2], "rows do not stand where new keys do")
    y = b.Attention(
        *(q, k, v, mask),
        domain=INTERNAL,
        scale=attrs["scale"] or 1 / math.sqrt(known(q.tensor.dims[3])),
        rows_first=1,
        behind=0 if attrs["unidirectional"] else -1,
        at_end=int(isinstance(appended, Value)),
    )
    return joined(b, y, known(v.tensor.dims[1]) * known(v.tensor.dims[3]))


def _operands(b: Builder, x: MultiHead, heads: int) -> tuple[Value, Value, Value]:
    """Query, key and value as [batch, heads, rows, head], with their biases."""
    if x.query.tensor.rank == 5:
        need(x.bias is None, "a bias of what is packed")
        q, k, v = _unpacked(b, x.query, 3)
        return q, k, v
    need(x.key.tensor.rank != 5 or x.bias is None, "a bias of what is packed")
    parts = [x.query, x.key, x.value]
    if x.bias is not None:
        width, all_three = known(x.query.tensor.dims[2]), known(x.bias.tensor.dims[0])
        sizes = b.ints(width, width, all_three - 2 * width)
        biases = b.Split(x.bias, sizes, axis=0, outputs=3)
        count = 1 if x.key.tensor.rank == 4 else 3  # a cache has its bias already
        parts[:count] = [b.Add(p, c) for p, c in zip(parts[:count], biases, strict=False)]
    q = _heads_first(b, parts[0], heads)
    if x.key.tensor.rank == 5:
        k, v = _unpacked(b, x.key, 2)
        return q, k, v
    if x.key.tensor.rank == 4:
        return q, x.key, x.value
    return q, _heads_first(b, parts[1], heads), _heads_first(b, parts[2], heads)


def _unpacked(b: Builder, x: Value, count: int) -> tuple[Value, ...]:
    """The parts of [batch, rows, heads, count, head] as [batch, heads, rows, head]."""
    parts = b.Split(x, b.ints(*[1] * count), axis=3, outputs=count)
    return tuple(b.Transpose(b.Squeeze(p, b.ints(3)), perm=HEADS_FIRST) for p in parts)


def projected(b: Builder, node: Node, spans: Spans) -> tuple[Value | None, ...]:
    """Attention of com.microsoft: a product, and MultiHeadAttention."""
    ranked(*[v for v in node.inputs if v is not None])
    return _projected(b, Projected(*given(node, 7)), node, node.attrs)


def masked_self(b: Builder, node: Node, spans: Spans) -> tuple[Value | None, ...]:
    """DecoderMaskedSelfAttention."""
    ranked(*[v for v in node.inputs if v is not None])
    x = Projected(*node.inputs[:7])
    return _projected(b, x, node, projected_attrs(node.attrs))


def _projected(
    b: Builder, x: Projected, node: Node, attrs: dict[str, Any]
) -> tuple[Value | None, ...]:
    need(not attrs["do_rotary"], "turns by angles of its own")
    need(not attrs["past_present_share_buffer"], "past and present share a cache")
    product = b.MatMul(x.x, x.weights)
    whole = product if x.bias is None else b.Add(product, x.bias)
    return attend_projected(b, x, whole, attrs, _is_shown(node, 1))


def attend_projected(
    b: Builder, x: Projected, whole: Value, attrs: dict[str, Any], has_present: bool
) -> tuple[Value | None, ...]:
    """What follows the product of Attention: query, key and value lie side by side in it."""
    heads = attrs["num_heads"]
    sizes = [known(s) for s in widths_of(known(whole.tensor.dims[2]), attrs)]
    if len(set(sizes)) == 1:  # heads before parts: views of the product
        parts = b.Split(parts_of(b, whole, 3 * heads), b.ints(*[heads] * 3), axis=2, outputs=3)
        q, k, v = (b.Transpose(part, perm=HEADS_FIRST) for part in parts)
    else:
        parts = b.Split(whole, b.ints(*sizes), axis=2, outputs=3)
        q, k, v = (_heads_first(b, part, heads) for part in parts)
    past: tuple[Any, Any] = (None, None)
    if x.past is not None:
        halves = b.Split(x.past, b.ints(1, 1), axis=0, outputs=2)
        past = tuple(b.Squeeze(half, b.ints(0)) for half in halves)
    present = _appended(b, k, v, past)
    mask = None if x.mask is None else _index_mask(b, x, present[0], attrs["mask_filter_value"])
    mask = _added(b, mask, wide_value(b, x.added))
    y = _attend(b, (q, *present), mask, attrs, x.past is not None and k)
    if not has_present:
        return (y,)
    need(k.tensor.dims[3] == v.tensor.dims[3], "keys and values do not stack")
    return y, b.Concat(*(b.Unsqueeze(p, b.ints(0)) for p in present), axis=0)


def _index_mask(b: Builder, x: Projected, keys: Value, low: float | None) -> Value:
    """What mask_index adds to the scores, in each of its forms."""
    mask, batch = x.mask, x.x.tensor.dims[0]
    if mask.tensor.rank == 4:
        mask = _rows_of(b, x, mask, keys)
    if mask.tensor.rank > 1:
        axes = (1,) if mask.tensor.rank == 3 else (1, 2)
        return _shut_out(b, b.Greater(mask, b.const(0, I32)), low, axes)
    count = mask.tensor.dims[0]
    if count == batch:
        return _shut_out(b, _by_lengths(b, mask, keys), low, (1, 2))
    need(count in (2 * batch, 3 * batch + 2), "how many numbers the mask has is not known")
    sizes = b.Shape(x.x, start=0, end=1)
    seen = _by_lengths(b, b.Slice(mask, b.ints(0), sizes, b.ints(0)), keys)
    if count == 2 * batch:
        starts = b.Slice(mask, sizes, b.ints(np.iinfo(np.int64).max), b.ints(0))
        is_begun = b.GreaterOrEqual(_places(b, keys), b.Unsqueeze(starts, b.ints(1)))
        seen = b.And(seen, is_begun)
    return _shut_out(b, seen, low, (1, 2))


def _rows_of(b: Builder, x: Projected, mask: Value, keys: Value) -> Value:
    """Of a mask of the longest text, the rows of the new tokens and the columns of all keys."""
    total = b.Shape(keys, start=2, end=3)
    first = b.ints(0) if x.past is None else b.Shape(x.past, start=3, end=4)
    starts, ends = b.Concat(first, b.ints(0), axis=0), b.Concat(total, total, axis=0)
    made: Value = b.Squeeze(b.Slice(mask, starts, ends, b.ints(2, 3)), b.ints(1))
    return made


def standard(b: Builder, node: Node, spans: Spans) -> tuple[Value | None, ...]:
    """The standard Attention."""
    s = Settings(**node.attrs)
    q, k, v, mask, past_key, past_value, nonpad = given(node, 7)
    ranked(*[x for x in node.inputs if x is not None])
    assert q is not None
    assert k is not None
    assert v is not None
    is_packed = q.tensor.rank == 3
    need(not _is_shown(node, 3), "shows its scores")
    need(s.softmax_precision in (None, F32.onnx), "a softmax in another type")
    need(q.tensor.dtype in KERNELS and v.tensor.dtype is q.tensor.dtype, "no kernel of this type")
    if is_packed:
        heads = (s.q_num_heads, s.kv_num_heads, s.kv_num_heads)
        q, k, v = (_heads_first(b, x, n or 1) for x, n in zip((q, k, v), heads, strict=True))
    present = _appended(b, k, v, (past_key, past_value))
    has_past, windows = past_key is not None, (s.left_window_size, s.right_window_size)
    is_placed = bool(s.is_causal) or max(windows) >= 0
    if has_past and is_placed:
        need(k.tensor.dims[2] == q.tensor.dims[2], "rows do not stand where new keys do")
    span = None if nonpad is None else b.Spans(nonpad, None, q, k, domain=INTERNAL)
    y = b.Attention(
        *(q, *present, _standard_mask(b, mask, present[0]), span),
        domain=INTERNAL,
        scale=1 / math.sqrt(known(q.tensor.dims[3]) or 1) if s.scale is None else s.scale,
        zeroes=UNSEEN,
        rows_first=int(is_packed),
        group=known(q.tensor.dims[1]) // known(k.tensor.dims[1]),
        before=windows[0],
        behind=0 if s.is_causal else windows[1],
        at_end=int(has_past),
        softcap=max(s.softcap, 0.0),
    )
    if is_packed:
        y = joined(b, y, known(q.tensor.dims[1]) * known(v.tensor.dims[3]))
    if not _is_shown(node, 1) and not _is_shown(node, 2):
        return (y,)
    return y, *_shown(b, present)


def _standard_mask(b: Builder, mask: Value | None, keys: Value) -> Value | None:
    """What the mask adds to the scores, in their type."""
    if mask is None:
        return None
    need_columns(b, mask, keys)
    if mask.tensor.dtype is BOOL:
        made: Value = b.Where(mask, b.const(0.0, F32), b.const(-math.inf, F32))
        return made
    need(mask.tensor.dtype in KERNELS, "no kernel for a mask of this type")
    return wide_value(b, mask)
