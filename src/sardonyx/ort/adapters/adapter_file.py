"""Adapter files: FlatBuffers, of which the reader validates every offset."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from sardonyx.base.atomic_file import writing
from sardonyx.base.records import field, mutable
from sardonyx.errors import InvalidArgument, ValueFault
from sardonyx.graph.dtype import STRING, by_onnx
from sardonyx.load.source import map_file
from sardonyx.ort.ort_value import OrtValue
from sardonyx.place.provider import HOST

_FILE_IDENTIFIER: Final = b"TORT"
_FORMAT_VERSION: Final = 1
_MAX_PARAMETERS: Final = 1 << 20
# Field numbers of the tables Adapter and Parameter in onnxruntime's adapter schema.
_FORMAT, _ADAPTER, _MODEL, _PARAMETERS = range(4)
_NAME, _DIMS, _TYPE, _RAW = range(4)


@mutable
class Content:
    """The contents of an adapter file."""

    parameters: dict[str, OrtValue] = field(default_factory=dict)
    format_version: int = 0
    adapter_version: int = 0
    model_version: int = 0


def write(path: str, content: Content) -> None:
    """Write an adapter atomically."""
    builder = _FlatBufferBuilder()
    offsets = [_parameter(builder, name, value) for name, value in content.parameters.items()]
    vector = builder.offsets(offsets)
    # Fields in the order of onnxruntime's writer, so that files are equal to the byte.
    root = builder.table(
        [
            (_PARAMETERS, builder.refer, vector),
            (_MODEL, builder.int32, content.model_version),
            (_ADAPTER, builder.int32, content.adapter_version),
            (_FORMAT, builder.int32, _FORMAT_VERSION),
        ]
    )
    data = builder.finish(root, _FILE_IDENTIFIER)
    try:
        with writing(path) as file:
            file.write(data)
    except OSError as error:
        raise ValueFault(f"the adapter {path} cannot be written: {error}") from None


def _parameter(builder: _FlatBufferBuilder, name: str, value: OrtValue) -> int:
    tensor = value._at(HOST)._tensor()
    if value._dtype is STRING:
        raise InvalidArgument(f"the parameter {name} is a tensor of STRING, which has no bytes")
    text = builder.string(name)
    dims = builder.vector(np.array(value.shape(), np.int64))
    raw = builder.vector(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8))
    return builder.table(
        [
            (_RAW, builder.refer, raw),
            (_TYPE, builder.int32, value.element_type()),
            (_DIMS, builder.refer, dims),
            (_NAME, builder.refer, text),
        ]
    )


def read(path: str) -> Content:
    """Read an adapter; its parameters are views of the mapped file, copied if misaligned."""
    source = map_file(path, os.path.basename(path))
    data = np.frombuffer(source.data, np.uint8) if source.data.nbytes else np.empty(0, np.uint8)
    try:
        return _Reader(data).content()
    except _InvalidFile as error:
        raise ValueFault(f"{path} is not a valid adapter: {error}") from None


class _InvalidFile(Exception):
    """Why a file is not a valid adapter."""


class _Reader:
    """Reads tables of a FlatBuffer; an offset outside the file is an error."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self._size = int(data.nbytes)

    def content(self) -> Content:
        """Return the whole adapter."""
        if self._size < 8 or bytes(self._data[4:8]) != _FILE_IDENTIFIER:
            raise _InvalidFile("the file identifier TORT is missing")
        root = self._follow(0)
        version = self._int(root, _FORMAT)
        if version != _FORMAT_VERSION:
            raise _InvalidFile(f"it has format {version}; this version reads {_FORMAT_VERSION}")
        content = Content({}, version, self._int(root, _ADAPTER), self._int(root, _MODEL))
        at = self._field(root, _PARAMETERS)
        if at:
            start, count = self._vector(self._follow(at), 4)
            if count > _MAX_PARAMETERS:
                raise _InvalidFile(f"it has {count} parameters")
            for i in range(count):
                self._add_parameter(content, self._follow(start + 4 * i))
        return content

    def _add_parameter(self, content: Content, table: int) -> None:
        name_at = self._field(table, _NAME)
        if not name_at:
            raise _InvalidFile("a parameter has no name")
        start, length = self._vector(self._follow(name_at), 1)
        try:
            name = bytes(self._data[start : start + length]).decode()
        except UnicodeDecodeError:
            raise _InvalidFile("the name of a parameter is not UTF-8") from None
        if name in content.parameters:
            raise _InvalidFile(f"two parameters are named {name}")
        content.parameters[name] = self._tensor(table, name)

    def _tensor(self, table: int, name: str) -> OrtValue:
        dtype = by_onnx(self._int(table, _TYPE))
        if dtype is None or dtype is STRING:
            raise _InvalidFile(f"the parameter {name} has an unsupported element type")
        shape: tuple[int, ...] = ()
        if at := self._field(table, _DIMS):
            start, count = self._vector(self._follow(at), 8)
            if count > np.iinfo(np.int8).max:
                raise _InvalidFile(f"the parameter {name} has {count} dims")
            shape = struct.unpack_from(f"<{count}q", self._data, start)
        if any(d < 0 for d in shape):
            raise _InvalidFile(f"the parameter {name} has the shape {list(shape)}")
        start, size = 0, 0
        if at := self._field(table, _RAW):
            start, size = self._vector(self._follow(at), 1)
        if size != dtype.packed_bytes(math.prod(shape)):
            raise _InvalidFile(
                f"the parameter {name} is {dtype.ort_name}{list(shape)} in {size} bytes"
            )
        raw = self._data[start : start + size]
        if raw.__array_interface__["data"][0] % dtype.itemsize:
            raw = raw.copy()  # kernels read aligned elements
        return OrtValue._of_bytes(raw, dtype, shape)

    def _int(self, table: int, number: int) -> int:
        at = self._field(table, number)
        return self._at("<i", at) if at else 0

    def _field(self, table: int, number: int) -> int:
        """Return the offset of a table's field; 0 if it is absent."""
        # A table begins with the signed distance back to its vtable, which holds its own size, the
        # table's size, and the offset of each field in the table (0: absent), in 16 bits each.
        vtable = table - self._at("<i", table)
        size, table_size = self._at("<H", vtable), self._at("<H", vtable + 2)
        if size < 4 or size % 2:
            raise _InvalidFile(f"the vtable of the table at {table} has {size} bytes")
        if 4 + 2 * number >= size:
            return 0
        offset = self._at("<H", vtable + 4 + 2 * number)
        if offset and not 4 <= offset <= table_size - 4:
            raise _InvalidFile(f"a field is outside its table at {table}")
        return table + offset if offset else 0

    def _follow(self, at: int) -> int:
        target = at + self._at("<I", at)
        if target == at or target + 4 > self._size:
            raise _InvalidFile(f"the offset at {at} leads outside the file")
        return target

    def _vector(self, at: int, item_bytes: int) -> tuple[int, int]:
        """Return the offset of a vector's elements, and their count."""
        count = self._at("<I", at)
        if at + 4 + count * item_bytes > self._size:
            raise _InvalidFile(f"the vector at {at} ends outside the file")
        return at + 4, count

    def _at(self, format: str, at: int) -> int:
        if not 0 <= at <= self._size - struct.calcsize(format):
            raise _InvalidFile(f"the offset {at} is outside the file")
        number: int = struct.unpack_from(format, self._data, at)[0]
        return number


Field = tuple[int, Callable[[int], None], int]  # number, how it is written, its value
Array = np.ndarray[Any, Any]


class _FlatBufferBuilder:
    """Builds a FlatBuffer back to front, as usual for the format; positions count from the end."""

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

    def vector(self, array: Array) -> int:
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
