"""The internal Attention op, which passes build from matmul, softmax and matmul."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from sardonyx.graph.dtype import BF16, F16, F32, I32
from sardonyx.graph.op import INTERNAL
from sardonyx.ops.attention.fused import ZERO_FULLY_MASKED
from sardonyx.providers.torch.attention.core import (
    INF,
    attended,
    grouped_matmul,
    scores_of,
    weights_of,
)
from sardonyx.providers.torch.dtypes import torch_type, wide
from sardonyx.providers.torch.kernel import TorchKernel, TorchKernels


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    spans: Tensor | None = None,
    sink: Tensor | None = None,
    **attrs: Any,
) -> Tensor:
    """Return softmax(scale * q k^T + mask) v over the visible keys of each row."""
    is_plain = spans is None and sink is None and not attrs["smooth"] and attrs["softcap"] <= 0
    is_four_dim = q.dim() == k.dim() == v.dim() == 4 and k.shape[1] == v.shape[1]
    # Spans, sinks, smooth softmax and softcap have no counterpart in torch's fused attention.
    masking = _masking(q, k, mask, attrs) if is_plain and is_four_dim else None
    if masking is None or not k.shape[-2]:
        y = _unfused((q, k, v), mask, spans, sink, attrs)
    else:
        if not q.shape[0] == k.shape[0] == v.shape[0]:
            batch = next(x.shape[0] for x in (q, k, v) if x.shape[0] != 1)
            q, k, v = (x.expand(batch, -1, -1, -1) for x in (q, k, v))
        is_causal = masking == "causal"
        nan_rows = ZERO_FULLY_MASKED if mask is None or attrs["is_settled"] else attrs["nan_rows"]
        y = attended(q, k, v, mask, scale=attrs["scale"], is_causal=is_causal, nan_rows=nan_rows)
    return y.transpose(-2, -3).contiguous() if attrs["rows_first"] else y


def _masking(q: Tensor, k: Tensor, mask: Tensor | None, attrs: dict[str, Any]) -> str | None:
    """Return the masking of torch's fused attention that applies; None if none does."""
    rows, keys = q.shape[-2], k.shape[-2]
    if attrs["group"] == 1 and q.shape[1] != k.shape[1]:
        return None
    if attrs["window_left"] >= 0 and attrs["window_left"] < max(rows, keys):
        return None
    # One row at the end sees all keys, whatever the right window is.
    is_open = attrs["window_right"] < 0 or (attrs["bottom_right"] and rows == 1)
    if is_open:
        return "open"
    starts_together = rows == keys or not attrs["bottom_right"]
    return "causal" if attrs["window_right"] == 0 and mask is None and starts_together else None


def _unfused(
    operands: tuple[Tensor, Tensor, Tensor],
    mask: Tensor | None,
    spans: Tensor | None,
    sink: Tensor | None,
    attrs: dict[str, Any],
) -> Tensor:
    """Return the attention by matmuls and a softmax in float32."""
    q, k, v = operands
    scores = scores_of(q, k, attrs["scale"], attrs["softcap"])
    if mask is not None:
        scores = scores + mask
    hidden = _hidden_keys(scores, spans, attrs)
    if hidden is not None:
        scores = torch.where(hidden, -INF, scores)
    # A sink, or smooth softmax's 0, adds a score without a value to the denominator.
    extra = sink[:, None, None] if sink is not None else 0.0 if attrs["smooth"] else -INF
    weights = weights_of(scores, extra, attrs["nan_rows"])
    return grouped_matmul(weights, wide(v)).to(q.dtype)


def _hidden_keys(scores: Tensor, spans: Tensor | None, attrs: dict[str, Any]) -> Tensor | None:
    """Return the mask of scores hidden by position (window, causality, spans); None if none."""
    rows, keys = scores.shape[-2:]
    window_left, window_right = attrs["window_left"], attrs["window_right"]
    if spans is None and window_left < 0 and window_right < 0:
        return None
    own = torch.arange(rows, device=scores.device)[:, None]
    key = torch.arange(keys, device=scores.device)
    hidden = None
    # Spans give each batch entry's first new row and its number of keys.
    if spans is not None:
        first, end = spans.reshape(-1, 2, *(1,) * (scores.dim() - 1)).unbind(1)
        own, hidden = own + first, key >= end
    elif attrs["bottom_right"]:
        own = own + (keys - rows)
    if window_left >= 0:
        far = key < own - window_left
        hidden = far if hidden is None else hidden | far
    if window_right >= 0:
        later = key > own + window_right
        hidden = later if hidden is None else hidden | later
    return hidden


def mask_in_query_type(x: Tensor, *, to: int, masked_to_nan: int) -> Tensor:
    """Return a mask in the type of queries; with `masked_to_nan`, fully masked rows become NaN."""
    kind = torch_type(to)
    if not x.dim() or not x.shape[-1]:
        return x.to(kind)
    # A finite number below the type's range stays finite: only -inf hides a key.
    finite = x if x.dtype is kind else torch.where(x == -INF, x, x.clamp(torch.finfo(kind).min))
    if not masked_to_nan:
        return finite.to(kind)
    return torch.where(x.amax(-1, keepdim=True) == -INF, torch.nan, finite).to(kind)


KERNELS: Final[TorchKernels] = {
    (INTERNAL, "Mask"): TorchKernel(mask_in_query_type, frozenset((F32, F16, BF16))),
    (INTERNAL, "Attention"): TorchKernel(attention, frozenset((F32, F16, BF16, I32))),
}
