"""Tensors of torch, met without importing it: who is one, and its memory as numpy sees it."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from sardonyx.errors import ValueFault


def is_tensor(value: object) -> bool:
    """Whether a value is a tensor of torch, which is not imported to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, "Tensor", ()))


class Borrowed:
    """Memory of a tensor of torch on the CPU as numpy takes it, which keeps the tensor alive.

    `Tensor.numpy` would forbid resizing the tensor's storage for ever, and FSDP does resize those
    of parameters. Nothing keeps the storage as it is, then: what outlives a call calls `check`.
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
        """Refuses to read on where the storage was resized, so that the elements moved or went."""
        tensor = self._tensor
        end = (tensor.storage_offset() + tensor.numel()) * tensor.element_size()
        if tensor.data_ptr() != self._address or tensor.untyped_storage().nbytes() < end:
            raise ValueFault(
                "the storage of the tensor that a value lies over was resized",
                hint="make or bind the value again",
            )


def borrowed(array: object) -> Borrowed | None:
    """What lends an array its memory, if that is a tensor of torch."""
    while isinstance(array, np.ndarray):
        array = array.base
    return array if isinstance(array, Borrowed) else None
