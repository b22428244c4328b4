"""Activation functions: elementwise, each with its own attributes."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

from sardonyx.graph.graph import Node
from sardonyx.graph.op import MICROSOFT
from sardonyx.providers.torch.kernel import REALS, WHOLE, TorchKernel, TorchKernels
from sardonyx.providers.torch.precision import in_wide

_SIXTH: Final = float(np.float32(1 / 6))
_LONG: Final = 40.0  # from where on log(1 + exp(x)) is x in every type


def _leaky_relu(x: Tensor, *, alpha: float) -> Tensor:
    return F.leaky_relu(x, alpha)


def _elu(x: Tensor, *, alpha: float) -> Tensor:
    return F.elu(x, alpha)


def _selu(x: Tensor, *, alpha: float, gamma: float) -> Tensor:
    made: Tensor = torch.ops.aten.elu(x, alpha, gamma)
    return made


def _celu(x: Tensor, *, alpha: float) -> Tensor:
    return F.celu(x, alpha)


def _hard_sigmoid(x: Tensor, *, alpha: float, beta: float) -> Tensor:
    if alpha == _SIXTH and beta == 0.5:
        return F.hardsigmoid(x)
    return _clamped_line(x, alpha, beta)


@in_wide
def _clamped_line(x: Tensor, alpha: float, beta: float) -> Tensor:
    return torch.clamp(x * alpha + beta, 0, 1)


def _softplus(x: Tensor) -> Tensor:
    return F.softplus(x, 1.0, _LONG)


def _softsign(x: Tensor) -> Tensor:
    return x / (1 + x.abs())


def _thresholded_relu(x: Tensor, *, alpha: float) -> Tensor:
    return torch.where(x > alpha, x, 0)


def _shrink(x: Tensor, *, bias: float, lambd: float) -> Tensor:
    z = x if x.is_floating_point() else x.double()
    outside = torch.where(z > lambd, z - bias, 0)
    return torch.where(z < -lambd, z + bias, outside).to(x.dtype)


def _mish(x: Tensor) -> Tensor:
    return F.mish(x)


def _swish(x: Tensor, *, alpha: float) -> Tensor:
    return F.silu(x) if alpha == 1 else _scaled_swish(x, alpha=alpha)


@in_wide
def _scaled_swish(x: Tensor, *, alpha: float) -> Tensor:
    return x * torch.sigmoid(x * alpha)


def _gelu(x: Tensor, *, approximate: bytes) -> Tensor:
    return F.gelu(x, approximate="tanh") if approximate == b"tanh" else _exact_gelu(x)


def _exact_gelu(x: Tensor) -> Tensor:
    return _gelu_by_erf(x) if x.is_cpu else F.gelu(x)


@in_wide
def _gelu_by_erf(x: Tensor) -> Tensor:
    """For the CPU, where torch's own makes NaN of infinity."""
    return 0.5 * x * (1 + torch.erf(x * 0.5**0.5))


def _prelu(x: Tensor, slope: Tensor) -> Tensor:
    is_each = x.ndim > 1 and slope.shape == (x.shape[1], *(1,) * (x.ndim - 2))
    if x.is_floating_point() and (is_each or slope.numel() == 1):
        return F.prelu(x, slope.reshape(-1))
    return _sloped(x, slope)


@in_wide
def _sloped(x: Tensor, slope: Tensor) -> Tensor:
    return torch.where(x < 0, x * slope, x)


def _swiglu(a: Tensor, b: Tensor, *, alpha: float) -> Tensor:
    return _swish(a, alpha=alpha) * b


def _biased_gelu(x: Tensor, bias: Tensor) -> Tensor:
    return _exact_gelu(x + bias)


def _fast_gelu(x: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.gelu(x, approximate="tanh") if bias is None else _fast_biased(x, bias)


@in_wide
def _fast_biased(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias, approximate="tanh")


def _needs_alpha(node: Node) -> str:
    return "" if node.attrs["alpha"] else "torch has no Celu with alpha 0: give it another alpha"


KERNELS: Final[TorchKernels] = {
    ("", "Relu"): TorchKernel(torch.relu, REALS | WHOLE),
    ("", "LeakyRelu"): TorchKernel(_leaky_relu, REALS),
    ("", "Elu"): TorchKernel(_elu, REALS),
    ("", "Selu"): TorchKernel(_selu, REALS),
    ("", "Celu"): TorchKernel(_celu, REALS, refuses=_needs_alpha),
    ("", "HardSigmoid"): TorchKernel(_hard_sigmoid, REALS),
    ("", "HardSwish"): TorchKernel(F.hardswish, REALS),
    ("", "Softplus"): TorchKernel(_softplus, REALS),
    ("", "Softsign"): TorchKernel(in_wide(_softsign), REALS),
    ("", "ThresholdedRelu"): TorchKernel(in_wide(_thresholded_relu), REALS),
    ("", "Shrink"): TorchKernel(in_wide(_shrink), REALS | WHOLE),
    ("", "Mish"): TorchKernel(_mish, REALS),
    ("", "Swish"): TorchKernel(_swish, REALS),
    ("", "Gelu"): TorchKernel(_gelu, REALS),
    ("", "PRelu"): TorchKernel(_prelu, REALS | WHOLE),
    ("", "SwiGLU"): TorchKernel(in_wide(_swiglu), REALS),
    (MICROSOFT, "Gelu"): TorchKernel(_exact_gelu, REALS),
    (MICROSOFT, "BiasGelu"): TorchKernel(in_wide(_biased_gelu), REALS),
    (MICROSOFT, "FastGelu"): TorchKernel(_fast_gelu, REALS),
    (MICROSOFT, "QuickGelu"): TorchKernel(_scaled_swish, REALS),
}
