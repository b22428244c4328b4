"""FlexAttention: attention whose scores and probabilities are modified by user subgraphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, InvalidGraph, RuntimeException
from sardonyx.graph.dim import Shape
from sardonyx.graph.dtype import F32, F64, FLOATS, DType
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import PREVIEW, Op, optional
from sardonyx.ops.arrays import Array, wide
from sardonyx.ops.attention.heads import (
    grouped_matmul,
    precision,
    rounded,
    same_dims,
    same_rank,
    scaled_scores,
    softmax,
)
from sardonyx.ops.sizes import new_dims

Modifier = Callable[..., Any]

flex: Final = Op(
    "FlexAttention",
    1,
    "Q:T1 K:T1 V:T1",
    "Y:T1",
    domain=PREVIEW,
    attrs={
        "prob_mod": optional("graph"),
        "scale": optional("float"),
        "score_mod": optional("graph"),
        "softmax_precision": optional("int"),
    },
    types={"T1": FLOATS},
    unranked=True,
)


@flex.infer
def _(g: Scope, q: Fact, k: Fact, v: Fact, **attrs: Any) -> Fact:
    has_ranks = all(f.shape is not None for f in (q, k, v))
    scores, out = _shapes(g, q, k, v) if has_ranks else (None, new_dims(g, 4, "flex"))
    inner = Fact(_softmax_type(q.dtype, attrs["softmax_precision"]), scores)
    for name in ("score_mod", "prob_mod"):
        if attrs[name] is not None:
            _check_body(g, name, inner, g.body(attrs[name], [inner]))
    return q.shaped(out)


def _shapes(g: Scope, q: Fact, k: Fact, v: Fact) -> tuple[Shape, Shape]:
    """Return the shapes of the scores and the output."""
    same_rank(4, Q=q, K=k, V=v)
    batch, heads, rows, head = q.dims
    _, kv_heads, keys, _ = k.dims
    same_dims(g, k.dims, (batch, kv_heads, keys, head), "K")
    same_dims(g, v.dims, (batch, kv_heads, keys, v.dims[3]), "V")
    g.divides(kv_heads, heads, "the heads of K and V do not divide those of Q")
    return (batch, heads, rows, keys), (batch, heads, rows, v.dims[3])


def _softmax_type(dtype: DType, number: int | None) -> DType:
    if number is not None:
        return precision(number)
    return F64 if dtype is F64 else F32


def _check_body(g: Scope, name: str, expected: Fact, returned: list[Any]) -> None:
    types = [f.dtype for f in returned if isinstance(f, Fact)]
    if len(returned) != 1 or types != [expected.dtype]:
        raise InvalidGraph(f"{name} must return one {expected}, got {returned}")
    shape: Shape | None = returned[0].shape
    if shape is not None and expected.shape is not None:
        same_dims(g, shape, expected.dims, f"what {name} returns")


@flex.reference
def _(q: Array, k: Array, v: Array, **attrs: Any) -> Array:
    dtype = q.dtype
    try:  # ranks may have been unknown to inference
        _shapes(Scope(), *(Fact(F32, x.shape) for x in (q, k, v)))
    except InvalidGraph as error:
        raise InvalidArgument(error.what) from None
    kind = _softmax_type(F64 if dtype == np.float64 else F32, attrs["softmax_precision"]).np
    with np.errstate(all="ignore"):
        scores = scaled_scores(q, k, attrs["scale"]).astype(kind)
        scores = _modified(attrs["score_mod"], scores)
        probabilities = _modified(attrs["prob_mod"], softmax(scores, kind).astype(kind))
        # The product is computed in the softmax type and rounded once to that of Q.
        y = grouped_matmul(wide(probabilities), rounded(wide(v), kind))
        return rounded(y, kind).astype(dtype)


def _modified(body: Modifier | None, x: Array) -> Array:
    if body is None:
        return x
    result: Array = np.asarray(body(x)[0])
    if result.shape != x.shape or result.dtype != x.dtype:
        raise RuntimeException(
            f"a modifier of FlexAttention returned {result.dtype}{list(result.shape)} "
            f"for {x.dtype}{list(x.shape)}: it must keep both"
        )
    return result


OPS: Final = (flex,)
