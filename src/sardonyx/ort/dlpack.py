"""OrtValues to and from DLPack, which knows types that numpy does not."""

from __future__ import annotations

import ctypes
import math
from typing import Any, Final

import numpy as np

import sardonyx._native as native
from sardonyx.base.records import frozen
from sardonyx.base.torch_tensor import is_tensor
from sardonyx.errors import ValueFault
from sardonyx.graph.dtype import BOOL, U8, by_name
from sardonyx.ort.device import device_values
from sardonyx.ort.ort_value import OrtValue

_CPU: Final = 1
_ON_HOST: Final = (_CPU, 3, 11)  # pinned for CUDA or ROCm, that is
_VERSION: Final = (1, 1)  # of DLPack, the newest that is known here
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
    wanted = wishes.get("max_version")
    is_versioned = wanted is not None and tuple(wanted) >= (1, 0)
    is_read_only = not tensor.flags.writeable
    if is_read_only and not is_versioned:
        raise BufferError("the tensor is read-only, which DLPack says from version 1 on")
    code, bits = _CODES[dtype.name]
    address = native.address(tensor)
    return native.export_dlpack(
        address, list(value._shape), code, bits, tensor, is_versioned, is_read_only
    )


def taken(kind: type[OrtValue], data: Any, is_bool: bool) -> OrtValue:
    """A tensor over the memory of whatever has `__dlpack__`, or of a capsule.

    What it says of itself is checked. Whether the memory is as long as that makes it is checked
    only as far as there is memory at all, and the maker of the tensor answers for the rest.
    """
    if is_tensor(data):
        device_values("a device").check_memory(data)
        data = data.detach()
    if not is_on_host(data):
        return _taken_on_device(kind, data, is_bool)
    capsule = _capsule_of(data)
    found = _looked_at(capsule, data)
    if found.device not in _ON_HOST:
        raise ValueFault(
            f"{type(data).__name__} says that it lies on the host, "
            f"and its capsule that it lies on a device of the kind {found.device}"
        )
    name = _NAMES.get((found.code, found.bits))
    name = "bool" if is_bool and name == "u8" else name
    if name is None:
        raise ValueFault(
            f"ONNX has no element type of DLPack's code {found.code} and {found.bits} bits"
        )
    dtype = by_name(name)
    if found.strides is not None:
        _check_gaps(found.dims, found.strides)
    size = dtype.packed_bytes(math.prod(found.dims))
    if found.device == _CPU and not native.is_mapped(found.address, size):
        raise ValueFault(
            f"there is no memory at {found.address:#x} for a tensor of shape {found.dims}",
            bytes=size,
        )
    raw = _bytes_at(found.address, size, native.consume_dlpack(capsule))
    raw.flags.writeable = not found.is_read_only
    return kind._of_bytes(raw, dtype, tuple(found.dims))


@frozen
class _Found:
    """What a capsule says of its tensor."""

    address: int
    dims: list[int]
    strides: list[int] | None
    code: int
    bits: int
    device: int
    device_number: int
    is_read_only: bool


def _capsule_of(data: Any) -> Any:
    """The capsule of whatever has `__dlpack__`; a capsule is its own."""
    if _is_capsule(data):
        return data
    try:
        ask = data.__dlpack__
        try:
            return ask(max_version=_VERSION)
        except TypeError:  # from before version 1
            return ask()
    except Exception as error:
        raise ValueFault(
            f"{type(data).__name__} is no DLPack tensor: {type(error).__name__}: {error}"
        ) from None


def _looked_at(capsule: Any, source: Any) -> _Found:
    """What a capsule says of its tensor, which is checked; the capsule is not used up."""
    kind = type(source).__name__
    try:
        found = native.inspect_dlpack(capsule) if _is_capsule(capsule) else None
    except ValueError as error:
        raise ValueFault(f"{kind} is a DLPack tensor that cannot be: it has {error}") from None
    if found is None:
        given = "was used before, or holds none" if _is_capsule(capsule) else f"is {capsule!r:.80}"
        raise ValueFault(f"{kind} is no DLPack tensor: the capsule {given}")
    return _Found(*found)


def _taken_on_device(kind: type[OrtValue], data: Any, is_bool: bool) -> OrtValue:
    values = device_values("a device")
    tensor = values.from_dlpack(checked(data))
    _check_gaps(list(tensor.shape), list(tensor.stride()))
    made = kind(tensor)
    if is_bool and made._dtype is U8:
        return kind(values.of_bytes(made._value, BOOL, made._shape))
    return made


class _Checked:
    """Another library's tensor whose capsule is checked before torch reads it."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __dlpack_device__(self) -> tuple[int, int]:
        return _device_of(self._data)

    def __dlpack__(self, **wishes: Any) -> Any:
        capsule = self._data.__dlpack__(**wishes)
        found = _looked_at(capsule, self._data)
        if (found.device, found.device_number) != _device_of(self._data):
            raise ValueFault(
                f"{type(self._data).__name__} says that it lies on the device "
                f"{_device_of(self._data)}, and its capsule "
                f"{(found.device, found.device_number)}"
            )
        return capsule


def checked(data: Any) -> Any:
    """What torch may take as it is: tensors of its own, others in a form that is checked."""
    if is_tensor(data):
        return data
    if not _is_capsule(data):
        return _Checked(data)
    _looked_at(data, data)
    return data


def is_on_host(data: Any) -> bool:
    """Whether a tensor or a capsule lies where the CPU reads it."""
    if is_tensor(data):
        return bool(data.device.type == "cpu")
    if hasattr(data, "__dlpack_device__"):
        return _device_of(data)[0] in _ON_HOST
    return not _is_capsule(data) or _looked_at(data, data).device in _ON_HOST


def _device_of(data: Any) -> tuple[int, int]:
    """The kind of device that an object says it lies on, and its number among these."""
    try:
        kind, number = data.__dlpack_device__()
        return int(kind), int(number)
    except Exception as error:
        raise ValueFault(
            f"{type(data).__name__} does not say where it lies: {type(error).__name__}: {error}"
        ) from None


def is_dlpack_uint8_tensor(capsule: Any) -> bool:
    """Whether a capsule holds a tensor of uint8, which a bool tensor may be, too."""
    if not _is_capsule(capsule):
        raise ValueFault(f"{type(capsule).__name__} is no DLPack capsule that holds a tensor")
    found = _looked_at(capsule, capsule)
    return (found.code, found.bits) == _CODES["u8"]


def _is_capsule(data: Any) -> bool:
    return type(data).__name__ == "PyCapsule"


def _bytes_at(address: int, size: int, owner: Any) -> Any:
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
