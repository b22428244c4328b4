"""Reads protobuf's wire format field by field, without copies and without a schema."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from sardonyx.errors import InvalidProtobuf

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

# Field number, value (a number, or the bytes of a message, string or fixed-size number), all bytes.
Field = tuple[int, "int | memoryview", memoryview]


def fields(data: memoryview) -> Iterator[Field]:
    """Yield the fields of a message in the order of the file."""
    position, end = 0, data.nbytes
    while position < end:
        start = position
        tag, position = _varint(data, position)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, position = _varint(data, position)
            yield number, value, data[start:position]
            continue
        if wire == _BYTES:
            length, position = _varint(data, position)
        elif wire in (_FIXED64, _FIXED32):
            length = 8 if wire == _FIXED64 else 4
        else:
            raise InvalidProtobuf(f"a field of wire type {wire} is not of a protobuf message")
        if position + length > end:
            raise InvalidProtobuf("a field reaches beyond the end of its message")
        yield number, data[position : position + length], data[start : position + length]
        position += length


def text(value: int | memoryview) -> str:
    """Return the value of a string field."""
    return bytes(blob(value)).decode("utf-8", "surrogateescape")


def blob(value: int | memoryview) -> memoryview:
    """Return the value of a field of strings, bytes or messages."""
    if isinstance(value, int):
        raise InvalidProtobuf("a number stands where a message or string belongs")
    return value


def number(value: int | memoryview) -> int:
    """Return the value of an integer field, as a signed number of 64 bits."""
    if not isinstance(value, int):
        raise InvalidProtobuf("a message or string stands where a number belongs")
    return value - (1 << 64) if value >= 1 << 63 else value


def numbers(value: int | memoryview) -> list[int]:
    """Return the integers of one occurrence of a repeated field, packed or not."""
    if isinstance(value, int):
        return [number(value)]
    found, position = [], 0
    while position < value.nbytes:
        item, position = _varint(value, position)
        found.append(number(item))
    return found


def reals(value: int | memoryview) -> list[float]:
    """Return the float32 numbers of one occurrence of a repeated field, packed or not."""
    data = blob(value)
    if data.nbytes % 4:
        raise InvalidProtobuf("a field of float32 numbers has a length that 4 does not divide")
    return list(struct.unpack(f"<{data.nbytes // 4}f", data))


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """Return the number at a position, and the position after it."""
    value = shift = 0
    while True:
        if position >= data.nbytes or shift > 63:
            raise InvalidProtobuf("a number has no end")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, position
        shift += 7
