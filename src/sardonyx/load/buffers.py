"""Buffers that users give: files and arrays in memory, read where they are and never copied."""

from __future__ import annotations

import ctypes
import math
import mmap
from typing import Any, Final

import numpy as np

from sardonyx.base.shared_store import Array
from sardonyx.errors import InvalidArgument
from sardonyx.graph.const import Source, unpack
from sardonyx.graph.dtype import STRING, by_onnx

_CPU: Final = 1  # DLPack's number of the device
_ORT_VALUE: Final = ("is_tensor", "device_name", "element_type", "shape", "data_ptr")
_REFUSALS: Final = (BufferError, NotImplementedError, RuntimeError, TypeError, ValueError)


def as_bytes(given: Any, what: str) -> memoryview:
    """The bytes of any buffer. As long as the view lives, its owner cannot free or resize them."""
    if isinstance(given, np.ndarray):
        flat = _flat(given, what)
    elif _has_buffer(given):
        flat = _flat_buffer(given, what)
    elif hasattr(given, "__dlpack__") or hasattr(given, "numpy"):
        flat = _flat(as_array(given, what), what)
    else:
        raise InvalidArgument(
            f"{what} is a buffer (bytes, an mmap, an array), not {type(given).__name__}"
        )
    return flat.data


def as_array(given: Any, what: str) -> Array:
    """An array over the memory of a tensor: of numpy, of DLPack, or of whoever has `numpy()`."""
    if isinstance(given, np.ndarray):
        return given
    if all(hasattr(given, name) for name in _ORT_VALUE):
        return _from_ort_value(given, what)
    wrong: Exception | None = None
    if hasattr(given, "__dlpack__"):
        try:
            return _from_dlpack(given, what)
        except _REFUSALS as error:
            wrong = error
    if hasattr(given, "numpy"):
        try:
            return np.asarray(given.numpy())
        except _REFUSALS as error:
            wrong = wrong or error
    if wrong is not None:
        raise InvalidArgument(
            f"{what} cannot be read: {wrong}",
            hint="pass a numpy array; one of bfloat16 by array.view(ml_dtypes.bfloat16)",
        )
    if _has_buffer(given) or hasattr(given, "__array__") or np.isscalar(given):
        return np.asarray(given)
    raise InvalidArgument(
        f"{what} is an array, a tensor or an OrtValue, not {type(given).__name__}"
    )


def source(view: memoryview, name: str) -> Source:
    """A user's buffer as a source, identified by its address."""
    return Source(view, name, is_fixed=_is_fixed(view))


def _has_buffer(given: Any) -> bool:
    try:
        memoryview(given)
    except (TypeError, ValueError):
        return False
    return True


def _from_ort_value(given: Any, what: str) -> Array:
    """The memory of an OrtValue, ours or onnxruntime's, which has types that numpy lacks."""
    if not given.is_tensor() or given.device_name().lower() != "cpu":
        raise InvalidArgument(
            f"{what} is no tensor on the CPU: {given.data_type()} on {given.device_name()}"
        )
    dtype = by_onnx(given.element_type())
    if dtype is None or dtype is STRING:
        return np.asarray(given.numpy())
    shape = tuple(given.shape())
    count = math.prod(shape)
    if not count:
        return np.empty(shape, dtype.np)
    memory: Any = (ctypes.c_ubyte * dtype.packed_bytes(count)).from_address(given.data_ptr())
    memory.owner = given  # lives as long as arrays over it
    raw = np.frombuffer(memory, np.uint8)
    array = unpack(raw, dtype, count) if dtype.bits < 8 else raw.view(dtype.np)
    return array.reshape(shape)


def _from_dlpack(given: Any, what: str) -> Array:
    device = given.__dlpack_device__()
    if device[0] != _CPU:
        raise InvalidArgument(f"{what} is on another device than the CPU: {tuple(device)}")
    return np.from_dlpack(given)


def _flat(array: Array, what: str) -> Array:
    if array.dtype.hasobject:
        raise InvalidArgument(f"{what} is an array of objects, which have no bytes to read")
    if not array.flags.c_contiguous:
        raise InvalidArgument(
            f"{what} is not contiguous: its strides are {list(array.strides)}",
            hint="pass np.ascontiguousarray(array)",
        )
    return array.reshape(-1).view(np.uint8)


def _flat_buffer(given: Any, what: str) -> Array:
    view = memoryview(given)
    if not view.c_contiguous:
        raise InvalidArgument(f"{what} is not contiguous", hint="pass bytes(buffer)")
    if "O" in view.format:
        raise InvalidArgument(f"{what} is a buffer of objects, which have no bytes to read")
    # Not memoryview.cast, which takes native formats alone: ctypes has others.
    return np.frombuffer(given, np.uint8)


def _is_fixed(view: memoryview) -> bool:
    """Whether nobody can write to the bytes: neither through this view nor through its owner."""
    owner: Any = view
    while True:
        if isinstance(owner, memoryview):
            if not owner.readonly or owner.obj is None:
                return owner.readonly
            owner = owner.obj
        elif isinstance(owner, np.ndarray):
            if owner.flags.writeable:
                return False
            if owner.base is None:
                return True
            owner = owner.base
        elif isinstance(owner, (bytes, mmap.mmap)):
            return memoryview(owner).readonly
        else:  # a type that we do not know, and that may give out other views which can be written
            return False
