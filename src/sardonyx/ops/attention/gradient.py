"""The gradient of Attention, by decomposition: scores and softmax are recomputed."""

from __future__ import annotations

import math

import numpy as np

from sardonyx.errors import NotImplemented
from sardonyx.graph.dim import same
from sardonyx.graph.dtype import BOOL
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.ops.gradients import GradientBuilder, decompose, ranked


@decompose("Attention")
def _(b: GradientBuilder, node: Node) -> list[Value | None]:
    q, k, v = (input_of(node, i) for i in range(3))
    attrs, is_packed = node.attrs, ranked(q).rank == 3
    for slot, name in ((4, "past_key"), (6, "nonpad_kv_seqlen")):
        if optional_input(node, slot) is not None:
            raise NotImplemented(
                f"an Attention with {name} has no gradient", hint="train without a cache"
            )
    if is_packed:
        q = _heads(b, q, attrs["q_num_heads"])
        k, v = (_heads(b, x, attrs["kv_num_heads"]) for x in (k, v))
    group = _group_size(q, k)
    keys, values = _repeated(b, k, group), _repeated(b, v, group)
    scores = b.Mul(b.MatMul(q, b.transposed(keys)), _scale(q, attrs["scale"]))
    if attrs["softcap"] > 0:
        cap = attrs["softcap"]
        scores = b.Mul(b.Tanh(b.Mul(scores, 1 / cap)), cap)
    out = b.MatMul(_weights(b, node, scores), values)
    if is_packed:
        out = b.Reshape(b.Transpose(out, perm=(0, 2, 1, 3)), b.ints(0, 0, -1))
    return [out, k, v, None]


def _heads(b: GradientBuilder, x: Value, count: int) -> Value:
    """[batch, rows, heads * width] as [batch, heads, rows, width]."""
    return b.Transpose(b.Reshape(x, b.ints(0, 0, count, -1)), perm=(0, 2, 1, 3))


def _scale(q: Value, scale: float | None) -> float:
    width = ranked(q).dims[3]
    if scale is not None:
        return scale
    if not isinstance(width, int):
        raise NotImplemented("the width of the heads is not known", hint="give the attribute scale")
    return 1 / math.sqrt(width or 1)


def _group_size(q: Value, k: Value) -> int:
    """Return the number of heads of Q per head of K."""
    q_heads, kv_heads = ranked(q).dims[1], ranked(k).dims[1]
    if same(q_heads, kv_heads) is True:
        return 1
    if not isinstance(q_heads, int) or not isinstance(kv_heads, int):
        raise NotImplemented("the number of heads is not known", hint="give the inputs fixed heads")
    return q_heads // kv_heads


def _repeated(b: GradientBuilder, x: Value, times: int) -> Value:
    """Repeat each head `times` times, adjacent."""
    if times == 1:
        return x
    sizes = b.shape(x)
    batch, heads = (b.Slice(sizes, b.ints(i), b.ints(i + 1)) for i in range(2))
    rest = b.Slice(sizes, b.ints(2), b.ints(4))
    grouped_shape = b.Concat(batch, heads, b.ints(times), rest, axis=0)
    # [batch, heads, 1, rows, width] is broadcast over the group and flattened to heads again.
    copies = b.Expand(b.Unsqueeze(x, b.ints(2)), grouped_shape)
    return b.Reshape(copies, b.Concat(batch, b.Mul(heads, times), rest, axis=0))


def _weights(b: GradientBuilder, node: Node, scores: Value) -> Value:
    """Return the softmax over the visible keys; zeros for a query that sees none."""
    dtype = scores.tensor.dtype
    # Finite, and half the range, so that adding a score to it cannot overflow to -inf and NaN.
    lowest = b.const(float(np.finfo(np.float32).min) / 2 if dtype.bits > 16 else -3e4, dtype)
    visible, mask = _visible(b, node, scores), optional_input(node, 3)
    if mask is not None:
        if same(ranked(mask).dims[-1], ranked(scores).dims[-1]) is not True:
            raise NotImplemented(
                "an attn_mask with fewer columns than keys has no gradient", hint="pad the mask"
            )
        if mask.tensor.dtype is BOOL:
            visible = mask if visible is None else b.And(visible, mask)
        else:
            bias = b.cast(mask, dtype)
            scores = b.Add(scores, b.Max(bias, lowest))
            is_open = b.Greater(bias, lowest)
            visible = is_open if visible is None else b.And(visible, is_open)
    if visible is None:
        return b.Softmax(scores, axis=-1)
    return b.where(visible, b.Softmax(b.Where(visible, scores, lowest), axis=-1))


def _visible(b: GradientBuilder, node: Node, scores: Value) -> Value | None:
    """Return which keys each query may see by position; None for all."""
    attrs = node.attrs
    left, right = attrs["left_window_size"], 0 if attrs["is_causal"] else attrs["right_window_size"]
    if left < 0 and right < 0:
        return None
    ends = [
        b.Squeeze(b.Slice(b.shape(scores), b.ints(i), b.ints(i + 1)), b.ints(0)) for i in (2, 3)
    ]
    rows, keys = (b.arange(end) for end in ends)
    distance = b.Sub(keys, b.Unsqueeze(rows, b.ints(1)))
    visible = None
    if right >= 0:
        visible = b.LessOrEqual(distance, right)
    if left >= 0:
        near = b.GreaterOrEqual(distance, -left)
        visible = near if visible is None else b.And(visible, near)
    return visible
