"""Attention as one step: what lowering makes of a product, a softmax and a product."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import ShapeError
from sardonyx.graph.dim import Shape
from sardonyx.graph.dtype import F32
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.ops.declare import INTERNAL, Op
from sardonyx.ops.rules import Array, broadcast_shapes

attention: Final = Op(
    "Attention",
    1,
    "q:T k:T v:T mask:T?",
    "y:T",
    attrs={
        "scale": 1.0,
        "zeroes": 0,  # a row of the softmax that is NaN counts as zeros
        "rows_first": 0,  # the output is [.., rows, heads, width], not [.., heads, rows, width]
    },
    types={"T": frozenset((F32,))},
    domain=INTERNAL,
)


def _turned(shape: Shape) -> Shape:
    return (*shape[:-3], shape[-2], shape[-3], shape[-1])


@attention.infer
def _(g: Scope, q: Fact, k: Fact, v: Fact, mask: Fact | None, **attrs: Any) -> Fact:
    if min(q.rank, k.rank, v.rank) < 2:
        raise ShapeError(f"q, k and v are stacks of matrices, not {q}, {k} and {v}")
    g.equal(q.dims[-1], k.dims[-1], "rows of q and k have different lengths")
    g.equal(k.dims[-2], v.dims[-2], "k and v have different numbers of rows")
    lead = broadcast_shapes(g, q.dims[:-2], k.dims[:-2], v.dims[:-2])
    scores = (*lead, q.dims[-2], k.dims[-2])
    if mask is not None and broadcast_shapes(g, scores, mask.dims) != scores:
        raise ShapeError(f"the mask {mask} does not broadcast to the scores {scores}")
    y = (*lead, q.dims[-2], v.dims[-1])
    return q.shaped(_turned(y) if attrs["rows_first"] else y)


@attention.reference
def _(q: Array, k: Array, v: Array, mask: Array | None = None, **attrs: Any) -> Any:
    """softmax(scale * q k^T + mask) v."""
    with np.errstate(all="ignore"):
        scores = np.matmul(q, k.swapaxes(-1, -2)) * np.float32(attrs["scale"])
        if mask is not None:
            scores = scores + mask
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-np.inf))
        weights = weights / weights.sum(axis=-1, keepdims=True)
        if attrs["zeroes"]:
            weights = np.where(np.isnan(weights), np.float32(0), weights)
        y = np.matmul(weights, v)
    return np.ascontiguousarray(y.swapaxes(-2, -3)) if attrs["rows_first"] else y


OPS: Final = (attention,)
