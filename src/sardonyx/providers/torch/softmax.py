"""Softmax and its kin."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from sardonyx.providers.torch.kernel import REALS, TorchKernel, TorchKernels


def softmax(x: Tensor, *, axis: int) -> Tensor:
    """Exponentials over their sum."""
    return torch.softmax(x, axis)


def log_softmax(x: Tensor, *, axis: int) -> Tensor:
    """The logarithm of `softmax`."""
    return torch.log_softmax(x, axis)


def hardmax(x: Tensor, *, axis: int) -> Tensor:
    """One at the first of the largest numbers along an axis, zero elsewhere."""
    y = torch.zeros_like(x)
    return y.scatter(axis, x.argmax(axis, keepdim=True), 1) if x.numel() else y


KERNELS: Final[TorchKernels] = {
    ("", "Softmax"): TorchKernel(softmax, REALS),
    ("", "LogSoftmax"): TorchKernel(log_softmax, REALS),
    ("", "Hardmax"): TorchKernel(hardmax, REALS),
}
