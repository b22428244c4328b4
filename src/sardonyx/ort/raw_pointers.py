"""Tensors over memory at addresses passed by the user, validated as far as possible."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from operator import index
from typing import Any, Final

import numpy as np

import sardonyx._native as native
from sardonyx.errors import ValueFault
from sardonyx.graph.dtype import STRING, DType
from sardonyx.ort.device import device_values
from sardonyx.ort.ort_value import OrtValue, _checked_shape, _dtype_of
from sardonyx.place.provider import HOST

_ADDRESS_END: Final = 1 << 64


def tensor_at(
    pointer: int, element_type: Any, shape: Sequence[int], owner: Any = None, device: str = HOST
) -> OrtValue:
    """Return a tensor over memory at an address, which `owner` or the caller keeps valid."""
    dtype, dims, pointer = _dtype_of(element_type), _checked_shape(shape), index(pointer)
    if dtype is STRING:
        raise ValueFault("Only binding non-string Tensors is possible: strings have no address")
    size = dtype.packed_bytes(math.prod(dims))
    if device != HOST:
        return _on_device(pointer, dtype, dims, owner, device)
    if size:
        _check_address(pointer, size, dtype.itemsize)
        if not native.is_mapped(pointer, size):
            raise ValueFault(f"there is no memory at {pointer:#x}", bytes=size)
    return OrtValue._of_bytes(bytes_at(pointer, size, owner), dtype, dims)


def bytes_at(address: int, size: int, owner: Any) -> Any:
    """Return an array over memory at an address, which keeps `owner` alive."""
    if not size:
        return np.empty(0, np.uint8)
    memory: Any = (ctypes.c_ubyte * size).from_address(address)
    memory.owner = owner
    return np.frombuffer(memory, np.uint8)


def _on_device(
    pointer: int, dtype: DType, dims: tuple[int, ...], owner: Any, device: str
) -> OrtValue:
    values, size = device_values(device), dtype.packed_bytes(math.prod(dims))
    values.check_type(dtype, device)
    if size:
        _check_address(pointer, size, dtype.itemsize)
    return OrtValue._of_bytes(values.bytes_at(pointer, size, device, owner), dtype, dims)


def _check_address(pointer: int, size: int, align: int) -> None:
    """Raise an error for an address that is null, too large or misaligned."""
    # Device pointers cannot be probed; this catches null and wrapped ones.
    if pointer <= 0 or pointer + size > _ADDRESS_END:
        raise ValueFault(f"the address of a tensor is {pointer}", bytes=size)
    if pointer % align:
        raise ValueFault(f"the address {pointer:#x} is not a multiple of {align}", bytes=size)
