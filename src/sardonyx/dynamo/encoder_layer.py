"""The op that `nn.TransformerEncoderLayer` calls in inference, as the ops of its slower path."""

from __future__ import annotations

import torch
from torch.nn import functional


def encoder_layer(
    x: torch.Tensor,
    width: int,
    n_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    out_weight: torch.Tensor,
    out_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    weight_1: torch.Tensor,
    bias_1: torch.Tensor,
    weight_2: torch.Tensor,
    bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """Decompose `aten._transformer_encoder_layer_fwd`; the arguments are the op's."""

    def attend(x: torch.Tensor) -> torch.Tensor:
        qkv = functional.linear(x, qkv_weight, qkv_bias)
        qkv = qkv.view(*x.shape[:2], 3, n_heads, width // n_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        visible = None if mask is None else _visible(mask, mask_type)
        y = functional.scaled_dot_product_attention(q, k, v, visible)
        return functional.linear(y.transpose(1, 2).flatten(2), out_weight, out_bias)

    def feed_forward(x: torch.Tensor) -> torch.Tensor:
        hidden = functional.linear(x, weight_1, bias_1)
        return functional.linear(
            functional.gelu(hidden) if use_gelu else functional.relu(hidden), weight_2, bias_2
        )

    norm_1 = (width,), norm_weight_1, norm_bias_1, eps
    norm_2 = (width,), norm_weight_2, norm_bias_2, eps
    if norm_first:
        x = x + attend(functional.layer_norm(x, *norm_1))
        return x + feed_forward(functional.layer_norm(x, *norm_2))
    x = functional.layer_norm(x + attend(x), *norm_1)
    return functional.layer_norm(x + feed_forward(x), *norm_2)


def _visible(mask: torch.Tensor, mask_type: int | None) -> torch.Tensor:
    """Return which keys a query attends to; the op's masks are nonzero where it does not."""
    visible = mask.to(torch.bool).logical_not()
    return visible[:, None, None] if mask_type == 1 else visible  # 1: key padding mask
