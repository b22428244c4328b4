"""Hyper-connections: several streams of features beside each other, normalized, mixed and gated."""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from sardonyx.errors import InvalidArgument
from sardonyx.graph.op import MICROSOFT
from sardonyx.providers.torch.kernel import REALS, TorchKernel, TorchKernels
from sardonyx.providers.torch.precision import wide


def _grouped(x: Tensor, branches: int) -> Tensor:
    """Streams in an axis of their own, in float32."""
    return wide(x).reshape(*x.shape[:-1], branches, -1) if branches else wide(x)


def _rms(x: Tensor, epsilon: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)


def _norm(x: Tensor, scale: Tensor | None = None, *, epsilon: float, num_branches: int) -> Tensor:
    streams = _grouped(x, num_branches)
    y = _rms(streams, epsilon)
    if scale is not None:
        one, all_of = streams.shape[-1], streams.shape[-2:]
        if scale.numel() not in (one, one * all_of[0]):
            raise InvalidArgument(f"scale has {scale.numel()} numbers for streams {list(all_of)}")
        y = y * (scale if scale.numel() == one else scale.reshape(all_of))
    return y.reshape(x.shape).to(x.dtype)


def _gates(gates: Tensor, streams: Tensor) -> Tensor:
    """Gates that broadcast over streams."""
    if gates.ndim == streams.ndim:
        return gates
    if gates.shape[-1] == streams.shape[-2]:
        return gates.unsqueeze(-1)
    return gates.reshape(streams.shape)


def _pre_mix(x: Tensor, gates: Tensor, *, num_branches: int, reduction_scale: float) -> Tensor:
    streams = _grouped(x, num_branches)
    return ((streams * _gates(gates, streams)).sum(-2) * reduction_scale).to(x.dtype)


def _post_mix(
    x: Tensor, block: Tensor, gates: Tensor, mix: Tensor | None = None, *, num_branches: int
) -> Tensor:
    streams = _grouped(x, num_branches)
    y = streams if mix is None else torch.matmul(wide(mix).mT, streams)
    y = y + _gates(gates, streams) * wide(block).unsqueeze(-2)
    return y.reshape(x.shape).to(x.dtype)


def _engram(
    key: Tensor,
    query: Tensor,
    value: Tensor,
    key_scale: Tensor,
    query_scale: Tensor,
    scale: Tensor | None = None,
    *,
    epsilon: float,
) -> tuple[Tensor, ...]:
    k, q = (_rms(wide(x), epsilon) * s for x, s in ((key, key_scale), (query, query_scale)))
    dot = (k * q).sum(-1, keepdim=True) / math.sqrt(key.shape[3])
    gate = torch.sigmoid(torch.sign(dot) * torch.sqrt(dot.abs().clamp(min=1e-6)))
    y = gate * wide(value).unsqueeze(2)
    if scale is None:
        return (y.to(key.dtype),)
    return y.to(key.dtype), (_rms(y, epsilon) * scale).to(key.dtype)


KERNELS: Final[TorchKernels] = {
    (MICROSOFT, "BranchwiseRMSNorm"): TorchKernel(_norm, REALS),
    (MICROSOFT, "HyperConnectionPreMix"): TorchKernel(_pre_mix, REALS),
    (MICROSOFT, "HyperConnectionPostMix"): TorchKernel(_post_mix, REALS),
    (MICROSOFT, "EngramGate"): TorchKernel(_engram, REALS),
}
