"""Normalization after a skip connection or an embedding; GroupNorm of diffusion models."""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

from sardonyx.graph.dtype import I32
from sardonyx.graph.op import MICROSOFT
from sardonyx.providers.torch.kernel import REALS, TorchKernel, TorchKernels
from sardonyx.providers.torch.normalize.standard import has_norm, rms_norm
from sardonyx.providers.torch.precision import wide


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


def _embed(*inputs: Tensor | None, epsilon: float, **_: Any) -> tuple[Tensor, ...]:
    ids, segment_ids, words, positions, segments, gamma, beta, mask, position_ids = inputs
    assert ids is not None
    assert words is not None
    assert positions is not None
    assert gamma is not None
    assert beta is not None
    position = (
        positions[: ids.shape[1]] if position_ids is None else _embedding(positions, position_ids)
    )
    total = wide(_embedding(words, ids)) + position
    if segments is not None and segment_ids is not None:
        total = total + _embedding(segments, segment_ids)
    y = torch.layer_norm(total, (words.shape[1],), wide(gamma), wide(beta), epsilon)
    if mask is None:
        n_seen = torch.zeros(ids.shape[0], dtype=torch.int32, device=ids.device)
    else:
        n_seen = (mask == 1).sum(1, dtype=torch.int32)
    return y.to(words.dtype), n_seen, total.to(words.dtype)


def _embedding(table: Tensor, ids: Tensor) -> Tensor:
    """Return rows of a table; ids are clamped, as an invalid one would abort the CUDA context."""
    return F.embedding(ids.clamp(0, table.shape[0] - 1), table)


def _group_norm(x: Tensor, gamma: Tensor, beta: Tensor, **attrs: Any) -> Tensor:
    return _group_norm_f32(wide(x), gamma, beta, attrs).to(x.dtype)


def _group_norm_f32(x: Tensor, gamma: Tensor, beta: Tensor, attrs: dict[str, Any]) -> Tensor:
    """Group norm of float32 images, channels first or last as the node says."""
    images = x.movedim(3, 1) if attrs["channels_last"] else x
    y = torch.group_norm(images, attrs["groups"], wide(gamma), wide(beta), attrs["epsilon"])
    y = F.silu(y) if attrs["activation"] else y
    return y.movedim(1, 3) if attrs["channels_last"] else y


def _skip_group_norm(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    skip: Tensor,
    bias: Tensor | None = None,
    **attrs: Any,
) -> tuple[Tensor, Tensor]:
    shape = (1, 1, -1) if attrs["channels_last"] else (-1, 1, 1)
    added = skip.reshape(skip.shape[0], *shape) if skip.ndim == 2 else skip
    total = _add_skip(x, added, None if bias is None else bias.reshape(shape))
    return _group_norm_f32(total, gamma, beta, attrs).to(x.dtype), total.to(x.dtype)


KERNELS: Final[TorchKernels] = {
    (MICROSOFT, "SkipLayerNormalization"): TorchKernel(_skip_layer, REALS),
    (MICROSOFT, "SkipSimplifiedLayerNormalization"): TorchKernel(_skip_simplified, REALS),
    (MICROSOFT, "EmbedLayerNormalization"): TorchKernel(_embed, REALS | {I32}),
    (MICROSOFT, "GroupNorm"): TorchKernel(_group_norm, REALS),
    (MICROSOFT, "SkipGroupNorm"): TorchKernel(_skip_group_norm, REALS),
}
