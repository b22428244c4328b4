"""Arithmetic in a wider type: half types are computed in float32 and rounded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

HALVES: Final = (torch.float16, torch.bfloat16)
_NARROW: Final = frozenset((
    *HALVES, torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz,
))  # fmt: skip


def wide(x: Tensor) -> Tensor:
    """The tensor in the type that arithmetic on it is done in: float32 for narrower floats."""
    return x.float() if x.dtype in _NARROW else x


def wide_type(dtype: torch.dtype) -> torch.dtype:
    """The type that arithmetic on a type is done in."""
    return torch.float32 if dtype in _NARROW else dtype


def in_wide(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function with narrow floats in float32, rounded once to its first input's type."""

    def run(*tensors: Any, **attrs: Any) -> Tensor:
        dtype = tensors[0].dtype
        if dtype not in _NARROW:
            return function(*tensors, **attrs)
        widened = (wide(t) if isinstance(t, Tensor) else t for t in tensors)
        return function(*widened, **attrs).to(dtype)

    return run
