"""Attention as one step: what lowering makes of a product, a softmax and a product."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import ShapeError
from sardonyx.graph.dim import Shape
from sardonyx.graph.dtype import BF16, F16, F32, I32, by_onnx
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import INTERNAL, Op, required
from sardonyx.ops.arrays import Array, as_bf16, wide
from sardonyx.ops.inference import broadcast_shapes

STAYS, ZEROES, UNSEEN = range(3)  # what a row without a number for its result gives

attention: Final = Op(
    "Attention",
    1,
    "q:T k:T v:T mask:F? spans:I? sink:F?",
    "y:T",
    attrs={
        "scale": 1.0,
        "zeroes": STAYS,  # NaN; zeros; or zeros only where a row sees no key
        "rows_first": 0,  # the output is [.., rows, heads, width], not [.., heads, rows, width]
        "group": 1,  # heads of q that share one of k and v
        "before": -1,  # keys before its own place that a row sees; -1 for all
        "behind": -1,  # and behind it
        "at_end": 0,  # the last row stands at the last key; else spans, or the first at the first
        "softcap": 0.0,
        "smooth": 0,  # a key of score 0 and value 0 more
        "bf16": 0,  # both sides of both products are rounded to it
        "is_settled": 0,  # the mask is one that `Mask` made
    },
    types={
        "T": frozenset((F32, F16, BF16)),
        "F": frozenset((F32, F16, BF16)),
        "I": frozenset((I32,)),
    },
    domain=INTERNAL,
)


def _turned(shape: Shape) -> Shape:
    return (*shape[:-3], shape[-2], shape[-3], shape[-1])


@attention.infer
def _(g: Scope, *inputs: Fact | None, **attrs: Any) -> Fact:
    q, k, v, mask = inputs[:4]
    assert q is not None
    assert k is not None
    assert v is not None
    if min(q.rank, k.rank, v.rank) < 2:
        raise ShapeError(f"q, k and v are stacks of matrices, not {q}, {k} and {v}")
    g.equal(q.dims[-1], k.dims[-1], "rows of q and k have different lengths")
    g.equal(k.dims[-2], v.dims[-2], "k and v have different numbers of rows")
    lead = q.dims[:-2]
    if attrs["group"] == 1:
        lead = broadcast_shapes(g, lead, k.dims[:-2], v.dims[:-2])
    scores = (*lead, q.dims[-2], k.dims[-2])
    if mask is not None:
        if mask.rank > len(scores):
            raise ShapeError(f"the mask {mask} has more dims than the scores {scores}")
        for a, b in zip(reversed(mask.dims), reversed(scores), strict=False):
            g.equal_or_one(a, b, "the mask does not broadcast to the scores")
    y = (*lead, q.dims[-2], v.dims[-1])
    return q.shaped(_turned(y) if attrs["rows_first"] else y)


def _unseen(shape: tuple[int, ...], spans: Array | None, attrs: dict[str, Any]) -> Array:
    """Which scores are those of keys that their row does not see, by places alone."""
    rows, keys = shape[-2:]
    first = np.array([keys - rows if attrs["at_end"] else 0])
    end = np.array([keys])
    if spans is not None:
        first, end = spans[:, 0], np.minimum(spans[:, 1], keys)
    ahead = np.arange(keys) - (first[:, None] + np.arange(rows))[..., None]
    hidden = np.broadcast_to(np.arange(keys) >= end[:, None, None], ahead.shape)
    if attrs["before"] >= 0:
        hidden = hidden | (ahead < -attrs["before"])
    if attrs["behind"] >= 0:
        hidden = hidden | (ahead > attrs["behind"])
    if len(shape) == 2:
        return np.asarray(hidden[0])
    return np.asarray(np.expand_dims(hidden, tuple(range(1, len(shape) - 2))))


@attention.reference
def _(*inputs: Array | None, **attrs: Any) -> Any:
    """softmax(scale * q k^T + mask) v over the keys that each row sees."""
    q, k, v, mask, spans, sink = inputs
    assert q is not None
    assert k is not None
    assert v is not None
    dtype, group = q.dtype, attrs["group"]
    q, k, v = wide(q), wide(k), wide(v)
    if group > 1:
        k, v = (np.repeat(x, group, axis=-3) for x in (k, v))
    exact = attrs["bf16"] == 0
    with np.errstate(all="ignore"):
        if not exact:
            q, k, v = as_bf16(q), as_bf16(k), as_bf16(v)
        scores = np.matmul(q, k.swapaxes(-1, -2)) * q.dtype.type(attrs["scale"])
        if attrs["softcap"] > 0:
            scores = np.tanh(scores / np.float32(attrs["softcap"])) * np.float32(attrs["softcap"])
        if mask is not None:
            scores = scores + mask
        scores = np.where(_unseen(scores.shape, spans, attrs), -np.inf, scores).astype(q.dtype)
        top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        extra = sink[:, None, None] if sink is not None else 0.0 if attrs["smooth"] else -np.inf
        top = np.maximum(top, np.asarray(extra, q.dtype))
        weights = np.exp(scores - top)
        total = weights.sum(axis=-1, keepdims=True) + np.exp(np.asarray(extra, q.dtype) - top)
        weights = weights / total
        if attrs["zeroes"]:
            is_blind = np.isnan(weights) if attrs["zeroes"] == ZEROES else top == -np.inf
            weights = np.where(is_blind, np.float32(0), weights)
        y = np.matmul(weights if exact else as_bf16(weights), v).astype(dtype)
    return np.ascontiguousarray(y.swapaxes(-2, -3)) if attrs["rows_first"] else y


mask_op: Final = Op(
    "Mask",
    1,
    "x:F",
    "y:T",
    attrs={"to": required("int"), "marks": 1},
    types={"F": frozenset((F32, F16, BF16)), "T": frozenset((F32, F16, BF16))},
    domain=INTERNAL,
)


@mask_op.infer
def _(g: Scope, x: Fact, *, to: int, marks: int) -> Fact:
    dtype = by_onnx(to)
    assert dtype is not None
    return Fact(dtype, x.shape)


@mask_op.reference
def _(x: Array, *, to: int, marks: int) -> Array:
    """A mask in the type of the queries; a row that shuts out every key is NaN if it is to be."""
    dtype = by_onnx(to)
    assert dtype is not None
    rows = wide(x)
    if not rows.shape or not rows.shape[-1]:
        return rows.astype(dtype.np)
    import ml_dtypes  # slow to import, and only the reference of half types asks for it

    least = np.float32(ml_dtypes.finfo(dtype.np).min)  # type: ignore[no-untyped-call]
    held = np.where(np.isneginf(rows), rows, np.maximum(rows, least))
    is_blind = np.isneginf(rows).all(axis=-1, keepdims=True)
    with np.errstate(all="ignore"):
        return np.where(is_blind & bool(marks), np.float32(np.nan), held).astype(dtype.np)


OPS: Final = (attention, mask_op)
