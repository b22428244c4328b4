"""Element types of torch, and conversion between arrays and CPU tensors without copies."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch

from sardonyx.base.torch_tensor import Borrowed
from sardonyx.graph.dtype import DType, by_name

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


def ours(dtype: torch.dtype) -> DType | None:
    """Return the element type of a torch type; None if ONNX has none."""
    return _OURS.get(dtype)


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
    if any(
        stride < 0 for stride in array.strides
    ):  # possible along an axis of one element; torch refuses them
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
