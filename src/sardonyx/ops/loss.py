"""NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, InvalidGraph, ShapeError
from sardonyx.graph.dtype import FLOATS, INDEX
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op, optional
from sardonyx.ops.arrays import Array, in_wide
from sardonyx.ops.builder import Builder
from sardonyx.ops.decomposition import Outputs, in_training
from sardonyx.ops.normalize.standard import widened
from sardonyx.ops.softmax.standard import log_softmax

_ATTRS: Final = {"ignore_index": optional("int"), "reduction": b"mean"}
_TYPES: Final = {"T": FLOATS, "I": INDEX}
NEGATIVE_LABEL: Final = 2**31 - 1  # what labels below 0 become: a class that no model has


def _loss_fact(
    g: Scope, scores: Fact, labels: Fact, weights: Fact | None, *, reduction: bytes, **_: Any
) -> Fact:
    """Infer the loss of scores (N, C, ...), labels (N, ...) and weights (C)."""
    if reduction not in (b"none", b"sum", b"mean"):
        shown = reduction.decode(errors="replace")
        raise InvalidGraph(f"reduction must be none, sum or mean, got {shown}")
    if scores.rank < 2 or labels.rank != scores.rank - 1:
        raise ShapeError(
            f"scores must be (N, C, ...) and labels (N, ...), got {scores} and {labels}"
        )
    pairs = zip((scores.dims[0], *scores.dims[2:]), labels.dims, strict=True)
    shape = tuple(g.equal(a, b, "scores and labels differ") for a, b in pairs)
    if weights is not None:
        if weights.rank != 1:
            raise ShapeError(f"weights must be one number per class, got {weights}")
        g.equal(weights.dims[0], scores.dims[1], "there is one weight per class")
    return scores.shaped(shape if reduction == b"none" else ())


def _loss(log_prob: Array, labels: Array, weights: Array | None, **attrs: Any) -> Any:
    """Return the negative log likelihood of the labels, weighted and reduced."""
    ignore_index, reduction = attrs["ignore_index"], attrs["reduction"]
    # Ignored labels may be out of range; they count neither in the loss nor in its mean.
    ignored = np.zeros(labels.shape, bool) if ignore_index is None else labels == ignore_index
    classes = log_prob.shape[1]
    wrong = labels[~ignored & ((labels < 0) | (labels >= classes))]
    if wrong.size:
        raise InvalidArgument(f"the label {wrong[0]} is outside [0, {classes})")
    index = np.where(ignored, 0, labels).astype(np.int64)
    picked = np.zeros(labels.shape, log_prob.dtype)
    weight = (~ignored).astype(log_prob.dtype)
    if classes:  # without classes every label is ignored
        picked = np.take_along_axis(log_prob, index[:, None], 1)[:, 0]
        weight = weight if weights is None else np.where(ignored, 0, weights[index])
    loss = np.where(ignored, 0, -picked * weight)
    if reduction == b"none":
        return loss.astype(log_prob.dtype)
    # "mean" divides by the sum of the weights, not by the number of labels.
    total = np.sum(loss, dtype=np.float64)
    if reduction == b"mean":
        total = total / np.sum(weight, dtype=np.float64)
    return np.asarray(total, log_prob.dtype)


nll = Op(
    "NegativeLogLikelihoodLoss", 22, "x:T target:I weight:T?", "loss:T", attrs=_ATTRS, types=_TYPES
)
nll.infer(_loss_fact)
nll.reference(in_wide(_loss))

_SCORES: Final = "scores:T labels:I weights:T?"
cross_entropy = Op(
    "SoftmaxCrossEntropyLoss", 13, _SCORES, "output:T log_prob:T?", attrs=_ATTRS, types=_TYPES
)


@cross_entropy.infer
def _(g: Scope, scores: Fact, labels: Fact, weights: Fact | None, **attrs: Any) -> Any:
    return _loss_fact(g, scores, labels, weights, **attrs), scores.without_contents()


@cross_entropy.reference
@in_wide
def _(scores: Array, labels: Array, weights: Array | None, **attrs: Any) -> Any:
    log_prob = log_softmax(scores, axis=1)
    return _loss(log_prob, labels, weights, **attrs), log_prob


@cross_entropy.decompose(when=in_training)
def _(b: Builder, node: Node) -> Outputs:
    scores = input_of(node, 0)
    log_prob = b.LogSoftmax(widened(b, scores), axis=1)
    return _likelihood(b, node, log_prob), b.cast(log_prob, scores.tensor.dtype)


@nll.decompose(when=in_training)
def _(b: Builder, node: Node) -> Outputs:
    return (_likelihood(b, node, widened(b, input_of(node, 0))),)


def _likelihood(b: Builder, node: Node, log_prob: Value) -> Value:
    """The negative log likelihood of the labels, weighted and reduced; computed in float32."""
    labels, weights = input_of(node, 1), optional_input(node, 2)
    ignored, reduction = node.attrs["ignore_index"], node.attrs["reduction"]
    keep = None if ignored is None else b.Not(b.Equal(labels, ignored))
    # A label below 0 is a mistake, and not counted from the end.
    labels = b.Where(b.Less(labels, 0), b.const(NEGATIVE_LABEL, labels.tensor.dtype), labels)
    if keep is not None:
        labels = b.Where(keep, labels, b.const(0, labels.tensor.dtype))
    column = b.ints(1)
    picked = b.Squeeze(b.GatherElements(log_prob, b.Unsqueeze(labels, column), axis=1), column)
    weight = None if weights is None else b.Gather(widened(b, weights), labels)
    if keep is not None:
        # Replaced, not multiplied by 0: the log probability may be -inf.
        zero = b.const(0, log_prob.tensor.dtype)
        picked = b.Where(keep, picked, zero)
        weight = b.cast(keep, zero.tensor.dtype) if weight is None else b.Where(keep, weight, zero)
    loss: Value = b.Neg(picked if weights is None else b.Mul(picked, weight))
    if reduction == b"mean" and weight is None:
        loss = b.ReduceMean(loss, keepdims=0)
    elif reduction != b"none":
        loss = b.ReduceSum(loss, keepdims=0)
    if reduction == b"mean" and weight is not None:
        loss = b.Div(loss, b.ReduceSum(weight, keepdims=0))
    return b.cast(loss, input_of(node, 0).tensor.dtype)


OPS: Final = (nll, cross_entropy)
