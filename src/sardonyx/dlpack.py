"""OrtValues to and from DLPack, which knows types that numpy does not."""

from __future__ import annotations

import ctypes
import math
from typing import Any, Final

import numpy as np

import sardonyx._native as native
from sardonyx.device import device_values, is_tensor
from sardonyx.errors import ValueFault
from sardonyx.graph.dtype import BOOL, STRING, U8, DType, by_name
from sardonyx.ortvalue import OrtValue

_CPU: Final = 1
_ON_HOST: Final = (_CPU, 3, 11)  # pinned for CUDA or ROCm, that is
_DEVICE_AT: Final = 8  # in a DLTensor: behind the address
_TYPE_AT: Final = 20  # behind the address, the device and the number of dims
_VERSIONED_AT: Final = 32  # a DLTensor in a capsule of DLPack 1: behind version, owner and flags
# DLPack's code and bits of each of our types.
_CODES: Final = {
    **{f"i{b}": (0, b) for b in (8, 16, 32, 64)},
    **{f"u{b}": (1, b) for b in (8, 16, 32, 64)},
    **{f"f{b}": (2, b) for b in (16, 32, 64)},
    "bf16": (4, 16), "c64": (5, 64), "c128": (5, 128), "bool": (6, 8),
    "f8e4m3fn": (10, 8), "f8e4m3fnuz": (11, 8), "f8e5m2": (12, 8), "f8e5m2fnuz": (13, 8),
    "f8e8m0": (14, 8),
}  # fmt: skip
_NAMES: Final = {code: name for name, code in _CODES.items()}


def given(value: OrtValue, stream: Any, **wishes: Any) -> Any:
    """A capsule over a tensor's memory, as the keywords of `__dlpack__` want it."""
    tensor, dtype = value._tensor(), value._dtype
    assert dtype is not None
    if dtype.name not in _CODES:
        raise ValueFault(f"DLPack has no tensors of {dtype.ort_name}")
    if not isinstance(tensor, np.ndarray):
        return device_values(value.device_name()).given(tensor, stream, wishes)
    if wishes.get("dl_device") not in (None, (_CPU, 0)):
        raise BufferError(f"a tensor on the CPU is asked for on {wishes['dl_device']}")
    if wishes.get("copy"):
        tensor = tensor.copy()
    code, bits = _CODES[dtype.name]
    address = int(tensor.__array_interface__["data"][0])
    return native.export_tensor(address, list(value._shape), code, bits, tensor)


def taken(kind: type[OrtValue], data: Any, is_bool: bool) -> OrtValue:
    """A tensor over the memory of whatever has `__dlpack__`, or of a capsule."""
    if is_tensor(data):
        data = data.detach()
    if not is_on_host(data):
        return _taken_on_device(kind, data, is_bool)
    try:
        address, dims, strides, code, bits, device, owner = native.import_tensor(data)
    except TypeError:
        raise ValueFault(f"{type(data).__name__} is no DLPack tensor") from None
    assert device in _ON_HOST
    name = "bool" if is_bool and (code, bits) == _CODES["u8"] else _NAMES.get((code, bits))
    if name is None:
        raise ValueFault(f"ONNX has no element type of DLPack's code {code} and {bits} bits")
    dtype = by_name(name)
    _check_gaps(dims, strides)
    return kind._of_bytes(_bytes_at(address, dims, dtype, owner), dtype, tuple(dims))


def _taken_on_device(kind: type[OrtValue], data: Any, is_bool: bool) -> OrtValue:
    values = device_values("a device")
    tensor = values.from_dlpack(data)
    _check_gaps(list(tensor.shape), list(tensor.stride()))
    made = kind(tensor)
    if is_bool and made._dtype is U8:
        return kind(values.of_bytes(made._value, BOOL, made._shape))
    return made


def is_on_host(data: Any) -> bool:
    """Whether a tensor or a capsule lies where the CPU reads it."""
    if is_tensor(data):
        return bool(data.device.type == "cpu")
    if hasattr(data, "__dlpack_device__"):
        return int(data.__dlpack_device__()[0]) in _ON_HOST
    address = _tensor_in(data)
    return address is None or ctypes.c_int32.from_address(address + _DEVICE_AT).value in _ON_HOST


def is_dlpack_uint8_tensor(capsule: Any) -> bool:
    """Whether a capsule holds a tensor of uint8, which a bool tensor may be, too."""
    tensor = _tensor_in(capsule)
    if tensor is None:
        raise ValueFault(f"{type(capsule).__name__} is no DLPack capsule that holds a tensor")
    code, bits = (ctypes.c_uint8 * 2).from_address(tensor + _TYPE_AT)
    return (code, bits) == _CODES["u8"]


def _tensor_in(capsule: Any) -> int | None:
    """The address of the DLTensor in a capsule, which is looked at and not taken over."""
    if type(capsule).__name__ != "PyCapsule":
        return None
    is_valid, pointer = ctypes.pythonapi.PyCapsule_IsValid, ctypes.pythonapi.PyCapsule_GetPointer
    is_valid.argtypes = pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    pointer.restype = ctypes.c_void_p
    for name, at in ((b"dltensor", 0), (b"dltensor_versioned", _VERSIONED_AT)):
        if is_valid(capsule, name):
            return int(pointer(capsule, name)) + at
    return None


def _bytes_at(address: int, dims: list[int], dtype: DType, owner: Any) -> Any:
    assert dtype is not STRING
    size = dtype.packed_bytes(math.prod(dims))
    if not size:
        return np.empty(0, np.uint8)
    memory: Any = (ctypes.c_ubyte * size).from_address(address)
    memory.owner = owner  # lives as long as arrays over it
    return np.frombuffer(memory, np.uint8)


def _check_gaps(dims: list[int], strides: list[int]) -> None:
    if not _is_contiguous(dims, strides):
        raise ValueFault(
            f"a tensor of shape {dims} with the strides {strides} has gaps",
            hint="make it contiguous first",
        )


def _is_contiguous(dims: list[int], strides: list[int]) -> bool:
    if 0 in dims:
        return True
    wanted = 1
    for size, stride in zip(reversed(dims), reversed(strides), strict=True):
        if size > 1 and stride != wanted:
            return False
        wanted *= size
    return True
