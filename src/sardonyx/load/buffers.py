"""Zero-copy access to users' buffers, arrays and tensors."""

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

_CPU: Final = 1  # kDLCPU of DLPack
_ORT_VALUE: Final = ("is_tensor", "device_name", "element_type", "shape", "data_ptr")
_REFUSALS: Final = (BufferError, NotImplementedError, RuntimeError, TypeError, ValueError)


def as_bytes(obj: Any, what: str) -> memoryview:
    """Return the bytes of any buffer; the view keeps its owner from freeing or resizing them."""
    if isinstance(obj, np.ndarray):
        flat = _flat(obj, what)
    elif _has_buffer(obj):
        flat = _flat_buffer(obj, what)
    elif hasattr(obj, "__dlpack__") or hasattr(obj, "numpy"):
        flat = _flat(as_array(obj, what), what)
    else:
        raise InvalidArgument(
            f"{what} must be a buffer (bytes, an mmap, an array), got {type(obj).__name__}"
        )
    return flat.data


def as_array(obj: Any, what: str) -> Array:
    """Return an array over the memory of a numpy array, a DLPack tensor or a `numpy()` method."""
    if isinstance(obj, np.ndarray):
        return obj
    if all(hasattr(obj, name) for name in _ORT_VALUE):
        return _from_ort_value(obj, what)
    failure: Exception | None = None
    if hasattr(obj, "__dlpack__"):
        try:
            return _from_dlpack(obj, what)
        except _REFUSALS as error:
            failure = error
    if hasattr(obj, "numpy"):
        try:
            return np.asarray(obj.numpy())
        except _REFUSALS as error:
            failure = failure or error
    if failure is not None:
        raise InvalidArgument(
            f"{what} cannot be read: {failure}",
            hint="pass a numpy array; one of bfloat16 by array.view(ml_dtypes.bfloat16)",
        )
    if _has_buffer(obj) or hasattr(obj, "__array__") or np.isscalar(obj):
        return np.asarray(obj)
    raise InvalidArgument(
        f"{what} must be an array, a tensor or an OrtValue, got {type(obj).__name__}"
    )


def source(view: memoryview, name: str) -> Source:
    """Return a source over a user's buffer, identified by its address."""
    return Source(view, name, is_fixed=_is_fixed(view))


def _has_buffer(obj: Any) -> bool:
    try:
        memoryview(obj)
    except (TypeError, ValueError):
        return False
    return True


def _from_ort_value(obj: Any, what: str) -> Array:
    """Return an array over an OrtValue, ours or onnxruntime's, also of types that numpy lacks."""
    if not obj.is_tensor() or obj.device_name().lower() != "cpu":
        raise InvalidArgument(
            f"{what} is not a tensor on the CPU: {obj.data_type()} on {obj.device_name()}"
        )
    dtype = by_onnx(obj.element_type())
    if dtype is None or dtype is STRING:
        return np.asarray(obj.numpy())
    shape = tuple(obj.shape())
    count = math.prod(shape)
    if not count:
        return np.empty(shape, dtype.np)
    memory: Any = (ctypes.c_ubyte * dtype.packed_bytes(count)).from_address(obj.data_ptr())
    memory.owner = obj  # keeps the OrtValue alive as long as arrays over it
    raw = np.frombuffer(memory, np.uint8)
    array = unpack(raw, dtype, count) if dtype.bits < 8 else raw.view(dtype.np)
    return array.reshape(shape)


def _from_dlpack(obj: Any, what: str) -> Array:
    device = obj.__dlpack_device__()
    if device[0] != _CPU:
        raise InvalidArgument(f"{what} is on another device than the CPU: {tuple(device)}")
    return np.from_dlpack(obj)


def _flat(array: Array, what: str) -> Array:
    if array.dtype.hasobject:
        raise InvalidArgument(f"{what} is an array of objects, which have no bytes to read")
    if not array.flags.c_contiguous:
        raise InvalidArgument(
            f"{what} is not contiguous: its strides are {list(array.strides)}",
            hint="pass np.ascontiguousarray(array)",
        )
    return array.reshape(-1).view(np.uint8)


def _flat_buffer(obj: Any, what: str) -> Array:
    view = memoryview(obj)
    if not view.c_contiguous:
        raise InvalidArgument(f"{what} is not contiguous", hint="pass bytes(buffer)")
    if "O" in view.format:
        raise InvalidArgument(f"{what} is a buffer of objects, which have no bytes to read")
    # memoryview.cast supports native formats only, and ctypes has others.
    return np.frombuffer(obj, np.uint8)


def _is_fixed(view: memoryview) -> bool:
    """Return whether the bytes are immutable: neither the view nor an owner is writable."""
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
        else:  # an unknown type, which may also have writable views
            return False
