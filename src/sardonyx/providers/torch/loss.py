"""Losses of classifiers."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from sardonyx.graph.dtype import I32, I64
from sardonyx.providers.torch.kernel import REALS, TorchKernel, TorchKernels
from sardonyx.providers.torch.precision import wide

_TYPES: Final = REALS | {I32, I64}


def _nll(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int | None,
    reduction: bytes,
) -> Tensor:
    return _loss(wide(x), target, weight, ignore_index, reduction).to(x.dtype)


def _cross_entropy(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None = None,
    *,
    ignore_index: int | None,
    reduction: bytes,
) -> tuple[Tensor, Tensor]:
    log_prob = torch.log_softmax(wide(scores), 1)
    loss = _loss(log_prob, labels, weights, ignore_index, reduction)
    return loss.to(scores.dtype), log_prob.to(scores.dtype)


def _loss(
    log_prob: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    ignore_index: int | None,
    reduction: bytes,
) -> Tensor:
    """The negative log likelihood of the labels, weighted and reduced."""
    classes = log_prob.shape[1]
    # A label that is no class would abort everything on a device: it counts as the nearest one.
    index = labels.long().clamp(0, max(classes - 1, 0))
    picked = torch.zeros_like(labels, dtype=log_prob.dtype)
    weight = torch.ones_like(picked)
    if classes:  # without classes every label is ignored
        picked = torch.gather(log_prob, 1, index.unsqueeze(1)).squeeze(1)
        weight = weight if weights is None else wide(weights)[index]
    loss = -picked * weight
    if ignore_index is not None:
        is_ignored = labels == ignore_index
        loss, weight = loss.masked_fill(is_ignored, 0), weight.masked_fill(is_ignored, 0)
    if reduction == b"none":
        return loss
    return loss.sum() if reduction == b"sum" else loss.sum() / weight.sum()


KERNELS: Final[TorchKernels] = {
    ("", "NegativeLogLikelihoodLoss"): TorchKernel(_nll, _TYPES),
    ("", "SoftmaxCrossEntropyLoss"): TorchKernel(_cross_entropy, _TYPES),
}
