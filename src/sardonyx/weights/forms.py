"""The forms in which kernels read constants: as they lie, aligned, or packed by a kernel row."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final, NamedTuple

import sardonyx._native as native
from sardonyx.errors import RuntimeException
from sardonyx.weights.const import Const
from sardonyx.weights.store import STORE, Array, pages

PLAIN: Final = ""  # aligned, one element after the other
STORED: Final = "stored"  # the bytes of its file, perhaps unaligned, narrow types packed
_U8: Final = 2  # ONNX's number of the type


class Want(NamedTuple):
    """A constant in a form: PLAIN, STORED, or what a packing row makes of it."""

    const: Const
    row: str = PLAIN
    size_bytes: int = 0  # of the packed form
    ints: tuple[int, ...] = ()

    @property
    def key(self) -> Hashable | None:
        """What is equal for equal bytes; None where that cannot be known."""
        identity = self.const.identity
        return None if identity is None else (identity, self.row, self.ints)


def tensor(array: Any, dtype: int) -> tuple[int, int, list[int], list[int]]:
    """An array as a single call of a kernel row takes it."""
    strides = [s // array.itemsize for s in array.strides]
    return (address(array), dtype, list(array.shape), strides)


def address(array: Any) -> int:
    """Where the bytes of an array lie."""
    return int(array.__array_interface__["data"][0])


class Forms:
    """The constants of a program in the forms that its kernels read."""

    def __init__(self) -> None:
        self._arrays: dict[Want, Array] = {}

    def address(self, want: Want) -> int:
        """Where the bytes lie; they stay there as long as this lives."""
        array = self._arrays.get(want)
        if array is None:
            array = self._arrays[want] = self._make(want)
        return address(array)

    def _make(self, want: Want) -> Array:
        if want.row == PLAIN:
            return want.const.read()
        if want.row == STORED:
            return want.const.stored()
        return STORE.share(want.key, lambda: _pack(want))


def _pack(want: Want) -> Array:
    const = want.const
    array = pages(want.size_bytes)
    weight = const.view()  # a session needs the packed form alone
    operands = [tensor(weight, const.dtype.onnx)], [tensor(array, _U8)]
    wrong = native.call(want.row, *operands, list(want.ints), [], splits=0)
    if wrong:
        raise RuntimeException(f"packing {const.describe()} failed: {wrong}")
    return array
