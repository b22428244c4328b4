"""Protobuf's wire format: messages whose size is known before their tensors are read."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

from sardonyx.base.records import frozen

_VARINT, _BYTES, _FIXED32 = 0, 2, 5


@frozen
class Stream:
    """Bytes that are produced in pieces while they are written, of known total size."""

    size: int
    pieces: Callable[[], Iterator[bytes | memoryview]]

    def write(self, file: BinaryIO) -> None:
        """Write the bytes to a file."""
        for piece in self.pieces():
            file.write(piece)


class Message:
    """A message under construction; fields are in the order of the calls, which can be chained."""

    __slots__ = ("_parts", "size")

    def __init__(self) -> None:
        self._parts: list[bytearray | Stream] = []
        self.size = 0

    def number(self, field: int, value: int) -> Message:
        """A field of an integer or enum type."""
        return self._put(_tag(field, _VARINT) + varint(value))

    def real(self, field: int, value: float) -> Message:
        """A field of type float."""
        return self._put(_tag(field, _FIXED32) + struct.pack("<f", value))

    def blob(self, field: int, value: bytes) -> Message:
        """A field of type bytes."""
        return self._put(_tag(field, _BYTES) + varint(len(value)) + value)

    def text(self, field: int, value: str) -> Message:
        """A field of type string."""
        return self.blob(field, value.encode())

    def numbers(self, field: int, values: Iterable[int]) -> Message:
        """A repeated integer field, packed."""
        return self.blob(field, b"".join(map(varint, values)))

    def message(self, field: int, value: Message) -> Message:
        """A field that is a message."""
        self._put(_tag(field, _BYTES) + varint(value.size))
        for part in value._parts:
            self._put(part)
        return self

    def stream(self, field: int, value: Stream) -> Message:
        """A field of type bytes that is too large to hold."""
        self._put(_tag(field, _BYTES) + varint(value.size))
        return self._put(value)

    def encoded(self, fields: bytes | memoryview) -> Message:
        """Fields that are encoded already."""
        return self._put(bytes(fields)) if len(fields) else self

    def write(self, file: BinaryIO) -> None:
        """Write the message to a file."""
        for part in self._parts:
            if isinstance(part, Stream):
                part.write(file)
            else:
                file.write(part)

    def joined(self) -> bytes:
        """Return the bytes of the message."""
        pieces = (p.pieces() if isinstance(p, Stream) else (p,) for p in self._parts)
        return b"".join(piece for group in pieces for piece in group)

    def _put(self, part: bytes | bytearray | Stream) -> Message:
        last = self._parts[-1] if self._parts else None
        if isinstance(part, Stream):
            self._parts.append(part)
        elif isinstance(last, bytearray):
            last += part
        else:
            self._parts.append(bytearray(part))
        self.size += part.size if isinstance(part, Stream) else len(part)
        return self


def varint(value: int) -> bytes:
    """Return the varint encoding of a number; of a negative one ten bytes, as of an int64."""
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
