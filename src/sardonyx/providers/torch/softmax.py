"""Softmax and its kin."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from sardonyx.providers.torch.row import REALS, Row, Rows


def softmax(x: Tensor, *, axis: int) -> Tensor:
    """Exponentials over their sum."""
    return torch.softmax(x, axis)


def log_softmax(x: Tensor, *, axis: int) -> Tensor:
    """The logarithm of `softmax`."""
    return torch.log_softmax(x, axis)


ROWS: Final[Rows] = {
    ("", "Softmax"): Row(softmax, REALS),
    ("", "LogSoftmax"): Row(log_softmax, REALS),
}
