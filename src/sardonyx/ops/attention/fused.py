"""The internal fused attention (flash attention on the CPU) and the mask it reads."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import ShapeError
from sardonyx.graph.dim import Shape
from sardonyx.graph.dtype import BF16, F16, F32, I32, by_onnx
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import internal_op, required
from sardonyx.ops.arrays import Array, as_bf16, wide
from sardonyx.ops.attention.heads import check_mask, sink_softmax, softcapped, visible_keys
from sardonyx.ops.inference import broadcast_shapes

_FLOATS: Final = frozenset((F32, F16, BF16))
KEEP_NAN, ZERO_NAN, ZERO_FULLY_MASKED = range(3)  # values of `nan_rows`

attention: Final = internal_op(
    "Attention",
    "q:T k:T v:T mask:F? spans:I? sink:F?",
    "y:T",
    attrs={
        "scale": 1.0,
        "nan_rows": KEEP_NAN,  # NaN stays, becomes 0, or becomes 0 only in fully masked rows
        "rows_first": 0,  # the output is [.., rows, heads, width], not [.., heads, rows, width]
        "group": 1,  # query heads per key-value head (grouped-query attention)
        "window_left": -1,  # window: keys before its own position that a row sees; -1 for all
        "window_right": -1,  # window: keys after its own position; 0 is causal, -1 for all
        "bottom_right": 0,  # causal alignment: the last query is at the last key
        "softcap": 0.0,
        "smooth": 0,  # smooth softmax: one more key with score 0 and value 0
        "bf16": 0,  # operands of both matrix products are rounded to bfloat16
        "is_settled": 0,  # the mask is the output of a `Mask` node
    },
    types={"T": _FLOATS, "F": _FLOATS, "I": frozenset((I32,))},
)


def _rows_first(shape: Shape) -> Shape:
    return (*shape[:-3], shape[-2], shape[-3], shape[-1])


@attention.infer
def _(g: Scope, q: Fact, k: Fact, v: Fact, mask: Fact | None, *_: Any, **attrs: Any) -> Fact:
    if min(q.rank, k.rank, v.rank) < 2:
        raise ShapeError(f"q, k and v must be stacks of matrices, got {q}, {k} and {v}")
    g.equal(q.dims[-1], k.dims[-1], "rows of q and k have different lengths")
    g.equal(k.dims[-2], v.dims[-2], "k and v have different numbers of rows")
    lead = q.dims[:-2]
    if attrs["group"] == 1:
        lead = broadcast_shapes(g, lead, k.dims[:-2], v.dims[:-2])
    check_mask(g, mask, (*lead, q.dims[-2], k.dims[-2]))
    y = (*lead, q.dims[-2], v.dims[-1])
    return q.shaped(_rows_first(y) if attrs["rows_first"] else y)


def _visible(shape: tuple[int, ...], spans: Array | None, attrs: dict[str, Any]) -> Array:
    """Return which keys each row of the scores sees by position, broadcast to the scores."""
    rows, keys = shape[-2:]
    first = np.array([keys - rows if attrs["bottom_right"] else 0])
    end = np.array([keys])
    if spans is not None:
        first, end = spans[:, 0], np.minimum(spans[:, 1], keys)
    window = attrs["window_left"], attrs["window_right"]
    visible = visible_keys(first, end, (rows, keys), window)
    if len(shape) == 2:
        return np.asarray(visible[0])
    return np.expand_dims(visible, tuple(range(1, len(shape) - 2)))


@attention.reference
def _(*inputs: Any, **attrs: Any) -> Any:
    """softmax(scale * q k^T + mask) v over the keys that each row sees.

    The attention sink and the smooth softmax add exp(sink) or exp(0) to the softmax's denominator.
    """
    q, k, v, mask, spans, sink = inputs
    dtype, group = q.dtype, attrs["group"]
    q, k, v = wide(q), wide(k), wide(v)
    if group > 1:
        k, v = (np.repeat(x, group, axis=-3) for x in (k, v))
    exact = attrs["bf16"] == 0
    with np.errstate(all="ignore"):
        if not exact:
            q, k, v = as_bf16(q), as_bf16(k), as_bf16(v)
        scores = np.matmul(q, k.swapaxes(-1, -2)) * q.dtype.type(attrs["scale"])
        scores = softcapped(scores, attrs["softcap"])
        if mask is not None:
            scores = scores + mask
        scores = np.where(_visible(scores.shape, spans, attrs), scores, -np.inf).astype(q.dtype)
        smooth = 0.0 if attrs["smooth"] else -np.inf
        weights, is_blind = sink_softmax(scores, smooth if sink is None else sink[:, None, None])
        if attrs["nan_rows"]:
            is_blind = np.isnan(weights) if attrs["nan_rows"] == ZERO_NAN else is_blind
            weights = np.where(is_blind, np.float32(0), weights)
        y = np.matmul(weights if exact else as_bf16(weights), v).astype(dtype)
    return np.ascontiguousarray(y.swapaxes(-2, -3)) if attrs["rows_first"] else y


mask_op: Final = internal_op(
    "Mask",
    "x:F",
    "y:T",
    attrs={"to": required("int"), "masked_to_nan": 1},
    types={"F": _FLOATS, "T": _FLOATS},
)


@mask_op.infer
def _(g: Scope, x: Fact, *, to: int, masked_to_nan: int) -> Fact:
    dtype = by_onnx(to)
    assert dtype is not None
    return Fact(dtype, x.shape)


@mask_op.reference
def _(x: Array, *, to: int, masked_to_nan: int) -> Array:
    """Convert a mask to the queries' type, clamped to its range so that only -inf stays -inf.

    With `masked_to_nan`, a row that masks out every key becomes NaN, as its softmax would.
    """
    dtype = by_onnx(to)
    assert dtype is not None
    rows = wide(x)
    if not rows.shape or not rows.shape[-1]:
        return rows.astype(dtype.np)
    import ml_dtypes  # slow to import, and only this reference needs it

    least = np.float32(ml_dtypes.finfo(dtype.np).min)  # type: ignore[no-untyped-call]
    clamped = np.where(np.isneginf(rows), rows, np.maximum(rows, least))
    is_blind = np.isneginf(rows).all(axis=-1, keepdims=True)
    with np.errstate(all="ignore"):
        return np.where(is_blind & bool(masked_to_nan), np.float32(np.nan), clamped).astype(
            dtype.np
        )


OPS: Final = (attention, mask_op)
