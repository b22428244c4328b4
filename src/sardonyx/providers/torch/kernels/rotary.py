"""Rotary position embedding (RoPE) of many tokens."""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc,no-any-return,assignment"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sardonyx.providers.torch.kernels.attention_cached import rotated
from sardonyx.providers.torch.kernels.intrinsics import wait_for_previous
from sardonyx.providers.torch.kernels.launch import launch


@triton.jit
def rotary_kernel(
    x, cos, sin, position_ids, y, n_tokens, n_heads, batch_stride, token_stride, head_stride,
    y_batch, y_token, y_head,
    rotary: tl.constexpr, head: tl.constexpr, heads: tl.constexpr, features: tl.constexpr,
    is_first: tl.constexpr, overlap: tl.constexpr,
):  # fmt: skip
    """Some heads of one token; `position_ids` has one per token, or the first token's position."""
    wait_for_previous(overlap)
    token = tl.program_id(0) % n_tokens
    batch = (tl.program_id(0) // n_tokens).to(tl.int64)
    if is_first:
        position = tl.load(position_ids).to(tl.int32) + token
    else:
        position = tl.load(position_ids + batch * n_tokens + token).to(tl.int32)
    n_positions: tl.constexpr = rotary[2]
    position = tl.minimum(tl.maximum(position, 0), n_positions - 1)
    # Negative offsets are masked: heads beyond the last, which pad the tile.
    head_id = tl.program_id(1) * heads + tl.arange(0, heads)[:, None]
    feature = tl.arange(0, features)[None, :]
    at = batch * batch_stride + token * token_stride + head_id * head_stride
    at = tl.where(head_id < n_heads, at, -1)
    value = rotated(x, at, feature, (cos, sin), position + head_id * 0, rotary, head)
    ok = (head_id < n_heads) & (feature < head)
    to = batch * y_batch + token * y_token + head_id * y_head + feature
    tl.store(y + to, value.to(y.dtype.element_ty), ok)


def rotary(
    x: Tensor, cos: Tensor, sin: Tensor, position_ids: Tensor, *, is_interleaved: bool = False
) -> Tensor:
    """Return x [batch, tokens, heads, features], of any strides, rotated by the tokens' positions.

    `position_ids` is [batch, tokens], or one number: the first token's position. Cosines and sines
    are [positions, pairs]; features after the pairs are unchanged.
    """
    batch, tokens, n_heads, head = x.shape
    if x.stride(3) != 1:
        x = x.contiguous()
    y = torch.empty_like(x)
    features = 1 << max(4, (head - 1).bit_length())
    # A program takes about 2048 features, 16 per thread.
    heads = max(1, min(1 << (n_heads - 1).bit_length(), 2048 // features))
    if x.numel():
        strides = (*x.stride()[:3], *y.stride()[:3])
        arguments = (x, cos, sin, position_ids, y, tokens, n_heads, *strides)
        rotary_sizes = (cos.shape[1], is_interleaved, cos.shape[0])
        constants = (rotary_sizes, head, heads, features, position_ids.numel() == 1)
        launch(rotary_kernel, (batch * tokens, -(-n_heads // heads), 1), arguments, constants, 4)
    return y
