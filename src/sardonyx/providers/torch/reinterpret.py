"""Element types that torch stores but has few kernels for: moved as integers of the same size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from sardonyx.graph.dtype import DType
from sardonyx.providers.torch.dtypes import TORCH

MOVED: Final[frozenset[DType]] = frozenset(
    TORCH
)  # types of ops that move elements without reading them
FLOAT8_TYPES: Final = frozenset(d for d in MOVED if d.is_float and d.bits == 8)
CARRIERS: Final = {
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
    torch.complex64: torch.int64,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e4m3fnuz: torch.uint8,
    torch.float8_e5m2: torch.uint8,
    torch.float8_e5m2fnuz: torch.uint8,
}


def blind(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap a function that moves elements: it sees integers of the same size (the carrier)."""

    def run(x: Tensor, *rest: Any, **attrs: Any) -> Tensor:
        carrier = CARRIERS.get(x.dtype)
        if carrier is None:
            return function(x, *rest, **attrs)
        carried = (
            r.view(carrier) if isinstance(r, Tensor) and r.dtype is x.dtype else r for r in rest
        )
        return function(x.view(carrier), *carried, **attrs).view(x.dtype)

    return run
