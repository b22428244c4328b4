"""Attention of ONNX: softmax(Q K^T) V with masks, windows, KV cache and grouped heads."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from sardonyx.graph.dtype import F32
from sardonyx.graph.op import ONNX
from sardonyx.ops.attention.dot_product import BIASED, CAPPED, PROBABILITIES, AttentionAttrs
from sardonyx.ops.attention.fused import ZERO_FULLY_MASKED
from sardonyx.ops.attention.heads import precision
from sardonyx.providers.torch.attention.core import INF, attended, grouped_matmul, pack, unpack
from sardonyx.providers.torch.dtypes import TORCH, wide
from sardonyx.providers.torch.kernel import PLAIN, TorchKernel, TorchKernels


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    nonpad: Tensor | None = None,
    *,
    shapes: Any,
    **attrs: Any,
) -> tuple[Tensor, ...]:
    """Return the output, present keys and values, and the scores if the node has that output."""
    s = AttentionAttrs(**attrs)
    is_packed = q.dim() == 3
    if is_packed:
        assert s.q_num_heads is not None
        assert s.kv_num_heads is not None
        q, k, v = unpack(q, s.q_num_heads), unpack(k, s.kv_num_heads), unpack(v, s.kv_num_heads)
    offset = 0
    # Positions count from the first key of the past.
    if past_key is not None and past_value is not None:
        offset = past_key.shape[2]
        k, v = torch.cat((past_key, k), 2), torch.cat((past_value, v), 2)
    factor = 1 / math.sqrt(q.shape[3] or 1) if s.scale is None else s.scale
    qk: tuple[Tensor, ...] = ()
    if _is_fused(s, q, v, len(shapes)):
        is_causal = bool(s.is_causal) and _starts_at_zero(s, mask, nonpad, offset)
        seen = None if is_causal else _visible(s, q, k, nonpad, offset)
        bias = _mask(mask, seen, k.shape[2], q.dtype)
        y = attended(q, k, v, bias, scale=factor, is_causal=is_causal, nan_rows=ZERO_FULLY_MASKED)
    else:
        bias = _mask(mask, _visible(s, q, k, nonpad, offset), k.shape[2], q.dtype)
        y, scores = _unfused(s, (q, k, v), bias, factor)
        qk = (scores,)
    return (pack(y) if is_packed else y), k, v, *qk


def _is_fused(s: AttentionAttrs, q: Tensor, v: Tensor, outputs: int) -> bool:
    """Return whether torch's fused attention covers the node."""
    is_wide = s.softmax_precision is None or precision(s.softmax_precision).bits >= F32.bits
    return outputs < 4 and s.softcap <= 0 and is_wide and q.dtype == v.dtype


def _starts_at_zero(
    s: AttentionAttrs, mask: Tensor | None, nonpad: Tensor | None, offset: int
) -> bool:
    """Return whether torch's causal flag applies: row i sees exactly the keys up to i."""
    return mask is None and nonpad is None and not offset and s.left_window_size < 0


def _visible(
    s: AttentionAttrs, q: Tensor, k: Tensor, nonpad: Tensor | None, offset: int
) -> Tensor | None:
    """Return the mask of keys visible by position; None if all are."""
    rows, total = q.shape[2], k.shape[2]
    left, right = s.left_window_size, 0 if s.is_causal else s.right_window_size
    if nonpad is None and left < 0 and (right < 0 or right + offset >= total - 1):
        return None
    keys = torch.arange(total, device=q.device)
    own = torch.arange(rows, device=q.device)[:, None] + offset
    seen: Tensor | None = None
    # nonpad_kv_seqlen: the new rows are the last of each sequence's keys.
    if nonpad is not None:
        count = nonpad[:, None, None, None]
        own, seen = own + (count - rows), keys < count
    if right >= 0:
        in_window = keys <= own + right
        seen = in_window if seen is None else seen & in_window
    if left >= 0:
        in_window = keys >= own - left
        seen = in_window if seen is None else seen & in_window
    return seen


def _mask(
    mask: Tensor | None, seen: Tensor | None, total: int, dtype: torch.dtype
) -> Tensor | None:
    """Combine mask and positions: a bool mask or a bias to add; None if all keys are visible."""
    if mask is None:
        return seen
    missing = total - mask.shape[-1]
    if mask.dtype == torch.bool:
        mask = F.pad(mask, (0, missing)) if missing else mask
        return mask if seen is None else mask & seen
    mask = mask.to(dtype)
    mask = F.pad(mask, (0, missing), value=-INF) if missing else mask
    return mask if seen is None else torch.where(seen, mask, -INF)


def _unfused(
    s: AttentionAttrs, operands: tuple[Tensor, Tensor, Tensor], bias: Tensor | None, factor: float
) -> tuple[Tensor, Tensor]:
    """Return the output and the scores output. Every step rounds to the type of Q, as ONNX says."""
    q, k, v = operands
    dtype = q.dtype
    # Both operands are scaled by the root, which keeps float16 products in range.
    root = torch.full((), math.sqrt(factor), dtype=dtype, device=q.device)
    scores = grouped_matmul(wide(q * root), wide(k * root).transpose(2, 3)).to(dtype)
    qk = scores
    if s.softcap > 0:
        cap = torch.full((), s.softcap, dtype=dtype, device=q.device)
        scores = torch.tanh(scores / cap) * cap
    if s.qk_matmul_output_mode == CAPPED:
        qk = scores
    if bias is not None and bias.dtype == torch.bool:
        bias = torch.zeros((), dtype=dtype, device=q.device).where(bias, -INF)
    if bias is not None:
        scores = scores + bias
    if s.qk_matmul_output_mode == BIASED:
        qk = scores
    kind = dtype if s.softmax_precision is None else TORCH[precision(s.softmax_precision)]
    probabilities = torch.softmax(scores, -1, dtype=kind).to(dtype)
    if bias is not None and bias.shape[-1]:
        # A row without visible keys gives zeros; the bias decides, because scores may be NaN.
        probabilities = torch.where(bias.amax(-1, keepdim=True) == -INF, 0, probabilities)
    if s.qk_matmul_output_mode == PROBABILITIES:
        qk = probabilities
    return grouped_matmul(wide(probabilities), wide(v)).to(dtype), qk


KERNELS: Final[TorchKernels] = {(ONNX, "Attention"): TorchKernel(attention, PLAIN, sized=True)}
