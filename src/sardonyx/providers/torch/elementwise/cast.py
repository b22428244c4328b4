"""Conversions between element types."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from sardonyx.graph.dtype import COMPLEX, DType
from sardonyx.providers.torch.dtypes import TORCH, torch_type
from sardonyx.providers.torch.kernel import TorchKernel, TorchKernels

_LARGEST: Final = {
    torch.float8_e4m3fn: 448.0,
    torch.float8_e4m3fnuz: 240.0,
    torch.float8_e5m2: 57344.0,
    torch.float8_e5m2fnuz: 57344.0,
}
_HALF_WAY: Final = 464.0  # between the largest float8e4m3fn and the number that would follow
# By target type: types that float32 cannot represent, so that a cast via float32 rounds twice.
_LONG: Final = {
    torch.float16: frozenset((torch.float64,)),
    torch.bfloat16: frozenset((
        torch.float64, torch.int32, torch.int64, torch.uint32, torch.uint64,
    )),
    **dict.fromkeys(_LARGEST, frozenset((torch.float64,))),
}  # fmt: skip


def convert(x: Tensor, to: torch.dtype, saturate: bool = True) -> Tensor:
    """Return the elements in another type, by the rules of ONNX's Cast."""
    if x.dtype is to:
        return x
    if x.dtype in _LONG.get(to, ()):
        x = _to_odd(x)
    if to in _LARGEST:
        x = x.float()
        if saturate:
            x = torch.clamp(x, -_LARGEST[to], _LARGEST[to])
        elif to is torch.float8_e4m3fn:  # torch always saturates to this type
            x = x.masked_fill(x.abs() > _HALF_WAY, torch.nan)
    elif x.dtype in _LARGEST:
        x = x.float()
    return x.to(to)


def _to_odd(x: Tensor) -> Tensor:
    """Return float32 rounded to odd, which a second rounding to fewer bits does not falsify."""
    exact = x.double()
    near = exact.float()
    bits, back = near.view(torch.int32), near.double()
    step = torch.where(back.abs() < exact.abs(), 1, -1).int()
    is_wrong = (bits & 1 == 0) & (back != exact) & near.isfinite()
    return torch.where(is_wrong, bits + step, bits).view(torch.float32)


def _cast(x: Tensor, *, to: int, saturate: int, round_mode: bytes) -> Tensor:
    return convert(x, torch_type(to), bool(saturate))


def _cast_like(x: Tensor, like: Tensor, *, saturate: int, round_mode: bytes) -> Tensor:
    return convert(x, like.dtype, bool(saturate))


def _bit_cast(x: Tensor, *, to: int) -> Tensor:
    dtype = torch_type(to)
    return x.view(torch.uint8) != 0 if dtype is torch.bool else x.view(dtype)


_REAL: Final[frozenset[DType]] = frozenset(TORCH) - COMPLEX

KERNELS: Final[TorchKernels] = {
    ("", "Cast"): TorchKernel(_cast, _REAL),
    ("", "CastLike"): TorchKernel(_cast_like, _REAL),
    ("", "BitCast"): TorchKernel(_bit_cast, frozenset(TORCH)),
}
