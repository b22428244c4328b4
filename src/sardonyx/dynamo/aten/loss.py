"""Losses and their gradients. Losses that are elementwise formulas are decomposed by torch."""

from __future__ import annotations

from typing import Final

import torch

from sardonyx.dynamo.aten.shape import non_negative, ranked_as
from sardonyx.dynamo.aten_builder import AtenBuilder
from sardonyx.dynamo.table import lowers
from sardonyx.graph.dtype import I64
from sardonyx.graph.graph import Value

NONE: Final = 0  # torch's numbers of the reductions; 2 is the sum
MEAN: Final = 1


def _picked(b: AtenBuilder, target: Value, ignore: int) -> tuple[Value, Value]:
    """Return which targets count, and the targets with the ignored ones replaced by 0."""
    counts = b.Not(b.Equal(target, b.operand(ignore, torch.int64)))
    return counts, b.Where(counts, target, b.const(0, I64))


@lowers("nll_loss_forward.default", "nll_loss2d_forward.default")
def _(
    b: AtenBuilder, x: Value, target: Value, weight: Value | None, reduction: int, ignore: int
) -> tuple[Value, Value]:
    axis = 0 if x.tensor.rank == 1 else 1
    dtype = x.tensor.dtype
    counts, safe = _picked(b, b.cast(target, I64), ignore)
    safe = ranked_as(b, non_negative(b, safe, x, axis), safe)
    column = b.GatherElements(x, b.Unsqueeze(safe, b.ints(axis)), axis=axis)
    chosen = b.wide(b.Neg(b.Squeeze(column, b.ints(axis))))
    scale = b.cast(counts, chosen.tensor.dtype)
    if weight is not None:
        scale = b.Mul(scale, b.wide(b.Gather(weight, safe)))
    # A Where, not only the product: an ignored target contributes 0 even where x is infinite.
    losses = b.Where(counts, b.Mul(chosen, scale), b.const(0, chosen.tensor.dtype))
    if reduction == NONE:
        return b.cast(losses, dtype), b.const(0, dtype)
    total = b.ReduceSum(scale, keepdims=0)
    loss = b.ReduceSum(losses, keepdims=0)
    loss = b.Div(loss, total) if reduction == MEAN else loss
    return b.cast(loss, dtype), b.cast(total, dtype)


@lowers("nll_loss_backward.default", "nll_loss2d_backward.default")
def _(
    b: AtenBuilder,
    dy: Value,
    x: Value,
    target: Value,
    weight: Value | None,
    reduction: int,
    ignore: int,
    total: Value,
) -> Value:
    axis = 0 if x.tensor.rank == 1 else 1
    dtype = x.tensor.dtype
    counts, safe = _picked(b, b.cast(target, I64), ignore)
    if reduction == MEAN:
        dy = b.Div(dy, total)
    grads = b.Neg(dy)
    if weight is not None:
        grads = b.Mul(grads, b.Gather(weight, safe))
    # A Where, not a product: without any target that counts, dy / total is NaN.
    grads = b.Where(counts, grads, b.const(0, dtype))
    zeros = b.Expand(b.const(0, dtype), b.Shape(x))
    return b.ScatterElements(
        zeros, b.Unsqueeze(safe, b.ints(axis)), b.Unsqueeze(grads, b.ints(axis)), axis=axis
    )
