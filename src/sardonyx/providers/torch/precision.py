"""Arithmetic in a wider type: 16-bit floats are computed in float32 and rounded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

FLOAT16_TYPES: Final = (torch.float16, torch.bfloat16)
_NARROW: Final = frozenset((
    *FLOAT16_TYPES,
    torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz,
))  # fmt: skip


def wide(x: Tensor) -> Tensor:
    """Return the tensor in its type for arithmetic: float32 for narrower floats."""
    return x.float() if x.dtype in _NARROW else x


def wide_type(dtype: torch.dtype) -> torch.dtype:
    """Return the type for arithmetic on a type."""
    return torch.float32 if dtype in _NARROW else dtype


def in_wide(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap a function to compute narrow floats in float32, rounded to its first input's type."""

    def run(*tensors: Any, **attrs: Any) -> Tensor:
        dtype = tensors[0].dtype
        if dtype not in _NARROW:
            return function(*tensors, **attrs)
        widened = (wide(t) if isinstance(t, Tensor) else t for t in tensors)
        return function(*widened, **attrs).to(dtype)

    return run
