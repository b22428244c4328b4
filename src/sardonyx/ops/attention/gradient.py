"""Gradients of attention, by decomposition: scores and softmax are recomputed."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.errors import NotImplemented
from sardonyx.graph.dim import same
from sardonyx.graph.dtype import BOOL, F32, F64
from sardonyx.graph.graph import Graph, Node, Value, input_of, optional_input
from sardonyx.graph.op import MICROSOFT
from sardonyx.ops.attention.dot_product import BIASED, CAPPED, PROBABILITIES, RAW
from sardonyx.ops.attention.heads import precision
from sardonyx.ops.gather.gradient import scatter_add
from sardonyx.ops.gradient_rules import GradientBuilder, decompose, gradient, ranked


@frozen
class ScoreParameters:
    """How scores are computed from products of queries and keys."""

    scale: float
    softcap: float = 0.0
    window: tuple[int, int] = (-1, -1)  # keys seen before and after a query's position; -1: all
    visible: Value | None = None  # further keys that are not seen, as bools
    bias: Value | None = None  # added to the scores
    sink: Value | None = None  # per head, the score of a key without a value
    past: Value | None = None  # cached keys, which are before the queries
    counts: Value | None = (
        None  # by batch, how many keys are used; the queries are the last of them
    )


@decompose("Attention")
def _(b: GradientBuilder, node: Node) -> list[Value | None]:
    q, k, v, mask, past_key, past_value, counts = (optional_input(node, i) for i in range(7))
    assert q is not None
    assert k is not None
    assert v is not None
    attrs, is_packed = node.attrs, ranked(q).rank == 3
    if is_packed:
        q = split_heads(b, q, attrs["q_num_heads"])
        k, v = (split_heads(b, x, attrs["kv_num_heads"]) for x in (k, v))
    if past_key is not None and past_value is not None:
        k, v = b.Concat(past_key, k, axis=2), b.Concat(past_value, v, axis=2)
    if mask is not None and same(ranked(mask).dims[-1], ranked(k).dims[2]) is not True:
        mask = _padded_mask(b, mask, k)
    is_bool = mask is not None and mask.tensor.dtype is BOOL
    right = 0 if attrs["is_causal"] else attrs["right_window_size"]
    how = ScoreParameters(
        scale_of(q, attrs["scale"]),
        attrs["softcap"],
        (attrs["left_window_size"], right),
        visible=mask if is_bool else None,
        bias=None if is_bool else mask,
        past=past_key,
        counts=counts,
    )
    out, stages = _attend(b, q, k, v, how)
    out = merge_heads(b, out) if is_packed else out
    return [out, k, v, stages[attrs["qk_matmul_output_mode"]]]


def attend(b: GradientBuilder, q: Value, k: Value, v: Value, how: ScoreParameters) -> Value:
    """Return softmax(scores) v of heads [batch, heads, rows, width]; q may have more of them."""
    return _attend(b, q, k, v, how)[0]


def _attend(
    b: GradientBuilder, q: Value, k: Value, v: Value, how: ScoreParameters
) -> tuple[Value, dict[int, Value]]:
    """Return the output of attention, and the scores by qk_matmul_output_mode."""
    group = _group_size(q, k)
    keys, values = _repeated(b, k, group), _repeated(b, v, group)
    raw = capped = b.Mul(b.MatMul(q, b.transposed(keys)), how.scale)
    if how.softcap > 0:
        capped = b.Mul(b.Tanh(b.Mul(raw, 1 / how.softcap)), how.softcap)
    biased, weights = _weights(b, capped, how)
    stages = {RAW: raw, CAPPED: capped, BIASED: biased, PROBABILITIES: weights}
    return b.MatMul(weights, values), stages


def flex_attention(
    b: GradientBuilder, node: Node, inline: Callable[[Graph, Value], Value]
) -> Value:
    """Return FlexAttention by other ops; `inline` adds the nodes of a modifier for its operand."""
    q, k, v = (input_of(node, i) for i in range(3))
    group, dtype = _group_size(q, k), q.tensor.dtype
    number = node.attrs["softmax_precision"]
    wide = precision(number) if number is not None else F64 if dtype is F64 else F32
    factor = scale_of(q, node.attrs["scale"])
    weights = b.cast(b.Mul(b.MatMul(q, b.transposed(_repeated(b, k, group))), factor), wide)
    if (score_mod := node.attrs["score_mod"]) is not None:
        weights = inline(score_mod, weights)
    weights = b.Softmax(weights, axis=-1)
    if (prob_mod := node.attrs["prob_mod"]) is not None:
        weights = inline(prob_mod, weights)
    return b.cast(b.MatMul(weights, b.cast(_repeated(b, v, group), wide)), dtype)


def merge_heads(b: GradientBuilder, x: Value) -> Value:
    """[batch, heads, rows, width] as [batch, rows, heads * width]."""
    return b.Reshape(b.Transpose(x, perm=(0, 2, 1, 3)), b.ints(0, 0, -1))


def split_heads(b: GradientBuilder, x: Value, count: int) -> Value:
    """[batch, rows, heads * width] as [batch, heads, rows, width]."""
    return b.Transpose(b.Reshape(x, b.ints(0, 0, count, -1)), perm=(0, 2, 1, 3))


def scale_of(q: Value, scale: float | None) -> float:
    """Return the factor of the scores: the attribute, or 1 / sqrt(width of a head)."""
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


def _weights(b: GradientBuilder, scores: Value, how: ScoreParameters) -> tuple[Value, Value]:
    """Return the masked scores, and their softmax: zeros for a query that sees no key."""
    dtype = scores.tensor.dtype
    # Finite, and half the range, so that adding a score to it cannot overflow to -inf and NaN.
    lowest = b.const(float(np.finfo(np.float32).min) / 2 if dtype.bits > 16 else -3e4, dtype)
    visible = _both(b, _visible(b, scores, how), how.visible)
    if how.bias is not None:
        bias = b.cast(how.bias, dtype)
        scores = b.Add(scores, b.Max(bias, lowest))
        visible = _both(b, visible, b.Greater(bias, lowest))
    seen = scores if visible is None else b.Where(visible, scores, lowest)
    weights = b.Softmax(seen, axis=-1) if how.sink is None else _sink_softmax(b, seen, how.sink)
    return seen, weights if visible is None else b.where(visible, weights)


def _padded_mask(b: GradientBuilder, mask: Value, k: Value) -> Value:
    """Return a mask that hides the keys after its last column."""
    missing = b.Sub(b.element(b.shape(k), 2), b.element(b.shape(mask), ranked(mask).rank - 1))
    hidden = b.const(False if mask.tensor.dtype is BOOL else -np.inf, mask.tensor.dtype)
    return b.Pad(mask, b.Concat(b.ints(0), missing, axis=0), hidden, b.ints(-1))


def _both(b: GradientBuilder, one: Value | None, other: Value | None) -> Value | None:
    """Return which keys are visible by two conditions; None for all."""
    if one is None or other is None:
        return other if one is None else one
    return b.And(one, other)


def _sink_softmax(b: GradientBuilder, scores: Value, sink: Value) -> Value:
    """Softmax with one more score per head in the denominator."""
    column = b.Concat(b.Slice(b.shape(scores), b.ints(0), b.ints(3)), b.ints(1), axis=0)
    per_head = b.Reshape(b.cast(sink, scores.tensor.dtype), b.ints(1, -1, 1, 1))
    wide = b.Concat(scores, b.Expand(per_head, column), axis=-1)
    return b.Slice(b.Softmax(wide, axis=-1), b.ints(0), b.ints(-1), b.ints(3))


def _visible(b: GradientBuilder, scores: Value, how: ScoreParameters) -> Value | None:
    """Return which keys each query may see by position; None for all."""
    left, right = how.window
    if left < 0 and right < 0 and how.counts is None:
        return None
    ends = [b.length(scores, i) for i in (2, 3)]
    rows, keys = (b.arange(end) for end in ends)
    row, visible = b.Unsqueeze(rows, b.ints(1)), None
    if how.past is not None:
        row = b.Add(row, b.element(b.shape(how.past), 2))
    if how.counts is not None:
        counts = b.Reshape(how.counts, b.ints(-1, 1, 1, 1))
        row, visible = b.Add(row, b.Sub(counts, ends[0])), b.Less(keys, counts)
    distance = b.Sub(keys, row)
    if right >= 0:
        visible = _both(b, visible, b.LessOrEqual(distance, right))
    if left >= 0:
        visible = _both(b, visible, b.GreaterOrEqual(distance, -left))
    return visible


@gradient("RotaryEmbedding")
def _(b: GradientBuilder, node: Node, dy: Value) -> list[Value | None]:
    """The rotation by the opposite angles; cosines and sines have sums over the heads."""
    x, cos, sin = (input_of(node, i) for i in range(3))
    ids = optional_input(node, 3)
    dx = b.RotaryEmbedding(dy, cos, b.Neg(sin), ids, **node.attrs)
    if not b.wants(cos) and not b.wants(sin):
        return [dx]
    (p, q), (dp, dq) = (_feature_pairs(b, node, v) for v in (x, dy))
    products = b.Add(b.Mul(p, dp), b.Mul(q, dq)), b.Sub(b.Mul(p, dq), b.Mul(q, dp))
    grads = [b.ReduceSum(v, b.ints(1), keepdims=0) for v in products]
    if ids is not None:
        grads = [scatter_add(b, cos, ids, v, 0) for v in grads]
    return [dx, *grads]


def _feature_pairs(b: GradientBuilder, node: Node, x: Value) -> list[Value]:
    """Return the features that RotaryEmbedding rotates with each other, [batch, heads, rows, n]."""
    tokens = x if ranked(x).rank == 4 else split_heads(b, x, node.attrs["num_heads"])
    cos = input_of(node, 1)
    half, last = b.element(b.shape(cos), ranked(cos).rank - 1), b.ints(3)
    whole = b.Mul(half, 2)
    if node.attrs["interleaved"]:
        return [b.Slice(tokens, b.ints(i), whole, last, b.ints(2)) for i in (0, 1)]
    return [b.Slice(tokens, b.ints(0), half, last), b.Slice(tokens, half, whole, last)]


@gradient("RotaryEmbedding", domain=MICROSOFT)
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    ids, cos, sin = (input_of(node, i) for i in (1, 2, 3))
    return b.RotaryEmbedding(dy, ids, cos, b.Neg(sin), domain=MICROSOFT, **node.attrs)
