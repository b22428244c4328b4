"""Tensors at addresses that a program gives, checked as far as an address can be."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.errors import ValueFault
from sardonyx.graph.dtype import STRING
from sardonyx.ortvalue import OrtValue, _checked_shape, _dtype_of

_MEMORY = "/proc/self/mem"


def tensor_at(pointer: int, element_type: Any, shape: Sequence[int], owner: Any = None) -> OrtValue:
    """A tensor over the memory at an address, which `owner`, or the caller, keeps."""
    dtype, dims = _dtype_of(element_type), _checked_shape(shape)
    if dtype is STRING:
        raise ValueFault("a tensor of strings has no address")
    size = dtype.packed_bytes(math.prod(dims))
    if not size:
        return OrtValue._of_bytes(np.empty(0, np.uint8), dtype, dims)
    _check(int(pointer), size, dtype.itemsize)
    memory: Any = (ctypes.c_ubyte * size).from_address(int(pointer))
    memory.owner = owner
    return OrtValue._of_bytes(np.frombuffer(memory, np.uint8), dtype, dims)


def _check(pointer: int, size: int, align: int) -> None:
    """Refuses addresses that cannot be: null, between elements, or not of this process."""
    where = {"bytes": size}
    if pointer <= 0:
        raise ValueFault(f"the address of a tensor is {pointer}", **where)
    if pointer % align:
        raise ValueFault(f"the address {pointer:#x} is no multiple of {align}", **where)
    try:
        memory = os.open(_MEMORY, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return  # a system that does not show a process its memory
    try:
        for place in (pointer, pointer + size - 1):
            os.pread(memory, 1, place)
    except (OSError, OverflowError):
        raise ValueFault(f"there is no memory at {pointer:#x}", **where) from None
    finally:
        os.close(memory)
