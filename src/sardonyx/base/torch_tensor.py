"""Torch tensors without importing torch: recognize them, and view their memory as arrays."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from sardonyx.errors import ValueFault


def is_tensor(value: object) -> bool:
    """Return whether a value is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, "Tensor", ()))


class Borrowed:
    """The memory of a torch tensor on the CPU through numpy's array interface; keeps it alive.

    `Tensor.numpy` would make the tensor's storage unresizable forever, and FSDP resizes those of
    parameters. So the storage may still be resized: users that outlive a call must call `check`.
    """

    __slots__ = ("__array_interface__", "_address", "_tensor")

    def __init__(self, tensor: Any, typestr: str) -> None:
        """`tensor` is contiguous and not empty; `typestr` is numpy's element type."""
        self._tensor = tensor
        self._address = tensor.data_ptr()
        self.__array_interface__ = {
            "version": 3,
            "shape": tuple(tensor.shape),
            "typestr": typestr,
            "data": (self._address, False),
        }

    def check(self) -> None:
        """Raise an error if the storage was resized, so that the elements moved or were freed."""
        tensor = self._tensor
        end = (tensor.storage_offset() + tensor.numel()) * tensor.element_size()
        if tensor.data_ptr() != self._address or tensor.untyped_storage().nbytes() < end:
            raise ValueFault(
                "the storage of the tensor that a value refers to was resized",
                hint="create or bind the value again",
            )


def borrowed(array: object) -> Borrowed | None:
    """Return the borrowed torch memory that an array is a view of; None if it is not."""
    while isinstance(array, np.ndarray):
        array = array.base
    return array if isinstance(array, Borrowed) else None
