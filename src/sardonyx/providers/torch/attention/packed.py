"""Batches without their padding: texts one behind the other, each of which attends to itself."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor

from sardonyx.graph.dtype import F16, F32, I32
from sardonyx.graph.op import MICROSOFT
from sardonyx.ops.attention.fused import STAYS, UNSEEN
from sardonyx.ops.attention.projected import widths_of
from sardonyx.ops.recurrent.standard import filled
from sardonyx.providers.torch.attention.core import INF, attended
from sardonyx.providers.torch.kernel import TorchKernel, TorchKernels

_TYPES: Final = frozenset((F32, F16, I32))


def packed(*inputs: Any, **attrs: Any) -> Tensor:
    """Attention of an input that is projected to query, key and value first."""
    x, weights, bias, offsets, ends, added = filled(inputs, 6)
    widths: Any = widths_of(weights.shape[1], attrs)
    parts = torch.split_with_sizes(torch.addmm(bias, x, weights), widths, 1)
    return _attended(list(parts), (offsets, ends), added, attrs)


def multi_packed(*inputs: Any, **attrs: Any) -> Tensor:
    """Attention of query, key and value, which may lie in one tensor."""
    query, key, value, bias, offsets, ends, added = filled(inputs, 7)
    parts = [query, key, value]
    if key is None:
        parts = [query[:, :, i].flatten(1) for i in range(3)]
    if bias is not None:
        widths = [part.shape[1] for part in parts]
        pieces = torch.split_with_sizes(bias, widths)
        parts = [part + piece for part, piece in zip(parts, pieces, strict=True)]
    return _attended(parts, (offsets, ends), added, attrs)


def _attended(
    parts: list[Tensor], texts: tuple[Tensor, Tensor], added: Tensor | None, attrs: dict[str, Any]
) -> Tensor:
    """Each token sees those of its own text."""
    offsets, ends = texts
    tokens, heads = parts[0].shape[0], attrs["num_heads"]
    q, k, v = (p.reshape(tokens, heads, p.shape[1] // heads).transpose(0, 1)[None] for p in parts)
    places = torch.arange(tokens, device=ends.device, dtype=ends.dtype)
    owner = torch.searchsorted(ends[1:].contiguous(), places, right=True)
    owner = owner.clamp(max=max(offsets.shape[0] - 1, 0))
    mask = owner[:, None] == owner
    blind = UNSEEN
    if added is not None:
        own = (places - ends[owner]).long().clamp(0, added.shape[2] - 1)
        whose = owner.clamp(max=added.shape[0] - 1)
        bias = added[whose[:, None], :, own[:, None], own].permute(2, 0, 1)
        mask, blind = torch.where(mask, bias, -INF)[None], STAYS
    scale = attrs["scale"] or 1 / math.sqrt(q.shape[3] or 1)
    y = attended(q, k, v, mask, scale=scale, blind=blind)
    return y[0].transpose(0, 1).flatten(1)


def restored(x: Tensor, offsets: Tensor) -> Tensor:
    """Tokens at their places in a batch, and zeros where its padding is."""
    room = offsets.numel()
    places = offsets.reshape(-1)[: x.shape[0]].long().clamp(0, max(room - 1, 0))
    y = x.new_zeros((room, x.shape[1])).index_copy_(0, places, x)
    return y.view(*offsets.shape, x.shape[1])


KERNELS: Final[TorchKernels] = {
    (MICROSOFT, "PackedAttention"): TorchKernel(packed, _TYPES),
    (MICROSOFT, "PackedMultiHeadAttention"): TorchKernel(multi_packed, _TYPES),
    (MICROSOFT, "RestorePadding"): TorchKernel(restored, _TYPES),
}
