"""Attention in training: a forward op that returns the row statistics, and its gradient.

The scores are never saved: the gradient recomputes them from the logsumexp of each row (flash
attention, Dao et al.). Dropout is a mask of the probabilities that are kept, drawn by the caller.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.graph.dim import Shape
from sardonyx.graph.dtype import BOOL, F32, F64, I64, U8
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import GRADIENT, Op
from sardonyx.ops.arrays import Array
from sardonyx.ops.attention.heads import check_mask, expect_dims, same_rank, visible_keys
from sardonyx.ops.builder import Builder
from sardonyx.ops.decomposition import known_size

_TYPES: Final = {
    "T": frozenset((F32, F64)),
    "M": frozenset((BOOL, F32, F64)),
    "K": frozenset((BOOL, U8)),
}
_ATTRS: Final[dict[str, Any]] = {
    "scale": 1.0,
    "is_causal": 0,  # query i sees keys 0 to i
    "keep_scale": 1.0,  # factor of the probabilities that dropout keeps, 1 / (1 - p)
}

# q [batch, heads, rows, depth], k [batch, kv heads, keys, depth], v [batch, kv heads, keys, width];
# mask, True or added, broadcasts to the scores [batch, heads, rows, keys], which `keep` has the
# shape of. y is [batch, rows, heads, width], as the projection after it reads it; lse is
# [batch, heads, rows], -inf for a row that sees no key, whose y is 0.
attention: Final = Op(
    "AttentionTraining",
    1,
    "q:T k:T v:T mask:M? keep:K?",
    "y:T lse:T",
    attrs=_ATTRS,
    types=_TYPES,
    domain=GRADIENT,
)
# dy has the layout of y; dq, dk and dv are [batch, rows or keys, heads, depth or width].
gradient: Final = Op(
    "AttentionGradient",
    1,
    "dy:T q:T k:T v:T y:T lse:T mask:M? keep:K?",
    "dq:T dk:T dv:T",
    attrs=_ATTRS,
    types=_TYPES,
    domain=GRADIENT,
)


def _checked(g: Scope, operands: tuple[Any, ...]) -> tuple[Shape, Shape, Shape]:
    """Check the operands of both ops; return the layouts of y, k and v with rows first."""
    q, k, v, mask, keep = operands
    same_rank(4, q=q, k=k, v=v)
    batch, heads, rows, depth = q.dims
    _, kv_heads, keys, _ = k.dims
    width = v.dims[3]
    expect_dims(g, (batch, kv_heads, keys, depth), k=k)
    expect_dims(g, (batch, kv_heads, keys, width), v=v)
    g.divides(kv_heads, heads, "the heads of k and v do not divide those of q")
    scores = (batch, heads, rows, keys)
    expect_dims(g, scores, keep=keep)
    check_mask(g, mask, scores)
    return (
        (batch, rows, heads, width),
        (batch, keys, kv_heads, depth),
        (batch, keys, kv_heads, width),
    )


@attention.infer
def _(g: Scope, *operands: Any, **attrs: Any) -> tuple[Fact, ...]:
    q: Fact = operands[0]
    return q.shaped(_checked(g, operands)[0]), q.shaped(q.dims[:3])


@gradient.infer
def _(g: Scope, dy: Fact, q: Fact, k: Fact, v: Fact, *more: Any, **_: Any) -> tuple[Fact, ...]:
    y, lse, mask, keep = more
    out, dk, dv = _checked(g, (q, k, v, mask, keep))
    expect_dims(g, out, dy=dy, y=y)
    expect_dims(g, q.dims[:3], lse=lse)
    batch, heads, rows, depth = q.dims
    return q.shaped((batch, rows, heads, depth)), q.shaped(dk), q.shaped(dv)


def _scores(q: Array, k: Array, mask: Array | None, attrs: dict[str, Any]) -> Array:
    scores = np.matmul(q, k.swapaxes(2, 3)) * q.dtype.type(attrs["scale"])
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == np.bool_ else scores + mask
    if attrs["is_causal"]:
        rows, keys = scores.shape[2:]
        visible = visible_keys(np.array([0]), np.array([keys]), (rows, keys), (-1, 0))
        scores = np.where(visible, scores, -np.inf)
    return np.asarray(scores, q.dtype)


def _repeated_heads(q: Array, *shared: Array) -> list[Array]:
    return [np.repeat(x, q.shape[1] // max(x.shape[1], 1), axis=1) for x in shared]


def _rows_first(x: Array) -> Array:
    return np.ascontiguousarray(x.swapaxes(1, 2))


def _without_infinity(x: Array) -> Array:
    """Return what is subtracted before e^x: 0 for -inf, since -inf - -inf is NaN."""
    return np.where(np.isneginf(x), x.dtype.type(0), x)


@attention.reference
def _(*operands: Any, **attrs: Any) -> tuple[Array, ...]:
    q, k, v, mask, keep = operands
    k, v = _repeated_heads(q, k, v)
    with np.errstate(all="ignore"):
        scores = _scores(q, k, mask, attrs)
        top = _without_infinity(scores.max(axis=-1, keepdims=True, initial=-np.inf))
        weights = np.exp(scores - top)
        total = weights.sum(axis=-1, keepdims=True)
        lse = (top + np.log(total)).astype(q.dtype)[..., 0]
        if keep is not None:
            weights = np.where(keep, weights * q.dtype.type(attrs["keep_scale"]), 0)
        y = np.matmul(weights, v) / np.where(total == 0, 1, total)
    return _rows_first(y.astype(q.dtype)), lse


@gradient.reference
def _(*operands: Any, **attrs: Any) -> tuple[Array, ...]:
    dy, q, k, v, y, lse, mask, keep = operands
    group = q.shape[1] // max(k.shape[1], 1)
    k, v = _repeated_heads(q, k, v)
    dy, y = dy.swapaxes(1, 2), y.swapaxes(1, 2)
    with np.errstate(all="ignore"):
        p = np.exp(_scores(q, k, mask, attrs) - _without_infinity(lse)[..., None])
        dp, dropped = np.matmul(dy, v.swapaxes(2, 3)), p
        if keep is not None:
            factor = q.dtype.type(attrs["keep_scale"])
            dp, dropped = (np.where(keep, x * factor, 0) for x in (dp, p))
        dv = np.matmul(dropped.swapaxes(2, 3), dy)
        # The gradient of softmax: ds = p (dp - sum(p dp)), where sum(p dp) = sum(dy y).
        ds = p * (dp - (dy * y).sum(axis=-1, keepdims=True)) * q.dtype.type(attrs["scale"])
        dq, dk = np.matmul(ds, k), np.matmul(ds.swapaxes(2, 3), q)
    shared = (sum(x[:, i::group] for i in range(group)) for x in (dk, dv))
    return tuple(_rows_first(x.astype(q.dtype)) for x in (dq, *shared))


def _is_not_float32(node: Node) -> bool:
    return input_of(node, 0).tensor.dtype is not F32


def _repeated(b: Builder, x: Value, group: int) -> Value:
    """[batch, heads, rows, width] with each head repeated."""
    if group == 1:
        return x
    sizes = b.Shape(x)
    batch, rest = b.element(sizes, 0), b.Slice(sizes, b.ints(2), b.ints(4))
    copies = b.Expand(b.Unsqueeze(x, b.ints(2)), b.ints(1, 1, group, 1, 1))
    return b.Reshape(copies, b.Concat(batch, b.ints(-1), rest, axis=0))


def _summed(b: Builder, x: Value, group: int) -> Value:
    """Sum over the copies of each head."""
    if group == 1:
        return x
    sizes = b.Shape(x)
    batch, rest = b.element(sizes, 0), b.Slice(sizes, b.ints(2), b.ints(4))
    grouped = b.Reshape(x, b.Concat(batch, b.ints(-1, group), rest, axis=0))
    return b.ReduceSum(grouped, b.ints(2), keepdims=0)


def _group_size(q: Value, k: Value) -> int:
    heads, kv_heads = q.tensor.dims[1], k.tensor.dims[1]
    if heads == kv_heads:
        return 1
    return known_size(heads) // known_size(kv_heads)


def _masked_scores(b: Builder, q: Value, k: Value, node: Node, mask: Value | None) -> Value:
    scores = b.Mul(b.MatMul(q, b.Transpose(k, perm=(0, 1, 3, 2))), node.attrs["scale"])
    lowest = b.const(-np.inf, scores.tensor.dtype)
    if mask is not None and mask.tensor.dtype is BOOL:
        scores = b.Where(mask, scores, lowest)
    elif mask is not None:
        scores = b.Add(scores, b.cast(mask, scores.tensor.dtype))
    if node.attrs["is_causal"]:
        square = b.Slice(b.Shape(scores), b.ints(-2), b.ints(2**62))
        scores = b.Add(scores, b.Trilu(b.Expand(lowest, square), b.const(1, I64), upper=1))
    return scores


def _kept(b: Builder, x: Value, keep: Value | None, node: Node) -> Value:
    """Apply dropout to probabilities or their gradients."""
    if keep is None:
        return x
    zero = b.const(0, x.tensor.dtype)
    return b.Where(b.cast(keep, BOOL), b.Mul(x, node.attrs["keep_scale"]), zero)


def _finite(b: Builder, x: Value) -> Value:
    dtype = x.tensor.dtype
    return b.Where(b.Equal(x, b.const(-np.inf, dtype)), b.const(0, dtype), x)


def _swapped(b: Builder, x: Value) -> Value:
    """Swap heads and rows."""
    return b.Transpose(x, perm=(0, 2, 1, 3))


@attention.decompose(when=_is_not_float32)
def _(b: Builder, node: Node) -> tuple[Value, ...]:
    q, k, v = (input_of(node, i) for i in range(3))
    group = _group_size(q, k)
    k, v = _repeated(b, k, group), _repeated(b, v, group)
    scores = _masked_scores(b, q, k, node, optional_input(node, 3))
    top = _finite(b, b.ReduceMax(scores, b.ints(-1), keepdims=1))
    weights = b.Exp(b.Sub(scores, top))
    total = b.ReduceSum(weights, b.ints(-1), keepdims=1)
    lse = b.Squeeze(b.Add(top, b.Log(total)), b.ints(-1))
    y = b.MatMul(_kept(b, weights, optional_input(node, 4), node), v)
    dtype = total.tensor.dtype
    divisor = b.Where(b.Equal(total, b.const(0, dtype)), b.const(1, dtype), total)
    return _swapped(b, b.Div(y, divisor)), lse


@gradient.decompose(when=_is_not_float32)
def _(b: Builder, node: Node) -> tuple[Value, ...]:
    dy, q, k, v, y, lse = (input_of(node, i) for i in range(6))
    mask, keep = optional_input(node, 6), optional_input(node, 7)
    group = _group_size(q, k)
    k, v = _repeated(b, k, group), _repeated(b, v, group)
    dy, y = _swapped(b, dy), _swapped(b, y)
    scores = _masked_scores(b, q, k, node, mask)
    p = b.Exp(b.Sub(scores, b.Unsqueeze(_finite(b, lse), b.ints(-1))))
    dp = _kept(b, b.MatMul(dy, b.Transpose(v, perm=(0, 1, 3, 2))), keep, node)
    dropped = _kept(b, p, keep, node)
    dv = b.MatMul(b.Transpose(dropped, perm=(0, 1, 3, 2)), dy)
    delta = b.ReduceSum(b.Mul(dy, y), b.ints(-1), keepdims=1)
    ds = b.Mul(b.Mul(p, b.Sub(dp, delta)), node.attrs["scale"])
    dq, dk = b.MatMul(ds, k), b.MatMul(b.Transpose(ds, perm=(0, 1, 3, 2)), q)
    return tuple(_swapped(b, x) for x in (dq, _summed(b, dk, group), _summed(b, dv, group)))


OPS: Final = (attention, gradient)
