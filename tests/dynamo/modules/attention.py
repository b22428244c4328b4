"""Attention, transformer layers and embeddings."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.dynamo.modules.case import Case, Function, case, f32, fixed, ids, value

TOKENS, MEMORY = f32(2, 5, 8), f32(2, 7, 8)
CAUSAL = nn.Transformer.generate_square_subsequent_mask(5)
PADDING = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
INDICES, OFFSETS = ids(9, 12), value(torch.tensor([0, 3, 3, 12]))
attend = nn.functional.scaled_dot_product_attention


class Called(nn.Module):
    """A module called with fixed keyword arguments."""

    def __init__(self, module: nn.Module, **kwargs: Any) -> None:
        super().__init__()
        self.module, self.kwargs = module, kwargs

    def forward(self, *args: Any) -> Any:
        return self.module(*args, **self.kwargs)


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence to itself."""

    def __init__(self, options: dict[str, Any], **kwargs: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, **options)
        self.kwargs = kwargs

    def forward(self, x: torch.Tensor) -> Any:
        return self.attention(x, x, x, **self.kwargs)


def attention(options: dict[str, Any] | None = None, **kwargs: Any) -> Case:
    """A row of self-attention."""
    return case(lambda: SelfAttention(options or {}, **kwargs), TOKENS)


def encoder_layer(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)


def decoder_layer(**options: Any) -> nn.Module:
    return nn.TransformerDecoderLayer(8, 2, 16, batch_first=True, **options)


def heads(function: Any) -> Case:
    """A row of scaled dot-product attention."""
    return case(lambda: Function(function), f32(2, 2, 5, 4), f32(2, 2, 5, 4), f32(2, 2, 5, 4))


_MAX_NORM = "it rewrites rows of the weight in place, as data says"
CASES = {
    "attention with weights": attention(),
    "attention": attention(need_weights=False),
    "weights of each head": attention(average_attn_weights=False),
    "attention with dropout": attention({"dropout": 0.3}, need_weights=False),
    "causal attention": attention(attn_mask=CAUSAL, is_causal=True, need_weights=False),
    "attention with a mask": attention(attn_mask=CAUSAL),
    "attention with a bool mask": attention(attn_mask=CAUSAL != 0, need_weights=False),
    "attention with padding": attention(key_padding_mask=PADDING, need_weights=False),
    "attention with a key of bias": attention({"add_bias_kv": True, "add_zero_attn": True}),
    "attention without bias": attention({"bias": False}),
    "cross-attention": case(
        lambda: nn.MultiheadAttention(8, 2, kdim=6, vdim=4, batch_first=True),
        TOKENS,
        f32(2, 7, 6),
        f32(2, 7, 4),
    ),
    "attention, sequence first": case(
        lambda: nn.MultiheadAttention(8, 4), f32(5, 2, 8), f32(7, 2, 8), f32(7, 2, 8)
    ),
    "dot-product attention": heads(attend),
    "causal dot-product attention": heads(lambda q, k, v: attend(q, k, v, is_causal=True)),
    "dot-product attention with a bias": case(
        lambda: Function(lambda bias, q, k, v: attend(q, k, v, bias), (2, 5, 5)),
        f32(2, 2, 5, 4),
        f32(2, 2, 5, 4),
        f32(2, 2, 5, 4),
    ),
    "dot-product attention with dropout": heads(
        lambda q, k, v: attend(q, k, v, dropout_p=0.2, scale=0.4)
    ),
    "encoder layer": case(encoder_layer, TOKENS),
    "encoder layer, norm first": case(
        lambda: encoder_layer(norm_first=True, activation="gelu", dropout=0.0), TOKENS
    ),
    "encoder layer without bias": case(lambda: encoder_layer(bias=False), TOKENS),
    "encoder": case(lambda: nn.TransformerEncoder(encoder_layer(), 2), TOKENS),
    "encoder with padding": case(
        lambda: Called(
            nn.TransformerEncoder(encoder_layer(), 2, enable_nested_tensor=False),
            src_key_padding_mask=PADDING,
        ),
        TOKENS,
    ),
    "causal encoder": case(
        lambda: Called(nn.TransformerEncoder(encoder_layer(), 1), mask=CAUSAL, is_causal=True),
        TOKENS,
    ),
    "decoder layer": case(decoder_layer, TOKENS, MEMORY),
    "decoder": case(
        lambda: Called(
            nn.TransformerDecoder(decoder_layer(norm_first=True), 2, nn.LayerNorm(8)),
            tgt_mask=CAUSAL,
            tgt_is_causal=True,
            tgt_key_padding_mask=torch.where(PADDING, -torch.inf, 0.0),
        ),
        TOKENS,
        MEMORY,
    ),
    "transformer": case(lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True), MEMORY, TOKENS),
    "embedding": case(lambda: nn.Embedding(9, 4), ids(9, 3, 5)),
    "embedding with padding": case(lambda: nn.Embedding(9, 4, padding_idx=2), ids(9, 3, 5)),
    "embedding by frequency": case(
        lambda: nn.Embedding(9, 4, scale_grad_by_freq=True), ids(9, 3, 5)
    ),
    "embedding of bounded norm": case(
        lambda: nn.Embedding(9, 4, max_norm=1.0),
        ids(9, 3, 5),
        in_torch={"aten.embedding_renorm.default": _MAX_NORM},
    ),
    "embedding from weights": case(
        lambda: nn.Embedding.from_pretrained(torch.eye(9), freeze=False), ids(9, 3, 5)
    ),
    "sum of bags": case(lambda: nn.EmbeddingBag(9, 4, mode="sum"), INDICES, OFFSETS),
    "mean of bags": case(lambda: nn.EmbeddingBag(9, 4, mode="mean"), INDICES, OFFSETS),
    "max of bags": case(lambda: nn.EmbeddingBag(9, 4, mode="max"), INDICES, OFFSETS),
    "bags of one length": case(lambda: nn.EmbeddingBag(9, 4, mode="mean"), ids(9, 3, 5)),
    "weighted bags": case(lambda: nn.EmbeddingBag(9, 4, mode="sum"), INDICES, OFFSETS, f32(12)),
    "bags with padding": case(
        lambda: nn.EmbeddingBag(9, 4, mode="mean", padding_idx=1), INDICES, OFFSETS
    ),
    "bags with a last offset": case(
        lambda: nn.EmbeddingBag(9, 4, mode="sum", include_last_offset=True), INDICES, OFFSETS
    ),
    "bilinear": case(lambda: nn.Bilinear(3, 4, 5), f32(2, 3), f32(2, 4)),
    "linear": case(lambda: nn.Linear(8, 3), TOKENS),
    "linear without bias": case(lambda: nn.Linear(8, 3, bias=False), fixed(4, 8)),
    "adaptive softmax": case(
        lambda: nn.AdaptiveLogSoftmaxWithLoss(6, 10, [4, 7]),
        f32(8, 6),
        ids(10, 8),
        uncaptured="whether a cluster has targets is data",
    ),
}
