"""The file of an adapter: a FlatBuffer, of which every offset is checked when it is read."""

from __future__ import annotations

import math
import os
import struct
from typing import Any, Final

import numpy as np

from sardonyx.base.atomic_file import writing
from sardonyx.base.records import field, mutable
from sardonyx.errors import InvalidArgument, ValueFault
from sardonyx.graph.dtype import STRING, by_onnx
from sardonyx.load.source import map_file
from sardonyx.ort.adapters.flat import Builder
from sardonyx.ort.ort_value import OrtValue
from sardonyx.place.provider import HOST

_MARK: Final = b"TORT"
_FORMAT_VERSION: Final = 1
_MOST_PARAMETERS: Final = 1 << 20
# Fields of an adapter, then of a parameter, by their numbers.
_FORMAT, _ADAPTER, _MODEL, _PARAMETERS = range(4)
_NAME, _DIMS, _TYPE, _RAW = range(4)


@mutable
class Content:
    """What an adapter's file holds."""

    parameters: dict[str, OrtValue] = field(default_factory=dict)
    format_version: int = 0
    adapter_version: int = 0
    model_version: int = 0


def write(path: str, content: Content) -> None:
    """Writes an adapter whole, or not at all."""
    builder = Builder()
    made = [_parameter(builder, name, value) for name, value in content.parameters.items()]
    vector = builder.offsets(made)
    root = builder.table(
        [
            (_PARAMETERS, builder.refer, vector),
            (_MODEL, builder.int32, content.model_version),
            (_ADAPTER, builder.int32, content.adapter_version),
            (_FORMAT, builder.int32, _FORMAT_VERSION),
        ]
    )
    data = builder.finish(root, _MARK)
    try:
        with writing(path) as file:
            file.write(data)
    except OSError as error:
        raise ValueFault(f"the adapter {path} cannot be written: {error}") from None


def _parameter(builder: Builder, name: str, value: OrtValue) -> int:
    tensor = value._at(HOST)._tensor()
    if value._dtype is STRING:
        raise InvalidArgument(f"the parameter {name} is a tensor of strings")
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
    """An adapter whose parameters are views of the mapped file, aligned ones without a copy."""
    source = map_file(path, os.path.basename(path))
    data = np.frombuffer(source.data, np.uint8) if source.data.nbytes else np.empty(0, np.uint8)
    try:
        return _Reader(data).content()
    except _Broken as wrong:
        raise ValueFault(f"{path} is no adapter: {wrong}") from None


class _Broken(Exception):
    """What is wrong with a file."""


class _Reader:
    """Reads tables of a FlatBuffer; whatever lies outside the file is an error."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self._size = int(data.nbytes)

    def content(self) -> Content:
        """The whole adapter."""
        if self._size < 8 or bytes(self._data[4:8]) != _MARK:
            raise _Broken("the mark TORT is missing")
        root = self._follow(0)
        version = self._int(root, _FORMAT)
        if version != _FORMAT_VERSION:
            raise _Broken(f"its format has version {version}, and {_FORMAT_VERSION} is known")
        made = Content({}, version, self._int(root, _ADAPTER), self._int(root, _MODEL))
        at = self._field(root, _PARAMETERS)
        if at:
            start, count = self._vector(self._follow(at), 4)
            if count > _MOST_PARAMETERS:
                raise _Broken(f"it has {count} parameters")
            for i in range(count):
                self._add(made, self._follow(start + 4 * i))
        return made

    def _add(self, made: Content, table: int) -> None:
        name_at = self._field(table, _NAME)
        if not name_at:
            raise _Broken("a parameter has no name")
        start, length = self._vector(self._follow(name_at), 1)
        try:
            name = bytes(self._data[start : start + length]).decode()
        except UnicodeDecodeError:
            raise _Broken("the name of a parameter is not UTF-8") from None
        if name in made.parameters:
            raise _Broken(f"two parameters are named {name}")
        made.parameters[name] = self._tensor(table, name)

    def _tensor(self, table: int, name: str) -> OrtValue:
        dtype = by_onnx(self._int(table, _TYPE))
        if dtype is None or dtype is STRING:
            raise _Broken(f"the parameter {name} has no element type that a file can hold")
        shape: tuple[int, ...] = ()
        if at := self._field(table, _DIMS):
            start, count = self._vector(self._follow(at), 8)
            if count > np.iinfo(np.int8).max:
                raise _Broken(f"the parameter {name} has {count} dims")
            shape = struct.unpack_from(f"<{count}q", self._data, start)
        if any(d < 0 for d in shape):
            raise _Broken(f"the parameter {name} has the shape {list(shape)}")
        start, size = 0, 0
        if at := self._field(table, _RAW):
            start, size = self._vector(self._follow(at), 1)
        if size != dtype.packed_bytes(math.prod(shape)):
            raise _Broken(f"the parameter {name} is {dtype.ort_name}{list(shape)} in {size} bytes")
        raw = self._data[start : start + size]
        if raw.__array_interface__["data"][0] % dtype.itemsize:
            raw = raw.copy()  # kernels read elements where their type may lie
        return OrtValue._of_bytes(raw, dtype, shape)

    def _int(self, table: int, number: int) -> int:
        at = self._field(table, number)
        return self._at("<i", at) if at else 0

    def _field(self, table: int, number: int) -> int:
        """Where a field of a table lies; 0 if it is left out."""
        vtable = table - self._at("<i", table)
        size, table_size = self._at("<H", vtable), self._at("<H", vtable + 2)
        if size < 4 or size % 2:
            raise _Broken(f"the layout of the table at {table} has {size} bytes")
        if 4 + 2 * number >= size:
            return 0
        offset = self._at("<H", vtable + 4 + 2 * number)
        if offset and not 4 <= offset <= table_size - 4:
            raise _Broken(f"a field lies outside its table at {table}")
        return table + offset if offset else 0

    def _follow(self, at: int) -> int:
        target = at + self._at("<I", at)
        if target == at or target + 4 > self._size:
            raise _Broken(f"the offset at {at} leads outside the file")
        return target

    def _vector(self, at: int, item_bytes: int) -> tuple[int, int]:
        """Where the elements of a vector begin, and how many there are."""
        count = self._at("<I", at)
        if at + 4 + count * item_bytes > self._size:
            raise _Broken(f"the vector at {at} ends outside the file")
        return at + 4, count

    def _at(self, form: str, at: int) -> int:
        if not 0 <= at <= self._size - struct.calcsize(form):
            raise _Broken(f"the place {at} is outside the file")
        found: int = struct.unpack_from(form, self._data, at)[0]
        return found
