"""Element types of torch: their ONNX types, wider types for arithmetic, and their storage.

Types that torch stores but has few kernels for are moved as integers of the same size (carriers).
Types of fewer than 8 bits have one element per byte, because torch has none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from sardonyx.base.torch_tensor import Borrowed
from sardonyx.graph.dtype import DType, by_name, by_onnx

_NAMES: Final = {
    "f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16,
    "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64,
    "u8": torch.uint8, "u16": torch.uint16, "u32": torch.uint32, "u64": torch.uint64,
    "bool": torch.bool, "c64": torch.complex64, "c128": torch.complex128,
    "f8e4m3fn": torch.float8_e4m3fn, "f8e4m3fnuz": torch.float8_e4m3fnuz,
    "f8e5m2": torch.float8_e5m2, "f8e5m2fnuz": torch.float8_e5m2fnuz,
}  # fmt: skip
TORCH: Final = {by_name(name): dtype for name, dtype in _NAMES.items()}
_OURS: Final = {dtype: ours for ours, dtype in TORCH.items()}
# Types of ops that move elements without reading them.
MOVED: Final[frozenset[DType]] = frozenset(TORCH)
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
FLOAT16_TYPES: Final = (torch.float16, torch.bfloat16)
_NARROW: Final = frozenset((
    *FLOAT16_TYPES,
    torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz,
))  # fmt: skip


def ours(dtype: torch.dtype) -> DType | None:
    """Return the element type of a torch type; None if ONNX has none."""
    return _OURS.get(dtype)


def torch_type(onnx_type: int) -> torch.dtype:
    """Return the torch type of an ONNX type number, such as the attribute `to` of Cast."""
    dtype = by_onnx(onnx_type)
    assert dtype is not None
    return TORCH[dtype]


def as_tensor(array: np.ndarray[Any, Any], dtype: DType) -> torch.Tensor:
    """Return a CPU tensor over an array's memory; types under 8 bits have one element per byte."""
    torch_type = TORCH.get(dtype, torch.uint8)
    if dtype.bits < 8 and dtype.kind == "int":  # sign-extended to a byte
        return _shared(array.astype(np.int8))
    if array.dtype.type.__module__ != "numpy":  # ml_dtypes: reinterpret the same bits
        bits = np.ascontiguousarray(array).view(np.uint8 if array.itemsize == 1 else np.int16)
        return _shared(bits.reshape(array.shape)).view(torch_type)
    return _shared(np.ascontiguousarray(array).reshape(array.shape))


class _Alias:
    """A read-only array's memory, presented as writable so that torch does not warn."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}


def _shared(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """Return a tensor over an array's memory; nothing writes to it."""
    # Negative strides are possible along an axis of one element; torch rejects them.
    if any(stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array if array.flags.writeable else np.asarray(_Alias(array)))


def as_array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return an array over a CPU tensor's memory."""
    dtype = ours(tensor.dtype)
    assert dtype is not None
    tensor = tensor.detach().contiguous()
    if not tensor.numel():
        return np.empty(tuple(tensor.shape), dtype.np)
    if dtype.np.type.__module__ != "numpy":
        return np.asarray(Borrowed(tensor, f"<u{dtype.itemsize}")).view(dtype.np)
    return np.asarray(Borrowed(tensor, dtype.np.str))


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


def via_carrier(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap a function that only moves elements: it receives them as integers of the same size."""

    def run(x: Tensor, *rest: Any, **attrs: Any) -> Tensor:
        carrier = CARRIERS.get(x.dtype)
        if carrier is None:
            return function(x, *rest, **attrs)
        carried = (
            r.view(carrier) if isinstance(r, Tensor) and r.dtype is x.dtype else r for r in rest
        )
        return function(x.view(carrier), *carried, **attrs).view(x.dtype)

    return run


def storage_type(dtype: DType) -> torch.dtype:
    """Return the torch type that stores an element type."""
    return torch.int8 if dtype.bits < 8 and dtype.kind == "int" else TORCH.get(dtype, torch.uint8)


def unpacked(packed: Tensor, bits: int, is_signed: bool = False) -> Tensor:
    """Return the n-bit codes in bytes along the last axis, low bits first."""
    if bits == 8:
        return packed.view(torch.int8) if is_signed else packed
    low = (1 << bits) - 1
    codes = [packed >> shift & low for shift in range(0, 8 - bits, bits)]
    codes.append(packed >> 8 - bits)  # the highest code needs no mask
    numbers = torch.stack(codes, -1).flatten(-2)
    if is_signed:  # sign extension: flip the sign bit, then subtract its weight
        half = 1 << bits - 1
        return (numbers ^ half).view(torch.int8) - half
    return numbers


def unpacked_elements(raw: Tensor, dtype: DType, count: int) -> Tensor:
    """Return one element per byte, from ONNX's packed bytes (low bits first)."""
    if dtype.bits == 6:  # four elements in three bytes
        padded = torch.nn.functional.pad(raw, (0, -raw.numel() % 3)).view(-1, 3).int()
        word = padded[:, 0] | padded[:, 1] << 8 | padded[:, 2] << 16
        codes = torch.stack([word >> shift & 63 for shift in range(0, 24, 6)], 1)
        return codes.to(torch.uint8).view(-1)[:count]
    return unpacked(raw, dtype.bits, dtype.kind == "int")[:count]
