"""Writes FlatBuffers: tables, vectors and strings, each after the table that refers to it.

Fields are functions that append an object to the bytes and return its position, or numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

Append = Callable[[bytearray], int]
MAX_BYTES: Final = 2**31 - 1  # of a file: distances are 32-bit numbers
_ALIGN: Final = 8


class Scalar(NamedTuple):
    """A number in a table, and its layout."""

    layout: str
    value: int | float


Field = Scalar | Append | None  # None: the default


def file(root: Append, identifier: bytes) -> bytearray:
    """Return a file with a root table."""
    out = bytearray(4) + identifier
    _refer(out, 0, root)
    return out


def table(fields: Sequence[Field]) -> Append:
    """A table with these fields, in the order of the schema."""

    def append(out: bytearray) -> int:
        offsets, body = [], bytearray(4)  # the distance to the vtable comes first
        for field in fields:
            scalar = field if isinstance(field, Scalar) else Scalar("<I", 0)
            size = struct.calcsize(scalar.layout)
            body += bytes(-len(body) % size if field is not None else 0)
            offsets.append(0 if field is None else len(body))
            body += b"" if field is None else struct.pack(scalar.layout, scalar.value)
        vtable_size = 4 + 2 * len(fields)
        out += bytes(-(len(out) + vtable_size) % _ALIGN)
        out += struct.pack(f"<HH{len(fields)}H", vtable_size, len(body), *offsets)
        at = len(out)
        body[:4] = struct.pack("<i", vtable_size)
        out += body
        for offset, field in zip(offsets, fields, strict=True):
            if field is not None and not isinstance(field, Scalar):
                _refer(out, at + offset, field)
        return at

    return append


def vector(raw: bytes | memoryview, count: int, align: int = 4) -> Append:
    """A vector of scalars, from the bytes of its elements."""

    def append(out: bytearray) -> int:
        out += bytes(-(len(out) + 4) % align)
        out.extend(struct.pack("<I", count))
        out.extend(raw)
        return len(out) - len(raw) - 4

    return append


def tables(appends: Sequence[Append]) -> Append:
    """A vector of tables."""

    def append(out: bytearray) -> int:
        at = vector(bytes(4 * len(appends)), len(appends))(out)
        for i, one in enumerate(appends):
            _refer(out, at + 4 + 4 * i, one)
        return at

    return append


def text(value: str) -> Append:
    """A string."""
    raw = value.encode()
    return vector(raw + b"\0", len(raw))


def _refer(out: bytearray, at: int, append: Append) -> None:
    """Append an object, and write the distance to it at a position."""
    out[at : at + 4] = struct.pack("<I", append(out) - at)
