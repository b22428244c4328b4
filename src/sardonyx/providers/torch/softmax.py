"""Softmax, LogSoftmax and Hardmax."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from sardonyx.providers.torch.kernel import REALS, TorchKernel, TorchKernels


def _hardmax(x: Tensor, axis: int) -> Tensor:
    # argmax gives the first of equal maxima, as ONNX requires.
    y = torch.zeros_like(x)
    return y.scatter(axis, x.argmax(axis, keepdim=True), 1) if x.numel() else y


KERNELS: Final[TorchKernels] = {
    ("", "Softmax"): TorchKernel(lambda x, axis: torch.softmax(x, axis), REALS),
    ("", "LogSoftmax"): TorchKernel(lambda x, axis: torch.log_softmax(x, axis), REALS),
    ("", "Hardmax"): TorchKernel(_hardmax, REALS),
}
