"""A FlatBuffers writer. As usual for the format, files are built from the end to the beginning."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Field = tuple[int, Callable[[int], None], int]  # number, how it is written, its value


class FlatBufferBuilder:
    """Builds a file back to front; positions are counted from the end of the file."""

    def __init__(self) -> None:
        self._chunks: list[bytes | memoryview] = []  # in reverse order of the file
        self._size = 0
        self._align = 1
        self._vtables: list[tuple[int, bytes]] = []  # with their positions; equal ones are shared

    def _push(self, data: bytes | memoryview) -> None:
        self._chunks.append(data)
        self._size += len(data)

    def _pad(self, align: int, more: int = 0) -> None:
        """Write zeros, so that the position after `more` further bytes is a multiple of `align`."""
        self._align = max(self._align, align)
        self._push(b"\0" * (-(self._size + more) % align))

    def int32(self, value: int) -> None:
        """Write a number."""
        self._pad(4)
        self._push(struct.pack("<i", value))

    def refer(self, position: int) -> None:
        """Write the offset from here to a position."""
        self._pad(4)
        self._push(struct.pack("<I", self._size + 4 - position))

    def string(self, text: str) -> int:
        """Write a string; return its position."""
        data = text.encode()
        self._pad(4, len(data) + 1)
        self._push(data + b"\0")
        self._push(struct.pack("<I", len(data)))
        return self._size

    def vector(self, array: np.ndarray[Any, Any]) -> int:
        """Write a vector of numbers; return its position."""
        self._pad(4, array.nbytes)
        self._pad(array.itemsize, array.nbytes)
        if array.nbytes:
            self._push(array.reshape(-1).view(np.uint8).data)
        self._pad(4)
        self._push(struct.pack("<I", array.size))
        return self._size

    def offsets(self, positions: Sequence[int]) -> int:
        """Write a vector of offsets to positions; return its position."""
        self._pad(4, 4 * len(positions))
        for position in reversed(positions):
            self.refer(position)
        self._push(struct.pack("<I", len(positions)))
        return self._size

    def table(self, fields: Sequence[Field]) -> int:
        """Write a table with fields from last to first, without those of 0; return its position."""
        start, written = self._size, {}
        for number, write, value in fields:
            if value:
                write(value)
                written[number] = self._size
        self._pad(4)
        position = self._size + 4
        slots = [0] * (max(written, default=-1) + 1)
        for number, at in written.items():
            slots[number] = position - at
        size = 4 + 2 * len(slots)
        vtable = struct.pack(f"<{2 + len(slots)}H", size, position - start, *slots)
        for at, known in self._vtables:
            if known == vtable:
                self._push(struct.pack("<i", at - position))
                return position
        at = position + size
        self._push(struct.pack("<i", at - position))
        self._push(vtable)
        self._vtables.append((at, vtable))
        return position

    def finish(self, root: int, identifier: bytes) -> bytes:
        """Return the whole file."""
        self._pad(self._align, 8)
        self._push(identifier)
        self.refer(root)
        return b"".join(reversed(self._chunks))
