"""OrtValues to and from DLPack, which knows types that numpy does not."""

from __future__ import annotations

import ctypes
import math
from typing import Any, Final

import numpy as np

import sardonyx._native as native
from sardonyx.errors import ValueFault
from sardonyx.graph.dtype import STRING, DType, by_name
from sardonyx.ortvalue import OrtValue

_CPU: Final = 1
_TYPE_AT: Final = 20  # in a DLTensor: behind the address, the device and the number of dims
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


def given(value: OrtValue, **wishes: Any) -> Any:
    """A capsule over a tensor's memory, as the keywords of `__dlpack__` want it."""
    tensor, dtype = value._tensor(), value._dtype
    assert dtype is not None
    if dtype.name not in _CODES:
        raise ValueFault(f"DLPack has no tensors of {dtype.ort_name}")
    if wishes.get("dl_device") not in (None, (_CPU, 0)):
        raise BufferError(f"a tensor on the CPU is asked for on {wishes['dl_device']}")
    if wishes.get("copy"):
        tensor = tensor.copy()
    code, bits = _CODES[dtype.name]
    address = int(tensor.__array_interface__["data"][0])
    return native.export_tensor(address, list(value._shape), code, bits, tensor)


def taken(kind: type[OrtValue], data: Any, is_bool: bool) -> OrtValue:
    """A tensor over the memory of whatever has `__dlpack__`, or of a capsule."""
    try:
        address, dims, strides, code, bits, device, owner = native.import_tensor(data)
    except TypeError:
        raise ValueFault(f"{type(data).__name__} is no DLPack tensor") from None
    if device != _CPU:
        raise ValueFault(f"the tensor lies on DLPack's device {device}, not on the CPU")
    name = "bool" if is_bool and (code, bits) == _CODES["u8"] else _NAMES.get((code, bits))
    if name is None:
        raise ValueFault(f"ONNX has no element type of DLPack's code {code} and {bits} bits")
    dtype = by_name(name)
    if not _is_contiguous(dims, strides):
        raise ValueFault(
            f"a tensor of shape {dims} with the strides {strides} has gaps",
            hint="make it contiguous first",
        )
    return kind._of_bytes(_bytes_at(address, dims, dtype, owner), dtype, tuple(dims))


def is_dlpack_uint8_tensor(capsule: Any) -> bool:
    """Whether a capsule holds a tensor of uint8, which a bool tensor may be, too."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = pointer(capsule, b"dltensor")  # looked at, not taken over
    code, bits = (ctypes.c_uint8 * 2).from_address(tensor + _TYPE_AT)
    return (code, bits) == _CODES["u8"]


def _bytes_at(address: int, dims: list[int], dtype: DType, owner: Any) -> Any:
    assert dtype is not STRING
    size = dtype.packed_bytes(math.prod(dims))
    if not size:
        return np.empty(0, np.uint8)
    memory: Any = (ctypes.c_ubyte * size).from_address(address)
    memory.owner = owner  # lives as long as arrays over it
    return np.frombuffer(memory, np.uint8)


def _is_contiguous(dims: list[int], strides: list[int]) -> bool:
    if 0 in dims:
        return True
    wanted = 1
    for size, stride in zip(reversed(dims), reversed(strides), strict=True):
        if size > 1 and stride != wanted:
            return False
        wanted *= size
    return True
