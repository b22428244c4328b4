"""Reads FlatBuffers: tables, vectors and strings, every access checked against the file's bounds.

https://flatbuffers.dev/internals describes the layout. All numbers are little-endian. A table
begins with the signed distance to its vtable, which lists the offsets of its fields; a vector
begins with its length; tables, vectors and strings are referred to by distances forward.
"""

from __future__ import annotations

import struct
from typing import Final

from sardonyx.errors import InvalidProtobuf

_U16: Final = struct.Struct("<H")
_U32: Final = struct.Struct("<I")
_I32: Final = struct.Struct("<i")
_I64: Final = struct.Struct("<q")
_F32: Final = struct.Struct("<f")
_U8: Final = struct.Struct("<B")


# All strings together have at most so many times the bytes of the file, and so many bytes.
_REPEATS: Final = 64
_MAX_NAMES: Final = 1 << 28


class InvalidFlatBuffer(InvalidProtobuf):
    """The bytes are not a FlatBuffer of the expected schema."""


class FlatBuffer:
    """The bytes of a file, and how many of them were not yet returned as contents.

    A writer stores contents once, so all contents together are not larger than the file. A file in
    which many tables refer to the same large vector is rejected instead of being copied many times.
    Strings are names, which many tables refer to: together they may be larger, within limits.
    """

    def __init__(self, data: memoryview, name: str, kind: str) -> None:
        """`kind` is what errors call the file, such as "checkpoint"."""
        self.data = data.cast("B")
        self.name = name
        self._kind = kind
        self._unread = len(self.data)
        self._strings: dict[int, bytes] = {}  # by offset: writers store equal ones once
        # The bytes that strings may still have.
        self._unnamed = max(len(self.data), min(_REPEATS * len(self.data), _MAX_NAMES))

    def root(self, identifier: bytes) -> Table:
        """Return the root table of a file with this identifier."""
        if len(self.data) < 8 or bytes(self.data[4:8]) != identifier:
            raise self.error(f"it does not begin with the identifier {identifier.decode()}")
        return Table(self, self.follow(0))

    def error(self, what: str) -> InvalidFlatBuffer:
        """Return an error about this file."""
        return InvalidFlatBuffer(
            f"{self.name} is not a valid {self._kind}: {what}",
            hint="the file is truncated or damaged; use another copy",
        )

    def number(self, layout: struct.Struct, at: int) -> int:
        """Return the integer at an offset."""
        self._check(at, layout.size)
        number: int = layout.unpack_from(self.data, at)[0]
        return number

    def float32(self, at: int) -> float:
        """Return the float32 at an offset."""
        self._check(at, _F32.size)
        number: float = _F32.unpack_from(self.data, at)[0]
        return number

    def follow(self, at: int) -> int:
        """Return the offset that the forward distance at an offset refers to."""
        return at + self.number(_U32, at)

    def vector(self, at: int, itemsize: int) -> tuple[int, int]:
        """Return the offset of a vector's first element and their number."""
        count = self.number(_U32, at)
        self._check(at + 4, count * itemsize)
        self._unread -= count * itemsize
        if self._unread < 0:
            raise self.error("its tensors and names refer to the same bytes")
        return at + 4, count

    def string(self, at: int) -> bytes:
        """Return the string at an offset, which may be referred to many times."""
        if at not in self._strings:
            begin, count = self.vector(at, 1)
            self._strings[at] = bytes(self.data[begin : begin + count])
        text = self._strings[at]
        self._unnamed -= len(text)
        if self._unnamed < 0:
            raise self.error("a long name is repeated too often")
        return text

    def _check(self, at: int, n_bytes: int) -> None:
        if at < 0 or at + n_bytes > len(self.data):
            end = at + n_bytes
            raise self.error(f"bytes {at} to {end} are needed, and it has {len(self.data)}")


class Table:
    """A table; fields are numbered in the order of the schema, and absent ones have defaults."""

    def __init__(self, buffer: FlatBuffer, at: int) -> None:
        self._buffer = buffer
        self._at = at
        self._vtable = at - buffer.number(_I32, at)
        self._vtable_size = buffer.number(_U16, self._vtable)

    def _field(self, index: int) -> int | None:
        """Return the offset of a field; None if it is absent."""
        entry = 4 + 2 * index  # after the sizes of the vtable and of the table
        if entry + 2 > self._vtable_size:
            return None
        offset = self._buffer.number(_U16, self._vtable + entry)
        return self._at + offset if offset else None

    def bool(self, index: int) -> bool:
        """Return a bool; its default is False."""
        return self.uint8(index) != 0

    def uint8(self, index: int) -> int:
        """Return a byte, also of an enumeration or a union's type; its default is 0."""
        at = self._field(index)
        return 0 if at is None else self._buffer.number(_U8, at)

    def int32(self, index: int) -> int:
        """Return an int32; its default is 0."""
        at = self._field(index)
        return 0 if at is None else self._buffer.number(_I32, at)

    def int64(self, index: int, default: int = 0) -> int:
        """Return an int64."""
        at = self._field(index)
        return default if at is None else self._buffer.number(_I64, at)

    def float32(self, index: int) -> float:
        """Return a float32; its default is 0."""
        at = self._field(index)
        return 0.0 if at is None else self._buffer.float32(at)

    def table(self, index: int) -> Table | None:
        """Return a table; None if it is absent."""
        at = self._field(index)
        return None if at is None else Table(self._buffer, self._buffer.follow(at))

    def tables(self, index: int) -> list[Table]:
        """Return a vector of tables, empty if it is absent."""
        begin, count = self._vector(index, 4)
        follow = self._buffer.follow
        return [Table(self._buffer, follow(begin + 4 * i)) for i in range(count)]

    def int64s(self, index: int) -> tuple[int, ...]:
        """Return a vector of int64, empty if it is absent."""
        begin, count = self._vector(index, 8)
        return struct.unpack_from(f"<{count}q", self._buffer.data, begin)

    def raw(self, index: int) -> memoryview:
        """Return a view of a vector of bytes, empty if it is absent."""
        begin, n_bytes = self.span(index)
        return self._buffer.data[begin : begin + n_bytes]

    def span(self, index: int, itemsize: int = 1) -> tuple[int, int]:
        """Return the offset and the bytes of a vector of numbers, 0 bytes if it is absent."""
        begin, count = self._vector(index, itemsize)
        return begin, count * itemsize

    def string(self, index: int) -> bytes:
        """Return the bytes of a string, none if it is absent."""
        at = self._field(index)
        return b"" if at is None else self._buffer.string(self._buffer.follow(at))

    def strings(self, index: int) -> list[bytes]:
        """Return a vector of strings, empty if it is absent."""
        begin, count = self._vector(index, 4)
        buffer = self._buffer
        return [buffer.string(buffer.follow(begin + 4 * i)) for i in range(count)]

    def text(self, index: int) -> str:
        """Return a string, empty if it is absent."""
        try:
            return str(self.raw(index), "utf-8")
        except UnicodeDecodeError:
            raise self._buffer.error("a name is not UTF-8") from None

    def _vector(self, index: int, itemsize: int) -> tuple[int, int]:
        at = self._field(index)
        return (0, 0) if at is None else self._buffer.vector(self._buffer.follow(at), itemsize)
