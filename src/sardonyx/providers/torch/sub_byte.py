"""Types of fewer than 8 bits on a device: torch has none, so each element takes a byte."""

from __future__ import annotations

import torch
from torch import Tensor

from sardonyx.graph.dtype import DType
from sardonyx.providers.torch.dtypes import TORCH


def storage_type(dtype: DType) -> torch.dtype:
    """Return the torch type that stores an element type."""
    return torch.int8 if dtype.bits < 8 and dtype.kind == "int" else TORCH.get(dtype, torch.uint8)


def unpacked(raw: Tensor, dtype: DType, count: int) -> Tensor:
    """Return one element per byte, from ONNX's packed bytes (low bits first)."""
    if dtype.bits == 6:  # four elements in three bytes
        padded = torch.nn.functional.pad(raw, (0, -raw.numel() % 3)).view(-1, 3).int()
        word = padded[:, 0] | padded[:, 1] << 8 | padded[:, 2] << 16
        codes = torch.stack([word >> shift & 63 for shift in range(0, 24, 6)], 1)
        return codes.to(torch.uint8).view(-1)[:count]
    mask = (1 << dtype.bits) - 1
    codes = torch.stack([raw >> shift & mask for shift in range(0, 8, dtype.bits)], 1)
    codes = codes.view(-1)[:count]
    if dtype.kind == "int":  # sign extension by wrapping arithmetic on bytes
        sign = 1 << (dtype.bits - 1)
        codes = ((codes ^ sign) - sign).view(torch.int8)
    return codes
