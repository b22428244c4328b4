"""Shared by the attention ops: head layouts, fused and unfused softmax(q k^T) v."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from sardonyx.ops.attention.fused import KEEP_NAN, ZERO_NAN
from sardonyx.providers.torch.dtypes import FLOAT16_TYPES, wide

INF: Final = float("inf")
# Up to so many scores, 16-bit inputs are widened: it costs no time and saves their rounding.
_MAX_WIDENED_SCORES: Final = 512


def unpack(x: Tensor, heads: int) -> Tensor:
    """Return [batch, length, heads * size] as [batch, heads, length, size]."""
    batch, length, hidden = x.shape
    return x.reshape(batch, length, heads, hidden // heads).transpose(1, 2)


def pack(x: Tensor) -> Tensor:
    """Return [batch, heads, length, size] as [batch, length, heads * size]."""
    return x.transpose(1, 2).flatten(2)


def attended(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float,
    is_causal: bool = False,
    nan_rows: int = KEEP_NAN,
) -> Tensor:
    """Return softmax(scale * q k^T + mask) v of [batch, heads, rows, size] in one call.

    `is_causal` lets row i see the keys up to i, and excludes a mask. `nan_rows` says what a row
    without visible keys gives: NaN or zeros. Query heads may share KV heads in groups (GQA).
    """
    if not (q.numel() and k.numel() and v.numel()):
        return q.new_zeros((*q.shape[:3], v.shape[3]))
    n_scores = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]
    if q.dtype in FLOAT16_TYPES and n_scores <= _MAX_WIDENED_SCORES:
        if mask is not None and mask.dtype != torch.bool:
            mask = mask.float()
        y = _sdpa(q.float(), k.float(), v.float(), mask, scale, is_causal, nan_rows)
        return y.to(q.dtype)
    return _sdpa(q, k, v, mask, scale, is_causal, nan_rows)


def _sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    is_causal: bool,
    nan_rows: int,
) -> Tensor:
    """`attended` by torch's scaled_dot_product_attention, with operands its fast kernels accept."""
    # Grouped-query attention: `group` query heads share a KV head.
    group, rows = q.shape[1] // k.shape[1], q.shape[2]
    is_folded = group > 1 and not is_causal and (mask is None or _is_key_mask(mask))
    if is_folded:  # rows of the heads of a group become rows of one head: k and v are read once
        q = q.reshape(q.shape[0], k.shape[1], group * rows, q.shape[3])
    elif group > 1 and q.is_cuda and q.dtype is torch.float32:
        # torch's kernels with shared heads are for 16-bit floats only.
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    bias = None if mask is None else _attention_bias(mask, q.dtype, k.shape[2], nan_rows)
    has_groups = q.shape[1] != k.shape[1]
    y = F.scaled_dot_product_attention(
        q, k, v, bias, is_causal=is_causal, scale=scale, enable_gqa=has_groups
    )
    if is_folded:
        y = y.reshape(y.shape[0], k.shape[1] * group, rows, y.shape[3])
    if mask is not None and mask.dtype != torch.bool and nan_rows == KEEP_NAN:
        # 0 * -inf is NaN, the softmax of a row without visible keys.
        mask = mask.reshape(1, -1) if mask.dim() < 2 else mask
        y = y + (mask.amax(-1, keepdim=True) * 0).to(y.dtype)
    return y


def _attention_bias(mask: Tensor, dtype: torch.dtype, n_keys: int, nan_rows: int) -> Tensor:
    """Return a mask in the query's type, contiguous along the keys, as torch's kernels need it."""
    if mask.dim() < 2:
        mask = mask.reshape(1, -1)
    bias = _clamped_mask(mask, dtype, nan_rows)
    if bias.shape[-1] != n_keys or bias.stride(-1) != 1:
        bias = bias.expand(*bias.shape[:-1], n_keys).contiguous()
    return bias


def _is_key_mask(mask: Tensor) -> bool:
    """Return whether a mask is the same for all heads and rows."""
    return mask.dim() == 4 and mask.shape[1] == 1 and mask.shape[2] == 1


def _clamped_mask(mask: Tensor, dtype: torch.dtype, nan_rows: int) -> Tensor:
    """Return a mask in a type, with numbers below its range clamped to its lowest finite number.

    Keys masked by a finite number have weight 0, unless all keys of a row are: then the softmax of
    their scores applies, so such numbers must not become -inf.
    """
    if mask.dtype in (dtype, torch.bool):
        return mask
    finite = mask.clamp(min=torch.finfo(dtype).min)
    return (finite if nan_rows == KEEP_NAN else torch.where(mask == -INF, mask, finite)).to(dtype)


def grouped_matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return each head of `a` times the head of `b` that its group shares."""
    kv_heads = b.shape[-3] if b.dim() > 2 else 1
    if kv_heads < 2 or a.dim() < 3 or a.shape[-3] in (1, kv_heads):
        return torch.matmul(a, b)
    group = a.shape[-3] // kv_heads
    folded = a.reshape(*a.shape[:-3], kv_heads, group * a.shape[-2], a.shape[-1])
    return torch.matmul(folded, b).reshape(*a.shape[:-1], b.shape[-1])


def scores_of(q: Tensor, k: Tensor, scale: float, softcap: float = 0.0) -> Tensor:
    """Return scale * q k^T, with softcap: cap * tanh(scores / cap)."""
    scores = grouped_matmul(wide(q), wide(k).transpose(-1, -2)) * scale
    if softcap > 0:
        cap = torch.full((), softcap, dtype=scores.dtype, device=scores.device)
        scores = torch.tanh(scores / cap) * cap
    return scores


def weights_of(scores: Tensor, extra: Tensor | float, nan_rows: int) -> Tensor:
    """Return the softmax of scores and one `extra` score without a value (attention sink)."""
    if not scores.shape[-1]:
        return scores
    # Subtracting the maximum, sink included, keeps exponentials from overflowing.
    top = scores.amax(-1, keepdim=True)
    if not isinstance(extra, Tensor) and extra == -INF:
        weights = torch.softmax(scores, -1)
    else:
        if not isinstance(extra, Tensor):
            extra = torch.full((), extra, dtype=scores.dtype, device=scores.device)
        top = torch.maximum(top, extra)
        powers = torch.exp(scores - top)
        weights = powers / (powers.sum(-1, keepdim=True) + torch.exp(extra - top))
    if nan_rows == KEEP_NAN:
        return weights
    is_blind = torch.isnan(weights) if nan_rows == ZERO_NAN else top == -INF
    return torch.where(is_blind, 0, weights)
