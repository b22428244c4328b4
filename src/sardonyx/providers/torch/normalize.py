"""Normalization: batch, instance, group, layer, RMS, Lp, local response; with skip connections."""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

from sardonyx.graph.dtype import F32
from sardonyx.graph.graph import Node
from sardonyx.graph.op import MICROSOFT
from sardonyx.ops.inference import axes_of, axis_of
from sardonyx.providers.torch.dtypes import in_wide, torch_type, wide, wide_type
from sardonyx.providers.torch.kernel import REALS, TorchKernel, TorchKernels
from sardonyx.providers.torch.kernels import usable

# The wrapper in torch.nn.functional doubles the time of small calls.
_BATCH_NORM: Final[Any] = torch.batch_norm
# Of the Triton kernel, which holds a whole row in the registers of a program.
_MAX_KERNEL_COLUMNS: Final = 16384
_KERNEL_TYPES: Final = (torch.float32, torch.float16, torch.bfloat16)


def _has_kernel(x: Tensor) -> bool:
    """Return whether the Triton kernel applies to rows of a tensor."""
    return x.dtype in _KERNEL_TYPES and 0 < x.shape[-1] <= _MAX_KERNEL_COLUMNS and usable(x.device)


def _kernel(*operands: Any, **options: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return y, mean, inverse deviation and sum by the Triton kernel, imported on first use."""
    from sardonyx.providers.torch.kernels.normalize import normalize

    return normalize(*operands, **options)


def _batch_norm(x: Tensor, *parameters: Tensor, epsilon: float, **_: Any) -> tuple[Tensor]:
    if any(p.dtype is not x.dtype for p in parameters):
        parameters = tuple(p.to(wide_type(x.dtype)) for p in parameters)
    images = x if x.ndim > 1 else x.unsqueeze(1)
    y = _BATCH_NORM(images, *parameters, False, 0.0, epsilon, True)
    return (y if x.ndim > 1 else y.squeeze(1),)


def _refuses_training(node: Node) -> str:
    return "batch statistics are computed by other ops" if node.attrs["training_mode"] else ""


def _layer_norm(
    x: Tensor, scale: Tensor, b: Tensor | None = None, *, axis: int, epsilon: float, stash_type: int
) -> tuple[Tensor, Tensor, Tensor]:
    over, saved = x.shape[axis_of(axis, x.ndim) :], torch_type(stash_type)
    fits = scale.shape == over and (b is None or b.shape == over)
    if fits and len(over) == 1 and _has_kernel(x):
        y, mean, inverse, _ = _kernel(x, scale, b, epsilon)
    elif fits and not (x.is_cpu and x.dtype is not wide_type(x.dtype)):
        y, mean, inverse = torch.native_layer_norm(x, over, scale, b, epsilon)
    else:  # torch's CPU kernel would round the statistics to 16-bit floats
        y, mean, inverse = torch.native_layer_norm(wide(x), over, None, None, epsilon)
        y = y * wide(scale)
        y = (y if b is None else y + wide(b)).to(x.dtype)
    if mean.dtype is not saved:
        mean, inverse = mean.to(saved), inverse.to(saved)
    return y, mean, inverse


def _simplified(
    x: Tensor, scale: Tensor, *, axis: int, epsilon: float, stash_type: int
) -> tuple[Tensor, Tensor]:
    """Return the RMS norm over the last axes, and the inverse root mean square."""
    over = x.shape[axis_of(axis, x.ndim) :]
    fits = scale.shape == over and scale.dtype is x.dtype
    if fits and len(over) == 1 and _has_kernel(x):
        y, _, inverse, _ = _kernel(x, scale, None, epsilon, is_rms=True)
    elif fits and hasattr(torch.ops.aten, "_fused_rms_norm"):  # torch 2.8 and later
        y, inverse = torch.ops.aten._fused_rms_norm(x, over, scale, epsilon)
    else:
        square = wide(x).square().mean(tuple(range(-len(over), 0)), keepdim=True)
        inverse = torch.rsqrt(square + epsilon)
        y = (wide(x) * inverse * wide(scale)).to(scale.dtype)
    return y, inverse.to(torch_type(stash_type))


def _rms_norm(x: Tensor, scale: Tensor, **attrs: Any) -> Tensor:
    return _simplified(x, scale, **attrs)[0]


def _skip_layer(
    x: Tensor, skip: Tensor, gamma: Tensor, beta: Tensor | None = None, bias: Tensor | None = None,
    *, epsilon: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    if _has_kernel(x):
        return _kernel(x, gamma, beta, epsilon, skip=_broadcast(skip, x), bias=bias)
    total = _add_skip(x, skip, bias)
    shift = None if beta is None else wide(beta)
    y, mean, inverse = torch.native_layer_norm(total, (x.shape[-1],), wide(gamma), shift, epsilon)
    return y.to(x.dtype), mean, inverse, total.to(x.dtype)


def _skip_simplified(
    x: Tensor, skip: Tensor, gamma: Tensor, bias: Tensor | None = None, *, epsilon: float
) -> tuple[Tensor, ...]:
    if _has_kernel(x):
        return _kernel(x, gamma, None, epsilon, skip=_broadcast(skip, x), bias=bias, is_rms=True)
    # The sum is not rounded to 16 bits before it is normalized.
    total = _add_skip(x, skip, bias)
    y, inverse = _simplified(total, wide(gamma), axis=-1, epsilon=epsilon, stash_type=F32.onnx)
    return y.to(x.dtype), torch.zeros_like(inverse), inverse, total.to(x.dtype)


def _broadcast(skip: Tensor, x: Tensor) -> Tensor:
    # Only if needed: a view costs as much time on the host as a launch.
    return skip if skip.shape == x.shape else skip.expand(x.shape)


def _add_skip(x: Tensor, skip: Tensor, bias: Tensor | None) -> Tensor:
    total = wide(x) + skip
    return total if bias is None else total + bias


def _lp_norm(x: Tensor, *, axis: int, p: int) -> Tensor:
    norm = torch.linalg.vector_norm(x, p, axis, keepdim=True)
    return torch.where(norm == 0, 0, x / norm)


def _lrn(x: Tensor, *, alpha: float, beta: float, bias: float, size: int) -> Tensor:
    # Sums over windows of channels, by a view of the padded squares.
    padding = [*(0,) * (2 * x.ndim - 4), (size - 1) // 2, size // 2]
    total = F.pad(x * x, padding).unfold(1, size, 1).sum(-1)
    return x / (bias + alpha / size * total) ** beta


def _mean_variance(x: Tensor, *, axes: tuple[int, ...]) -> Tensor:
    var, mean = torch.var_mean(x, axes_of(axes, x.ndim), correction=0, keepdim=True)
    return (x - mean) / (torch.sqrt(var) + 1e-9)


# InstanceNormalization is a group norm with one channel per group.
KERNELS: Final[TorchKernels] = {
    ("", "BatchNormalization"): TorchKernel(_batch_norm, REALS, refuses=_refuses_training),
    ("", "InstanceNormalization"): TorchKernel(
        lambda x, scale, b, epsilon: torch.group_norm(x, x.shape[1], scale, b, epsilon), REALS
    ),
    ("", "GroupNormalization"): TorchKernel(
        lambda x, scale, bias, epsilon, num_groups, stash_type: torch.group_norm(
            x, num_groups, scale, bias, epsilon
        ),
        REALS,
    ),
    ("", "LayerNormalization"): TorchKernel(_layer_norm, REALS),
    ("", "RMSNormalization"): TorchKernel(_rms_norm, REALS),
    ("", "SimplifiedLayerNormalization"): TorchKernel(_simplified, REALS),
    ("", "LpNormalization"): TorchKernel(in_wide(_lp_norm), REALS),
    ("", "LRN"): TorchKernel(in_wide(_lrn), REALS),
    ("", "MeanVarianceNormalization"): TorchKernel(in_wide(_mean_variance), REALS),
    (MICROSOFT, "SkipLayerNormalization"): TorchKernel(_skip_layer, REALS),
    (MICROSOFT, "SkipSimplifiedLayerNormalization"): TorchKernel(_skip_simplified, REALS),
}
