"""Attention of packed (unpadded) batches: concatenated sequences, each attending to itself."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor

from sardonyx.graph.dtype import F16, F32, I32
from sardonyx.graph.op import MICROSOFT
from sardonyx.ops.arrays import filled
from sardonyx.ops.attention.fused import KEEP_NAN, ZERO_FULLY_MASKED
from sardonyx.ops.attention.projected import qkv_widths
from sardonyx.providers.torch.attention.core import INF, attended
from sardonyx.providers.torch.kernel import TorchKernel, TorchKernels

_TYPES: Final = frozenset((F32, F16, I32))


def packed(*inputs: Any, **attrs: Any) -> Tensor:
    """PackedAttention: the input is projected to query, key and value first."""
    x, weights, bias, offsets, ends, added = filled(inputs, 6)
    widths: Any = qkv_widths(weights.shape[1], attrs)
    qkv = torch.split_with_sizes(torch.addmm(bias, x, weights), widths, 1)
    return _attend_packed(list(qkv), (offsets, ends), added, attrs)


def multi_packed(*inputs: Any, **attrs: Any) -> Tensor:
    """PackedMultiHeadAttention: query, key and value, perhaps in one tensor."""
    query, key, value, bias, offsets, ends, added = filled(inputs, 7)
    qkv = [query, key, value]
    if key is None:
        qkv = [query[:, :, i].flatten(1) for i in range(3)]
    if bias is not None:
        biases = torch.split_with_sizes(bias, [t.shape[1] for t in qkv])
        qkv = [t + b for t, b in zip(qkv, biases, strict=True)]
    return _attend_packed(qkv, (offsets, ends), added, attrs)


def _attend_packed(
    qkv: list[Tensor], sequences: tuple[Tensor, Tensor], added: Tensor | None, attrs: dict[str, Any]
) -> Tensor:
    """Return attention in which each token sees the tokens of its own sequence."""
    offsets, ends = sequences
    tokens, heads = qkv[0].shape[0], attrs["num_heads"]
    q, k, v = (p.reshape(tokens, heads, p.shape[1] // heads).transpose(0, 1)[None] for p in qkv)
    # The sequence of each token, from the cumulative lengths: a block-diagonal mask.
    positions = torch.arange(tokens, device=ends.device, dtype=ends.dtype)
    owner = torch.searchsorted(ends[1:].contiguous(), positions, right=True)
    owner = owner.clamp(max=max(offsets.shape[0] - 1, 0))
    mask = owner[:, None] == owner
    nan_rows = ZERO_FULLY_MASKED
    if added is not None:
        # The bias is padded: [batch, heads, longest, longest], read at positions in the sequence.
        own = (positions - ends[owner]).long().clamp(0, added.shape[2] - 1)
        whose = owner.clamp(max=added.shape[0] - 1)
        bias = added[whose[:, None], :, own[:, None], own].permute(2, 0, 1)
        mask, nan_rows = torch.where(mask, bias, -INF)[None], KEEP_NAN
    scale = attrs["scale"] or 1 / math.sqrt(q.shape[3] or 1)
    y = attended(q, k, v, mask, scale=scale, nan_rows=nan_rows)
    return y[0].transpose(0, 1).flatten(1)


def restore_padding(x: Tensor, offsets: Tensor) -> Tensor:
    """Return the tokens at their positions in a padded batch, with zeros as padding."""
    n_tokens = offsets.numel()
    # The first entries of the offsets are the positions of the tokens, then of the padding.
    positions = offsets.reshape(-1)[: x.shape[0]].long().clamp(0, max(n_tokens - 1, 0))
    y = x.new_zeros((n_tokens, x.shape[1])).index_copy_(0, positions, x)
    return y.view(*offsets.shape, x.shape[1])


KERNELS: Final[TorchKernels] = {
    (MICROSOFT, "PackedAttention"): TorchKernel(packed, _TYPES),
    (MICROSOFT, "PackedMultiHeadAttention"): TorchKernel(multi_packed, _TYPES),
    (MICROSOFT, "RestorePadding"): TorchKernel(restore_padding, _TYPES),
}
