"""Positions turned into features, for many tokens."""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc,no-any-return,assignment"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sardonyx.providers.torch.kernels.attention_cached import turned
from sardonyx.providers.torch.kernels.intrinsics import wait_before
from sardonyx.providers.torch.kernels.launch import launch


@triton.jit
def rotary_kernel(
    x, cos, sin, places, y, n_tokens, n_heads, batch_stride, token_stride, head_stride,
    y_batch, y_token, y_head,
    turn: tl.constexpr, head: tl.constexpr, heads: tl.constexpr, features: tl.constexpr,
    is_first: tl.constexpr, overlap: tl.constexpr,
):  # fmt: skip
    """The heads of one token; `places` has one for each token, or where the first one stands."""
    wait_before(overlap)
    token = tl.program_id(0) % n_tokens
    batch = (tl.program_id(0) // n_tokens).to(tl.int64)
    if is_first:
        place = tl.load(places).to(tl.int32) + token
    else:
        place = tl.load(places + batch * n_tokens + token).to(tl.int32)
    n_places: tl.constexpr = turn[2]
    place = tl.minimum(tl.maximum(place, 0), n_places - 1)
    number = tl.program_id(1) * heads + tl.arange(0, heads)[:, None]
    feature = tl.arange(0, features)[None, :]
    at = batch * batch_stride + token * token_stride + number * head_stride
    at = tl.where(number < n_heads, at, -1)
    value = turned(x, at, feature, (cos, sin), place + number * 0, turn, head)
    ok = (number < n_heads) & (feature < head)
    to = batch * y_batch + token * y_token + number * y_head + feature
    tl.store(y + to, value.to(y.dtype.element_ty), ok)


def rotary(
    x: Tensor, cos: Tensor, sin: Tensor, places: Tensor, *, is_interleaved: bool = False
) -> Tensor:
    """x [batch, tokens, heads, features], strided as it likes, turned by the places of tokens.

    `places` is [batch, tokens], or one number: where the first token stands. The angles are
    [places, pairs]; features behind the pairs stay.
    """
    batch, tokens, n_heads, head = x.shape
    if x.stride(3) != 1:
        x = x.contiguous()
    y = torch.empty_like(x)
    features = 1 << max(4, (head - 1).bit_length())
    heads = max(1, min(1 << (n_heads - 1).bit_length(), 2048 // features))
    if x.numel():
        given = (x, cos, sin, places, y, tokens, n_heads, *x.stride()[:3], *y.stride()[:3])
        turn = (cos.shape[1], is_interleaved, cos.shape[0])
        constants = (turn, head, heads, features, places.numel() == 1)
        launch(rotary_kernel, (batch * tokens, -(-n_heads // heads), 1), given, constants, 4)
    return y
