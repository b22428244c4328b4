"""Layer and RMS normalization after the addition of a skip connection."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from sardonyx.graph.op import MICROSOFT
from sardonyx.providers.torch.dtypes import wide
from sardonyx.providers.torch.kernel import REALS, TorchKernel, TorchKernels
from sardonyx.providers.torch.normalize.standard import has_norm, rms_norm


def _broadcast_skip(skip: Tensor, x: Tensor) -> Tensor:
    """Return skip in the shape of x."""
    return skip if skip.shape == x.shape else skip.expand(x.shape)


def _add_skip(x: Tensor, skip: Tensor, bias: Tensor | None) -> Tensor:
    total = wide(x) + skip
    return total if bias is None else total + bias


def _skip_layer(
    x: Tensor,
    skip: Tensor,
    gamma: Tensor,
    beta: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    epsilon: float,
) -> tuple[Tensor, ...]:
    if has_norm(x):
        from sardonyx.providers.torch.kernels.normalize import normalize

        return normalize(x, gamma, beta, epsilon, skip=_broadcast_skip(skip, x), bias=bias)
    total = _add_skip(x, skip, bias)
    shift = None if beta is None else wide(beta)
    y, mean, inverse = torch.native_layer_norm(total, (x.shape[-1],), wide(gamma), shift, epsilon)
    return y.to(x.dtype), mean, inverse, total.to(x.dtype)


def _skip_simplified(
    x: Tensor, skip: Tensor, gamma: Tensor, bias: Tensor | None = None, *, epsilon: float
) -> tuple[Tensor, ...]:
    if has_norm(x):
        from sardonyx.providers.torch.kernels.normalize import normalize

        return normalize(
            x, gamma, None, epsilon, skip=_broadcast_skip(skip, x), bias=bias, is_rms=True
        )
    total = _add_skip(x, skip, bias)
    y, inverse = rms_norm(total, (x.shape[-1],), wide(gamma), epsilon)
    return y.to(x.dtype), torch.zeros_like(inverse), inverse, total.to(x.dtype)


KERNELS: Final[TorchKernels] = {
    (MICROSOFT, "SkipLayerNormalization"): TorchKernel(_skip_layer, REALS),
    (MICROSOFT, "SkipSimplifiedLayerNormalization"): TorchKernel(_skip_simplified, REALS),
}
