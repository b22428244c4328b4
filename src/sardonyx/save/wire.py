"""Protobuf's wire format: messages whose size is known before any of their large parts is read."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

from sardonyx.base.records import frozen

_VARINT, _BYTES, _FIXED32 = 0, 2, 5


@frozen
class Stream:
    """Bytes that exist only while they are written: how many, and how to get them in pieces."""

    size: int
    pieces: Callable[[], Iterator[bytes | memoryview]]

    def write(self, file: BinaryIO) -> None:
        """Copies the bytes into a file."""
        for piece in self.pieces():
            file.write(piece)


class Message:
    """One message under construction. Fields are written in the order of the calls."""

    __slots__ = ("_parts", "size")

    def __init__(self) -> None:
        self._parts: list[bytearray | Stream] = []
        self.size = 0

    def number(self, field: int, value: int) -> None:
        """A field of an integer or enum type."""
        self._put(_tag(field, _VARINT) + varint(value))

    def real(self, field: int, value: float) -> None:
        """A field of type float."""
        self._put(_tag(field, _FIXED32) + struct.pack("<f", value))

    def blob(self, field: int, value: bytes) -> None:
        """A field of type bytes."""
        self._put(_tag(field, _BYTES) + varint(len(value)) + value)

    def text(self, field: int, value: str) -> None:
        """A field of type string."""
        self.blob(field, value.encode())

    def numbers(self, field: int, values: Iterable[int]) -> None:
        """A repeated integer field, packed."""
        self.blob(field, b"".join(map(varint, values)))

    def message(self, field: int, value: Message) -> None:
        """A field that is a message."""
        self._put(_tag(field, _BYTES) + varint(value.size))
        for part in value._parts:
            self._put(part)

    def stream(self, field: int, value: Stream) -> None:
        """A field of type bytes that is too large to hold."""
        self._put(_tag(field, _BYTES) + varint(value.size))
        self._put(value)

    def write(self, file: BinaryIO) -> None:
        """Writes the whole message."""
        for part in self._parts:
            if isinstance(part, Stream):
                part.write(file)
            else:
                file.write(part)

    def _put(self, part: bytes | bytearray | Stream) -> None:
        if isinstance(part, Stream):
            self._parts.append(part)
            self.size += part.size
            return
        if not self._parts or isinstance(self._parts[-1], Stream):
            self._parts.append(bytearray())
        last = self._parts[-1]
        assert isinstance(last, bytearray)
        last += part
        self.size += len(part)


def varint(value: int) -> bytes:
    """The shortest form of a number; a negative one takes ten bytes, as protobuf's int64 does."""
    if 0 <= value < 0x80:
        return bytes((value,))
    value &= 2**64 - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _tag(field: int, wire: int) -> bytes:
    return varint(field << 3 | wire)
