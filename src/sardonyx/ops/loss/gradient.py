"""Gradients of the losses, by decomposition."""

from __future__ import annotations

from typing import Final

from sardonyx.graph.graph import Node, Value, given, optional
from sardonyx.ops.gradients import GradientBuilder, decompose

_INVALID_CLASS: Final = 2**31 - 1  # an index out of range, which GatherElements reports


@decompose("SoftmaxCrossEntropyLoss", replaces=lambda _: True)
def _(b: GradientBuilder, node: Node) -> list[Value | None]:
    log_prob = b.LogSoftmax(given(node, 0), axis=1)
    return [_likelihood(b, node, log_prob), log_prob]


@decompose("NegativeLogLikelihoodLoss", replaces=lambda _: True)
def _(b: GradientBuilder, node: Node) -> Value:
    return _likelihood(b, node, given(node, 0))


def _likelihood(b: GradientBuilder, node: Node, log_prob: Value) -> Value:
    """Return the negative log likelihood of the labels, weighted and reduced."""
    labels, weights = given(node, 1), optional(node, 2)
    ignored, reduction = node.attrs["ignore_index"], node.attrs["reduction"]
    dtype = log_prob.tensor.dtype
    keep = None if ignored is None else b.Not(b.Equal(labels, ignored))
    # A negative label is an error here, not an index from the end.
    labels = b.Where(b.Less(labels, 0), b.const(_INVALID_CLASS, labels.tensor.dtype), labels)
    if keep is not None:
        labels = b.Where(keep, labels, b.const(0, labels.tensor.dtype))
    column = b.ints(1)
    picked = b.Squeeze(b.GatherElements(log_prob, b.Unsqueeze(labels, column), axis=1), column)
    weight = None if weights is None else b.Gather(weights, labels)
    if keep is not None:
        weight = b.cast(keep, dtype) if weight is None else b.where(keep, weight)
    loss: Value = b.Neg(picked if weight is None else b.Mul(picked, weight))
    if reduction == b"none":
        return loss
    if reduction == b"mean" and weight is None:
        return b.ReduceMean(loss, keepdims=0)
    total: Value = b.ReduceSum(loss, keepdims=0)
    if reduction == b"mean":
        total = b.Div(total, b.ReduceSum(weight, keepdims=0))
    return total
