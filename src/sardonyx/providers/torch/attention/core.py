"""What the attention ops share: heads, softmax(q k^T) v in one call or step by step."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from sardonyx.ops.attention.fused import STAYS, ZEROES
from sardonyx.providers.torch.precision import HALVES, wide

INF: Final = float("inf")
_TINY: Final = 512  # scores up to which halves are not worth their rounding


def unpack(x: Tensor, heads: int) -> Tensor:
    """[batch, length, heads * size] as [batch, heads, length, size]."""
    batch, length, hidden = x.shape
    return x.reshape(batch, length, heads, hidden // heads).transpose(1, 2)


def pack(x: Tensor) -> Tensor:
    """[batch, heads, length, size] as [batch, length, heads * size]."""
    return x.transpose(1, 2).flatten(2)


def attended(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float,
    is_causal: bool = False,
    blind: int = STAYS,
) -> Tensor:
    """softmax(scale * q k^T + mask) v of [batch, heads, rows, size] in one call.

    `is_causal` lets row i see the keys up to i, and goes without a mask. `blind` says what a row
    gives that sees no key: NaN, or zeros. Heads of q may share those of k and v in groups.
    """
    group = q.shape[1] // k.shape[1] if k.shape[1] else 1
    if not (q.numel() and k.numel() and v.numel()):
        return q.new_zeros((*q.shape[:3], v.shape[3]))
    rows = q.shape[2]
    if q.dtype in HALVES and q.shape[0] * q.shape[1] * rows * k.shape[2] <= _TINY:
        added = None if mask is None or mask.dtype == torch.bool else mask.float()
        y = attended(
            q.float(), k.float(), v.float(), mask if added is None else added,
            scale=scale, is_causal=is_causal, blind=blind,
        )  # fmt: skip
        return y.to(q.dtype)
    is_folded = group > 1 and not is_causal and (mask is None or _serves_all(mask))
    if is_folded:  # rows of the heads that share a key are rows of one head
        q = q.reshape(q.shape[0], k.shape[1], group * rows, q.shape[3])
    if mask is not None and mask.dim() < 2:
        mask = mask.reshape(1, -1)
    if group > 1 and not is_folded and q.is_cuda and q.dtype is torch.float32:
        # Kernels that share heads take halves only.
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        group = 1
    added = None if mask is None else _added(mask, q.dtype, blind)
    if added is not None and (added.shape[-1] != k.shape[2] or added.stride(-1) != 1):
        # Kernels read it along the keys.
        added = added.expand(*added.shape[:-1], k.shape[2]).contiguous()
    y = F.scaled_dot_product_attention(
        q, k, v, added, is_causal=is_causal, scale=scale, enable_gqa=group > 1 and not is_folded
    )
    if is_folded:
        y = y.reshape(y.shape[0], k.shape[1] * group, rows, y.shape[3])
    if mask is not None and mask.dtype != torch.bool and blind == STAYS:
        # 0 * -inf is NaN, as the softmax of a row is that sees no key.
        y = y + (mask.amax(-1, keepdim=True) * 0).to(y.dtype)
    return y


def _serves_all(mask: Tensor) -> bool:
    """Whether a mask is the same for all heads and rows."""
    return mask.dim() == 4 and mask.shape[1] == 1 and mask.shape[2] == 1


def _added(mask: Tensor, dtype: torch.dtype, blind: int) -> Tensor:
    """A mask in the type of the query, where numbers that are too low for it stay numbers.

    Keys shut out by such a number have no weight, unless their row has no others: then its scores
    weigh them, and not evenly.
    """
    if mask.dtype in (dtype, torch.bool):
        return mask
    held = mask.clamp(min=torch.finfo(dtype).min)
    return (held if blind == STAYS else torch.where(mask == -INF, mask, held)).to(dtype)


def grouped_matmul(a: Tensor, b: Tensor) -> Tensor:
    """Each head of `a` times the head of `b` that its group shares."""
    shared = b.shape[-3] if b.dim() > 2 else 1
    if shared < 2 or a.dim() < 3 or a.shape[-3] in (1, shared):
        return torch.matmul(a, b)
    group = a.shape[-3] // shared
    folded = a.reshape(*a.shape[:-3], shared, group * a.shape[-2], a.shape[-1])
    return torch.matmul(folded, b).reshape(*a.shape[:-1], b.shape[-1])


def scores_of(q: Tensor, k: Tensor, scale: float, softcap: float = 0.0) -> Tensor:
    """scale * q k^T, bent to stay within the cap."""
    scores = grouped_matmul(wide(q), wide(k).transpose(-1, -2)) * scale
    if softcap > 0:
        cap = torch.full((), softcap, dtype=scores.dtype, device=scores.device)
        scores = torch.tanh(scores / cap) * cap
    return scores


def weights_of(scores: Tensor, extra: Tensor | float, blind: int) -> Tensor:
    """The softmax of scores, with one more score `extra` that no value belongs to."""
    if not scores.shape[-1]:
        return scores
    top = scores.amax(-1, keepdim=True)
    if not isinstance(extra, Tensor) and extra == -INF:
        weights = torch.softmax(scores, -1)
    else:
        if not isinstance(extra, Tensor):
            extra = torch.full((), extra, dtype=scores.dtype, device=scores.device)
        top = torch.maximum(top, extra)
        raised = torch.exp(scores - top)
        weights = raised / (raised.sum(-1, keepdim=True) + torch.exp(extra - top))
    if blind == STAYS:
        return weights
    is_blind = torch.isnan(weights) if blind == ZEROES else top == -INF
    return torch.where(is_blind, 0, weights)
