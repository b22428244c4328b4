"""Activation functions: elementwise, each with its own attributes."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

from sardonyx.graph.graph import Node
from sardonyx.graph.op import MICROSOFT
from sardonyx.providers.torch.dtypes import in_wide
from sardonyx.providers.torch.kernel import REALS, WHOLE, TorchKernel, TorchKernels

_SIXTH: Final = float(np.float32(1 / 6))
_LINEAR_FROM: Final = 40.0  # log(1 + exp(x)) equals x from here on, in every type


def _hard_sigmoid(x: Tensor, alpha: float, beta: float) -> Tensor:
    # torch's own function has the fixed slope 1/6.
    is_torch = alpha == _SIXTH and beta == 0.5
    return F.hardsigmoid(x) if is_torch else _clamped_line(x, alpha, beta)


_clamped_line: Final = in_wide(lambda x, alpha, beta: torch.clamp(x * alpha + beta, 0, 1))


def _shrink(x: Tensor, bias: float, lambd: float) -> Tensor:
    z = x if x.is_floating_point() else x.double()
    outside = torch.where(z > lambd, z - bias, 0)
    return torch.where(z < -lambd, z + bias, outside).to(x.dtype)


def _swish(x: Tensor, alpha: float) -> Tensor:
    return F.silu(x) if alpha == 1 else _scaled_swish(x, alpha)


_scaled_swish: Final = in_wide(lambda x, alpha: x * torch.sigmoid(x * alpha))
# For the CPU, where torch's own Gelu makes NaN of infinity.
_gelu_by_erf: Final = in_wide(lambda x: 0.5 * x * (1 + torch.erf(x * 0.5**0.5)))


def _exact_gelu(x: Tensor) -> Tensor:
    return _gelu_by_erf(x) if x.is_cpu else F.gelu(x)


def _gelu(x: Tensor, approximate: bytes) -> Tensor:
    return F.gelu(x, approximate="tanh") if approximate == b"tanh" else _exact_gelu(x)


def _fast_gelu(x: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.gelu(x, approximate="tanh") if bias is None else _fast_biased(x, bias)


_fast_biased: Final = in_wide(lambda x, bias: F.gelu(x + bias, approximate="tanh"))


def _prelu(x: Tensor, slope: Tensor) -> Tensor:
    # torch's function takes one slope, or one per channel.
    is_per_channel = x.ndim > 1 and slope.shape == (x.shape[1], *(1,) * (x.ndim - 2))
    if x.is_floating_point() and (is_per_channel or slope.numel() == 1):
        return F.prelu(x, slope.reshape(-1))
    return _broadcast_prelu(x, slope)


_broadcast_prelu: Final = in_wide(lambda x, slope: torch.where(x < 0, x * slope, x))


def _needs_alpha(node: Node) -> str:
    return "" if node.attrs["alpha"] else "torch has no Celu with alpha 0: give it another alpha"


# Functions of torch round 16-bit floats once; compositions of several ops are computed `in_wide`.
KERNELS: Final[TorchKernels] = {
    ("", "Relu"): TorchKernel(torch.relu, REALS | WHOLE),
    ("", "LeakyRelu"): TorchKernel(lambda x, alpha: F.leaky_relu(x, alpha), REALS),
    ("", "Elu"): TorchKernel(lambda x, alpha: F.elu(x, alpha), REALS),
    ("", "Selu"): TorchKernel(lambda x, alpha, gamma: torch.ops.aten.elu(x, alpha, gamma), REALS),
    ("", "Celu"): TorchKernel(lambda x, alpha: F.celu(x, alpha), REALS, refuses=_needs_alpha),
    ("", "HardSigmoid"): TorchKernel(_hard_sigmoid, REALS),
    ("", "HardSwish"): TorchKernel(F.hardswish, REALS),
    ("", "Softplus"): TorchKernel(lambda x: F.softplus(x, 1.0, _LINEAR_FROM), REALS),
    ("", "Softsign"): TorchKernel(in_wide(lambda x: x / (1 + x.abs())), REALS),
    ("", "ThresholdedRelu"): TorchKernel(
        in_wide(lambda x, alpha: torch.where(x > alpha, x, 0)), REALS
    ),
    ("", "Shrink"): TorchKernel(in_wide(_shrink), REALS | WHOLE),
    ("", "Mish"): TorchKernel(F.mish, REALS),
    ("", "Swish"): TorchKernel(_swish, REALS),
    ("", "Gelu"): TorchKernel(_gelu, REALS),
    ("", "PRelu"): TorchKernel(_prelu, REALS | WHOLE),
    ("", "SwiGLU"): TorchKernel(in_wide(lambda a, b, alpha: _swish(a, alpha) * b), REALS),
    (MICROSOFT, "Gelu"): TorchKernel(_exact_gelu, REALS),
    (MICROSOFT, "BiasGelu"): TorchKernel(in_wide(lambda x, bias: _exact_gelu(x + bias)), REALS),
    (MICROSOFT, "FastGelu"): TorchKernel(_fast_gelu, REALS),
    (MICROSOFT, "QuickGelu"): TorchKernel(_scaled_swish, REALS),
}
