"""DLPack import and export of OrtValues, including types that numpy does not have."""

from __future__ import annotations

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
from sardonyx.ort.raw_pointers import bytes_at

_CPU: Final = 1
_ON_HOST: Final = (_CPU, 3, 11)  # kDLCPU, kDLCUDAHost, kDLROCMHost (pinned memory)
_VERSION: Final = (1, 1)  # the newest supported version of DLPack
# DLPack's type code and bits of each dtype.
_CODES: Final = {
    **{f"i{b}": (0, b) for b in (8, 16, 32, 64)},
    **{f"u{b}": (1, b) for b in (8, 16, 32, 64)},
    **{f"f{b}": (2, b) for b in (16, 32, 64)},
    "bf16": (4, 16), "c64": (5, 64), "c128": (5, 128), "bool": (6, 8),
    "f8e4m3fn": (10, 8), "f8e4m3fnuz": (11, 8), "f8e5m2": (12, 8), "f8e5m2fnuz": (13, 8),
    "f8e8m0": (14, 8),
}  # fmt: skip
_NAMES: Final = {code: name for name, code in _CODES.items()}


def export_capsule(value: OrtValue, stream: Any, **keywords: Any) -> Any:
    """Return a capsule over a tensor's memory; the keywords are those of `__dlpack__`."""
    tensor, dtype = value._tensor(), value._dtype
    assert dtype is not None
    if dtype.name not in _CODES:
        raise ValueFault(f"DLPack has no tensors of {dtype.ort_name}")
    if not isinstance(tensor, np.ndarray):
        return device_values(value.device_name()).to_dlpack(tensor, stream, keywords)
    if keywords.get("dl_device") not in (None, (_CPU, 0)):
        raise BufferError(
            f"a tensor on the CPU cannot be exported to device {keywords['dl_device']}"
        )
    if keywords.get("copy"):
        tensor = tensor.copy()
    max_version = keywords.get("max_version")
    is_versioned = max_version is not None and tuple(max_version) >= (1, 0)
    is_read_only = not tensor.flags.writeable
    if is_read_only and not is_versioned:
        raise BufferError("the tensor is read-only, which DLPack before version 1 cannot express")
    address, dims, element = native.address(tensor), list(value._shape), _CODES[dtype.name]
    return native.export_dlpack(address, dims, *element, tensor, is_versioned, is_read_only)


def import_tensor(kind: type[OrtValue], data: Any, is_bool: bool) -> OrtValue:
    """Return a tensor over the memory of an object with `__dlpack__`, or of a capsule.

    Type, shape, strides and device are validated, and that the memory is mapped; the producer of
    the tensor is responsible for the rest.
    """
    if is_tensor(data):
        device_values("a device").check_memory(data)
        # A tensor that requires gradients refuses to export itself.
        data = data.detach()
    if not is_on_host(data):
        return _import_on_device(kind, data, is_bool)
    capsule = _capsule_of(data)
    info = _inspect(capsule, data)
    if info.device not in _ON_HOST:
        raise ValueFault(
            f"{type(data).__name__} is on the host according to __dlpack_device__, "
            f"and on a device of the type {info.device} according to its capsule"
        )
    name = _NAMES.get((info.code, info.bits))
    name = "bool" if is_bool and name == "u8" else name
    if name is None:
        raise ValueFault(
            f"ONNX has no element type of DLPack's code {info.code} and {info.bits} bits"
        )
    dtype = by_name(name)
    if info.strides is not None:
        _check_contiguous(info.dims, info.strides)
    size = dtype.packed_bytes(math.prod(info.dims))
    if info.device == _CPU and not native.is_mapped(info.address, size):
        raise ValueFault(
            f"there is no memory at {info.address:#x} for a tensor of shape {info.dims}", bytes=size
        )
    # Consuming the capsule takes ownership, so it comes after all checks.
    raw = bytes_at(info.address, size, native.consume_dlpack(capsule))
    raw.flags.writeable = not info.is_read_only
    return kind._of_bytes(raw, dtype, tuple(info.dims))


@frozen
class _CapsuleInfo:
    """The fields of a capsule's DLTensor."""

    address: int
    dims: list[int]
    strides: list[int] | None
    code: int
    bits: int
    device: int
    device_number: int
    is_read_only: bool


def _capsule_of(data: Any) -> Any:
    """Return the capsule of an object with `__dlpack__`; a capsule is returned unchanged."""
    if _is_capsule(data):
        return data
    try:
        export = data.__dlpack__
        try:
            return export(max_version=_VERSION)
        except TypeError:  # a producer of DLPack before version 1
            return export()
    except Exception as error:
        raise ValueFault(
            f"{type(data).__name__} is not a DLPack tensor: {type(error).__name__}: {error}"
        ) from None


def _inspect(capsule: Any, source: Any) -> _CapsuleInfo:
    """Return the validated fields of a capsule, without consuming it."""
    kind = type(source).__name__
    try:
        fields = native.inspect_dlpack(capsule) if _is_capsule(capsule) else None
    except ValueError as error:
        raise ValueFault(f"{kind} is an invalid DLPack tensor: it has {error}") from None
    if fields is None:
        is_consumed = _is_capsule(capsule)
        state = "was consumed, or holds no tensor" if is_consumed else f"is {capsule!r:.80}"
        raise ValueFault(f"{kind} is not a DLPack tensor: the capsule {state}")
    return _CapsuleInfo(*fields)


def _import_on_device(kind: type[OrtValue], data: Any, is_bool: bool) -> OrtValue:
    values = device_values("a device")
    tensor = values.from_dlpack(validating(data))
    _check_contiguous(list(tensor.shape), list(tensor.stride()))
    value = kind(tensor)
    if is_bool and value._dtype is U8:
        return kind(values.of_bytes(value._value, BOOL, value._shape))
    return value


class _Validating:
    """A tensor of another library whose capsule is validated before torch reads it."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __dlpack_device__(self) -> tuple[int, int]:
        return _device_of(self._data)

    def __dlpack__(self, **keywords: Any) -> Any:
        capsule = self._data.__dlpack__(**keywords)
        info = _inspect(capsule, self._data)
        if (info.device, info.device_number) != _device_of(self._data):
            raise ValueFault(
                f"{type(self._data).__name__} is on the device {_device_of(self._data)} according "
                "to __dlpack_device__, and on "
                f"{(info.device, info.device_number)} according to its capsule"
            )
        return capsule


def validating(data: Any) -> Any:
    """Return a torch tensor unchanged, and any other so that its capsule is validated."""
    if is_tensor(data):
        return data
    if not _is_capsule(data):
        return _Validating(data)
    _inspect(data, data)
    return data


def is_on_host(data: Any) -> bool:
    """Return whether a tensor or a capsule is in memory that the CPU reads."""
    if is_tensor(data):
        return bool(data.device.type == "cpu")
    if hasattr(data, "__dlpack_device__"):
        return _device_of(data)[0] in _ON_HOST
    return not _is_capsule(data) or _inspect(data, data).device in _ON_HOST


def _device_of(data: Any) -> tuple[int, int]:
    """Return the device type and id of an object with `__dlpack_device__`."""
    try:
        kind, number = data.__dlpack_device__()
        return int(kind), int(number)
    except Exception as error:
        raise ValueFault(
            f"{type(data).__name__} does not tell its device: {type(error).__name__}: {error}"
        ) from None


def is_dlpack_uint8_tensor(capsule: Any) -> bool:
    """Return whether a capsule holds a uint8 tensor, the old encoding of bool tensors."""
    if not _is_capsule(capsule):
        raise ValueFault(f"{type(capsule).__name__} is not a DLPack capsule that holds a tensor")
    info = _inspect(capsule, capsule)
    return (info.code, info.bits) == _CODES["u8"]


def _is_capsule(data: Any) -> bool:
    return type(data).__name__ == "PyCapsule"


def _check_contiguous(dims: list[int], strides: list[int]) -> None:
    """Raise an error unless the elements are in C order; strides of dims of size 1 are ignored."""
    expected = [math.prod(dims[i + 1 :]) for i in range(len(dims))]
    axes = zip(dims, strides, expected, strict=True)
    if 0 not in dims and any(size > 1 and stride != dense for size, stride, dense in axes):
        raise ValueFault(
            f"a tensor of shape {dims} with the strides {strides} is not contiguous",
            hint="make it contiguous first",
        )
