"""Types of fewer than 8 bits on a device: torch has none, so that each element is a byte there."""

from __future__ import annotations

import torch
from torch import Tensor

from sardonyx.graph.dtype import DType
from sardonyx.providers.torch.dtypes import TORCH


def held_as(dtype: DType) -> torch.dtype:
    """The type of a device's tensors for an element type."""
    return torch.int8 if dtype.bits < 8 and dtype.kind == "int" else TORCH.get(dtype, torch.uint8)


def unpacked(raw: Tensor, dtype: DType, count: int) -> Tensor:
    """Elements one to a byte, from bytes in ONNX's packed form (low bits first)."""
    if dtype.bits == 6:  # four elements in three bytes
        padded = torch.nn.functional.pad(raw, (0, -raw.numel() % 3)).view(-1, 3).int()
        word = padded[:, 0] | padded[:, 1] << 8 | padded[:, 2] << 16
        fields = torch.stack([word >> shift & 63 for shift in range(0, 24, 6)], 1)
        return fields.to(torch.uint8).view(-1)[:count]
    mask = (1 << dtype.bits) - 1
    parts = torch.stack([raw >> shift & mask for shift in range(0, 8, dtype.bits)], 1)
    fields = parts.view(-1)[:count]
    if dtype.kind == "int":  # bytes wrap, so that the sign bit of a field becomes that of its byte
        sign = 1 << (dtype.bits - 1)
        fields = ((fields ^ sign) - sign).view(torch.int8)
    return fields
