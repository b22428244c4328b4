"""Normalization: batch, instance, group, layer, RMS, Lp, local response; with skip connections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

from sardonyx.graph.op import MICROSOFT
from sardonyx.ops.inference import axes_of, axis_of
from sardonyx.providers.torch.dtypes import in_wide, torch_type, wide, wide_type
from sardonyx.providers.torch.kernel import REALS, TorchKernel, TorchKernels
from sardonyx.providers.torch.kernels import usable

Sizes = torch.Size
# The wrappers in torch.nn.functional double the time of small calls.
_BATCH_NORM: Final[Callable[..., Tensor]] = torch.batch_norm
_RMS_NORM: Final[Callable[..., Tensor]] = torch.rms_norm
# Of the Triton kernel, which holds a whole row in the registers of a program.
_MAX_KERNEL_COLUMNS: Final = 16384
_KERNEL_TYPES: Final = (torch.float32, torch.float16, torch.bfloat16)


def has_norm(x: Tensor) -> bool:
    """Return whether the Triton kernel applies to rows of a tensor."""
    return x.dtype in _KERNEL_TYPES and 0 < x.shape[-1] <= _MAX_KERNEL_COLUMNS and usable(x.device)


def _batch_norm(
    x: Tensor, scale: Tensor, b: Tensor, mean: Tensor, var: Tensor, **attrs: Any
) -> tuple[Tensor, ...]:
    if attrs["training_mode"]:
        return _batch_norm_training(x, scale, b, mean, var, **attrs)
    if any(r.dtype is not x.dtype for r in (scale, b, mean, var)):
        scale, b, mean, var = (r.to(wide_type(x.dtype)) for r in (scale, b, mean, var))
    images = x if x.ndim > 1 else x.unsqueeze(1)
    y = _BATCH_NORM(images, scale, b, mean, var, False, 0.0, attrs["epsilon"], True)
    return (y if x.ndim > 1 else y.squeeze(1),)


def _batch_norm_training(
    x: Tensor, scale: Tensor, b: Tensor, mean: Tensor, var: Tensor, **attrs: Any
) -> tuple[Tensor, ...]:
    images = wide(x) if x.ndim > 1 else wide(x).unsqueeze(1)
    axes = [0, *range(2, images.ndim)]
    now_var, now_mean = torch.var_mean(images, axes, correction=0, keepdim=True)
    shape = (-1, *(1,) * (images.ndim - 2))
    factor = scale.to(images.dtype).reshape(shape) * torch.rsqrt(now_var + attrs["epsilon"])
    y = (images - now_mean) * factor + b.to(images.dtype).reshape(shape)
    keep = attrs["momentum"]
    running = (
        (wide(old) * keep + now.reshape(-1) * (1 - keep)).to(old.dtype)
        for old, now in ((mean, now_mean), (var, now_var))
    )
    return y.reshape(x.shape).to(x.dtype), *running


def _instance_norm(x: Tensor, scale: Tensor, b: Tensor, *, epsilon: float) -> Tensor:
    return torch.group_norm(x, x.shape[1], scale, b, epsilon)


def _group_norm(
    x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float, num_groups: int, stash_type: int
) -> Tensor:
    return torch.group_norm(x, num_groups, scale, bias, epsilon)


def _layer_norm(
    x: Tensor,
    scale: Tensor,
    b: Tensor | None = None,
    *,
    axis: int,
    epsilon: float,
    stash_type: int,
) -> tuple[Tensor, Tensor, Tensor]:
    over, saved = _normalized(x, axis), torch_type(stash_type)
    fits = scale.shape == over and (b is None or b.shape == over)
    if fits and len(over) == 1 and has_norm(x):
        from sardonyx.providers.torch.kernels.normalize import normalize

        y, mean, inverse, _ = normalize(x, scale, b, epsilon)
    elif fits and not (x.is_cpu and x.dtype is not wide_type(x.dtype)):
        y, mean, inverse = torch.native_layer_norm(x, over, scale, b, epsilon)
    else:  # torch's CPU kernel would round the statistics to 16-bit floats
        y, mean, inverse = torch.native_layer_norm(wide(x), over, None, None, epsilon)
        y = y * wide(scale)
        y = (y if b is None else y + wide(b)).to(x.dtype)
    if mean.dtype is not saved:
        mean, inverse = mean.to(saved), inverse.to(saved)
    return y, mean, inverse


def _normalized(x: Tensor, axis: int) -> Sizes:
    """Return the sizes of the normalized axes."""
    return x.shape[axis_of(axis, x.ndim) :]


def _rms_norm(x: Tensor, scale: Tensor, *, axis: int, epsilon: float, stash_type: int) -> Tensor:
    over = _normalized(x, axis)
    if scale.shape == over and len(over) == 1 and scale.dtype is x.dtype and has_norm(x):
        from sardonyx.providers.torch.kernels.normalize import normalize

        return normalize(x, scale, None, epsilon, is_rms=True)[0]
    if scale.shape == over and scale.dtype is x.dtype:
        return _RMS_NORM(x, over, scale, epsilon)
    return _scaled(x, _inverse_rms(x, len(over), epsilon), scale)


def _simplified(
    x: Tensor, scale: Tensor, *, axis: int, epsilon: float, stash_type: int
) -> tuple[Tensor, Tensor]:
    over, saved = _normalized(x, axis), torch_type(stash_type)
    if scale.shape == over and len(over) == 1 and scale.dtype is x.dtype and has_norm(x):
        from sardonyx.providers.torch.kernels.normalize import normalize

        y, _, inverse, _ = normalize(x, scale, None, epsilon, is_rms=True)
        return y, inverse.to(saved)
    if scale.shape == over and scale.dtype is x.dtype:
        y, inverse = rms_norm(x, over, scale, epsilon)
        return y, inverse.to(saved)
    inverse = _inverse_rms(x, len(over), epsilon)
    return _scaled(x, inverse, scale), inverse.to(saved)


def rms_norm(
    x: Tensor, over: Sequence[int], scale: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Return the RMS norm over the last axes, and the inverse root mean square."""
    if hasattr(torch.ops.aten, "_fused_rms_norm"):  # torch 2.8 and later
        y, inverse = torch.ops.aten._fused_rms_norm(x, over, scale, epsilon)
        return y, inverse
    inverse = _inverse_rms(x, len(over), epsilon)
    return _scaled(x, inverse, scale), inverse


def _inverse_rms(x: Tensor, count: int, epsilon: float) -> Tensor:
    """Return 1 / sqrt(mean square + epsilon) over the last `count` axes."""
    square = wide(x).square().mean(tuple(range(-count, 0)), keepdim=True)
    return torch.rsqrt(square + epsilon)


def _scaled(x: Tensor, inverse: Tensor, scale: Tensor) -> Tensor:
    return (wide(x) * inverse * wide(scale)).to(scale.dtype)


def _lp_norm(x: Tensor, *, axis: int, p: int) -> Tensor:
    norm = torch.linalg.vector_norm(x, p, axis, keepdim=True)
    return torch.where(norm == 0, 0, x / norm)


def _lrn(x: Tensor, *, alpha: float, beta: float, bias: float, size: int) -> Tensor:
    padding = [*(0,) * (2 * x.ndim - 4), (size - 1) // 2, size // 2]
    total = F.pad(x * x, padding).unfold(1, size, 1).sum(-1)
    return x / (bias + alpha / size * total) ** beta


def _mean_variance(x: Tensor, *, axes: tuple[int, ...]) -> Tensor:
    var, mean = torch.var_mean(x, axes_of(axes, x.ndim), correction=0, keepdim=True)
    return (x - mean) / (torch.sqrt(var) + 1e-9)


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
    ("", "BatchNormalization"): TorchKernel(_batch_norm, REALS),
    ("", "InstanceNormalization"): TorchKernel(_instance_norm, REALS),
    ("", "GroupNormalization"): TorchKernel(_group_norm, REALS),
    ("", "LayerNormalization"): TorchKernel(_layer_norm, REALS),
    ("", "RMSNormalization"): TorchKernel(_rms_norm, REALS),
    ("", "SimplifiedLayerNormalization"): TorchKernel(_simplified, REALS),
    ("", "LpNormalization"): TorchKernel(in_wide(_lp_norm), REALS),
    ("", "LRN"): TorchKernel(in_wide(_lrn), REALS),
    ("", "MeanVarianceNormalization"): TorchKernel(in_wide(_mean_variance), REALS),
    (MICROSOFT, "SkipLayerNormalization"): TorchKernel(_skip_layer, REALS),
    (MICROSOFT, "SkipSimplifiedLayerNormalization"): TorchKernel(_skip_simplified, REALS),
}
