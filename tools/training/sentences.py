"""What the training programs share: a small BERT classifier, made-up sentences, comparisons."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification

N_TOKENS = 60
LIMIT = 1e-5  # relative, of a loss


class Sentences(Dataset[dict[str, torch.Tensor]]):
    """Sentences of different lengths; the label says whether the first token is above the mean."""

    def __init__(self, count: int, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(3, N_TOKENS, (count, 12), generator=draw)
        lengths = torch.randint(6, 13, (count, 1), generator=draw)
        self.mask = (torch.arange(12) < lengths).long()

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        label = (self.ids[index, 0] > N_TOKENS // 2).long()
        return {"input_ids": self.ids[index], "attention_mask": self.mask[index], "labels": label}


def classifier() -> BertForSequenceClassification:
    """A BERT classifier of two layers, the same at every call."""
    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=N_TOKENS,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=16,
        )
    )


def difference(found: Sequence[float], expected: Sequence[float]) -> float:
    """The largest relative difference of two lists of losses."""
    if len(found) != len(expected) or not expected:
        sys.exit(f"{len(found)} losses, and {len(expected)} are expected")
    return max(abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True))


def compare(what: str, found: Sequence[float], expected: Sequence[float]) -> None:
    """Print the largest difference; ends the program if it is over the limit."""
    worst = difference(found, expected)
    print(f"{what}: {len(found)} losses, {worst:.1e} apart at most")
    if not worst <= LIMIT:
        sys.exit(f"{what}: {list(found)} and {list(expected)}")
