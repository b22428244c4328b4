"""Writes FlatBuffers from the end to the beginning, as their definition has it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Field = tuple[int, Callable[[int], None], int]  # number, how it is written, its value


class Builder:
    """What is written so far is the end of the file; places are counted from the end."""

    def __init__(self) -> None:
        self._pieces: list[bytes | memoryview] = []  # the last one first in the file
        self._size = 0
        self._align = 1
        self._layouts: list[tuple[int, bytes]] = []  # of tables, where they lie

    def _push(self, data: bytes | memoryview) -> None:
        self._pieces.append(data)
        self._size += len(data)

    def _pad(self, align: int, more: int = 0) -> None:
        """Bytes of zero, so that the place after `more` further ones is a multiple of `align`."""
        self._align = max(self._align, align)
        self._push(b"\0" * (-(self._size + more) % align))

    def int32(self, value: int) -> None:
        """A number."""
        self._pad(4)
        self._push(struct.pack("<i", value))

    def refer(self, place: int) -> None:
        """The offset from here to a place."""
        self._pad(4)
        self._push(struct.pack("<I", self._size + 4 - place))

    def string(self, text: str) -> int:
        """The place of a text."""
        data = text.encode()
        self._pad(4, len(data) + 1)
        self._push(data + b"\0")
        self._push(struct.pack("<I", len(data)))
        return self._size

    def vector(self, array: np.ndarray[Any, Any]) -> int:
        """The place of a vector of numbers."""
        self._pad(4, array.nbytes)
        self._pad(array.itemsize, array.nbytes)
        if array.nbytes:
            self._push(array.reshape(-1).view(np.uint8).data)
        self._pad(4)
        self._push(struct.pack("<I", array.size))
        return self._size

    def offsets(self, places: Sequence[int]) -> int:
        """The place of a vector of offsets."""
        self._pad(4, 4 * len(places))
        for place in reversed(places):
            self.refer(place)
        self._push(struct.pack("<I", len(places)))
        return self._size

    def table(self, fields: Sequence[Field]) -> int:
        """The place of a table; fields come last to first, and numbers of 0 are left out."""
        start, found = self._size, {}
        for number, put, value in fields:
            if value:
                put(value)
                found[number] = self._size
        self._pad(4)
        place = self._size + 4
        slots = [0] * (max(found, default=-1) + 1)
        for number, at in found.items():
            slots[number] = place - at
        size = 4 + 2 * len(slots)
        layout = struct.pack(f"<{2 + len(slots)}H", size, place - start, *slots)
        for at, known in self._layouts:
            if known == layout:
                self._push(struct.pack("<i", at - place))
                return place
        at = place + size
        self._push(struct.pack("<i", at - place))
        self._push(layout)
        self._layouts.append((at, layout))
        return place

    def finish(self, root: int, mark: bytes) -> bytes:
        """The whole file."""
        self._pad(self._align, 8)
        self._push(mark)
        self.refer(root)
        return b"".join(reversed(self._pieces))
