"""Losses, with their options, and distances."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.dynamo.modules.case import (
    Case,
    case,
    f32,
    fixed,
    flags,
    function,
    ids,
    positive,
    signs,
    value,
)

A, B = f32(4, 5), f32(4, 5)
SCORES, LABELS = f32(4, 5), value(torch.tensor([1, 0, 4, 2]))
WEIGHT = torch.tensor([0.5, 1.0, 2.0, 0.1, 1.5])
IGNORED = value(torch.tensor([1, -100, 4, 1]))
TARGETS = (value(torch.tensor([4, 3])), value(torch.tensor([2, 3])))
_BRANCH = "it raises an error where data are negative"
_PAIRS = "torch's kernel keeps no tensor of all differences"


def reductions(name: str, kind: Any, *inputs: Any, **options: Any) -> dict[str, Case]:
    """A row per reduction."""
    return {
        f"{name} {how}": case(lambda how=how: kind(reduction=how, **options), *inputs)
        for how in ("none", "mean", "sum")
    }


def probabilities() -> torch.Tensor:
    return torch.rand(4, 5).softmax(1)


def bits() -> torch.Tensor:
    return flags(4, 5)().float()


def ctc(**options: Any) -> Case:
    """A row of CTC over 6 steps, 2 sequences and 5 symbols."""
    return case(
        lambda: nn.CTCLoss(**options),
        lambda: torch.randn(6, 2, 5).log_softmax(2).detach().requires_grad_(),
        lambda: torch.randint(1, 5, (2, 3)),
        value(torch.tensor([6, 5])),
        value(torch.tensor([3, 2])),
        uncaptured="how large its table of paths is depends on data",
    )


CASES = {
    **reductions("L1", nn.L1Loss, A, B),
    **reductions("MSE", nn.MSELoss, A, B),
    **reductions("smooth L1", nn.SmoothL1Loss, A, B, beta=0.5),
    **reductions("Huber", nn.HuberLoss, A, B, delta=0.7),
    **reductions("cross entropy", nn.CrossEntropyLoss, SCORES, LABELS),
    **reductions("weighted cross entropy", nn.CrossEntropyLoss, SCORES, IGNORED, weight=WEIGHT),
    "smoothed cross entropy": case(
        lambda: nn.CrossEntropyLoss(label_smoothing=0.1), SCORES, IGNORED
    ),
    "smoothed, weighted cross entropy": case(
        lambda: nn.CrossEntropyLoss(WEIGHT, label_smoothing=0.2, reduction="sum"), SCORES, LABELS
    ),
    "cross entropy of probabilities": case(
        lambda: nn.CrossEntropyLoss(WEIGHT, label_smoothing=0.1), SCORES, probabilities
    ),
    "cross entropy of images": case(
        lambda: nn.CrossEntropyLoss(ignore_index=2), f32(2, 5, 3, 4), ids(5, 2, 3, 4)
    ),
    "cross entropy of one row": case(nn.CrossEntropyLoss, f32(5), value(torch.tensor(3))),
    "NLL": case(lambda: nn.NLLLoss(WEIGHT, ignore_index=2), SCORES, LABELS),
    "NLL of images": case(lambda: nn.NLLLoss(reduction="none"), f32(2, 5, 3, 4), ids(5, 2, 3, 4)),
    **reductions("binary cross entropy", nn.BCELoss, positive(4, 5), bits),
    "weighted binary cross entropy": case(lambda: nn.BCELoss(WEIGHT), positive(4, 5), bits),
    **reductions("binary cross entropy of logits", nn.BCEWithLogitsLoss, A, bits),
    "weighted binary cross entropy of logits": case(
        lambda: nn.BCEWithLogitsLoss(WEIGHT, pos_weight=WEIGHT + 1), A, bits
    ),
    "KL divergence": case(lambda: nn.KLDivLoss(reduction="batchmean"), A, probabilities),
    "KL divergence of logarithms": case(
        lambda: nn.KLDivLoss(reduction="sum", log_target=True), A, fixed(4, 5)
    ),
    "Poisson": case(nn.PoissonNLLLoss, A, positive(4, 5)),
    "Poisson in full": case(
        lambda: nn.PoissonNLLLoss(log_input=False, full=True), positive(4, 5), lambda: bits() * 3
    ),
    "Gaussian": case(
        lambda: nn.GaussianNLLLoss(full=True), A, B, positive(4, 5), uncaptured=_BRANCH
    ),
    "hinge embedding": case(lambda: nn.HingeEmbeddingLoss(0.8), A, signs(4, 5)),
    "cosine embedding": case(lambda: nn.CosineEmbeddingLoss(0.1), A, B, signs(4)),
    "margin ranking": case(lambda: nn.MarginRankingLoss(0.2), f32(4), f32(4), signs(4)),
    "multi-margin": case(lambda: nn.MultiMarginLoss(weight=WEIGHT, margin=0.7), SCORES, LABELS),
    "squared multi-margin": case(lambda: nn.MultiMarginLoss(2, reduction="none"), SCORES, LABELS),
    "multi-label margin": case(
        nn.MultiLabelMarginLoss,
        f32(2, 4),
        value(torch.tensor([[3, 0, -1, 1], [1, -1, 0, 0]])),
        in_torch={"aten.multilabel_margin_loss_*": "torch's decomposition is wrong"},
    ),
    "multi-label soft margin": case(lambda: nn.MultiLabelSoftMarginLoss(WEIGHT), A, bits),
    "soft margin": case(nn.SoftMarginLoss, A, signs(4, 5)),
    "triplet": case(lambda: nn.TripletMarginLoss(p=2, swap=True), A, B, f32(4, 5)),
    "triplet of distances": case(
        lambda: nn.TripletMarginWithDistanceLoss(distance_function=nn.CosineSimilarity(1)),
        A,
        B,
        f32(4, 5),
    ),
    "CTC": ctc(),
    "CTC sum": ctc(reduction="sum", zero_infinity=True),
    "pairwise distance": case(lambda: nn.PairwiseDistance(3.0, keepdim=True), A, B),
    "cosine similarity": case(lambda: nn.CosineSimilarity(0), A, B),
    "distances of rows": function(
        lambda a, b: torch.cdist(a, b), A, f32(3, 5), in_torch={"aten._cdist_*": _PAIRS}
    ),
    "distances L1": function(
        lambda a, b: torch.cdist(a, b, p=1.0),
        f32(2, 4, 5),
        f32(2, 3, 5),
        in_torch={"aten._cdist_*": _PAIRS},
    ),
    "distances of pairs": function(nn.functional.pdist, A, in_torch={"aten._pdist_*": _PAIRS}),
}
