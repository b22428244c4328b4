"""Buffers that users give: files and arrays in memory, read where they are and never copied."""

from __future__ import annotations

import mmap
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument
from sardonyx.weights.const import Source
from sardonyx.weights.store import Array

_CPU: Final = 1  # DLPack's number of the device


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
    if hasattr(given, "__dlpack__"):
        try:
            return _from_dlpack(given, what)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            if not hasattr(given, "numpy"):
                raise InvalidArgument(f"{what} cannot be read by DLPack: {error}") from None
    if hasattr(given, "numpy"):
        made = given.numpy()
        if isinstance(made, np.ndarray):
            return made
    if _has_buffer(given) or hasattr(given, "__array__") or np.isscalar(given):
        return np.asarray(given)
    raise InvalidArgument(
        f"{what} is an array, a tensor or an OrtValue, not {type(given).__name__}"
    )


def source(view: memoryview, name: str) -> Source:
    """A user's bytes as a source, known by where they lie."""
    return Source(view, name, is_fixed=_is_fixed(view))


def _has_buffer(given: Any) -> bool:
    try:
        memoryview(given)
    except (TypeError, ValueError):
        return False
    return True


def _from_dlpack(given: Any, what: str) -> Array:
    device = given.__dlpack_device__()
    if device[0] != _CPU:
        raise InvalidArgument(f"{what} lies on another device than the CPU: {tuple(device)}")
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
