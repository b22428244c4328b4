"""Converts tensor records to constants: references to the file's bytes, or decoded arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from sardonyx._native import DecodeError, SparseTensorRecord, TensorRecord
from sardonyx.errors import (
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    NotImplemented,
    SardonyxError,
)
from sardonyx.graph.const import ArrayConst, Const, Source, SourceConst, shared_array_const, unpack
from sardonyx.graph.dtype import STRING, DType, by_numpy, by_onnx
from sardonyx.load.buffers import as_array, as_bytes, source
from sardonyx.load.source import Files

MAX_DENSE_BYTES: Final = 1 << 32  # of an expanded sparse tensor
MAX_COUNT: Final = 1 << 60

# The field of TensorProto for each element type, when it is not raw_data; int32_data for others.
_FIELDS: Final = {
    "f32": "float", "c64": "float", "f64": "double", "c128": "double", "i64": "int64",
    "u32": "uint64", "u64": "uint64", "str": "string",
}  # fmt: skip


def shape_of(dims: tuple[int, ...]) -> tuple[int, ...]:
    """Check the dims of a stored tensor: none negative, the product in range."""
    if any(d < 0 for d in dims):
        raise InvalidGraph(f"the shape {list(dims)} has a negative dim")
    if math.prod(max(d, 1) for d in dims) > MAX_COUNT:  # zero dims do not excuse huge ones
        raise InvalidGraph(f"the shape {list(dims)} has too many elements")
    return dims


def dtype_of(number: int) -> DType:
    """Return the element type of a stored tensor."""
    found = by_onnx(number)
    if found is None:
        raise InvalidGraph(f"{number} is not an element type of ONNX")
    return found


class Tensors:
    """Converts the tensor records of one model to constants."""

    def __init__(self, source: Source, files: Files, replacements: Mapping[str, Any]) -> None:
        """`replacements` are arrays in place of initializers, those of bodies included."""
        self._source = source
        self._files = files
        self._replacements = dict(replacements)
        self._unused = set(replacements)

    def initializer(self, record: TensorRecord) -> Const:
        """Return the constant of an initializer: its replacement, else the model's tensor."""
        if record.name not in self._replacements:
            return self.const(record)
        self._unused.discard(record.name)
        what = f"what was given for the initializer {record.name}"
        array = as_array(self._replacements[record.name], what)
        dtype = by_numpy(array.dtype)
        if dtype is not dtype_of(record.data_type) or array.shape != record.dims:
            raise InvalidArgument(
                f"the initializer {record.name} is {by_onnx(record.data_type)}{list(record.dims)}, "
                f"and {dtype or array.dtype}{list(array.shape)} was given for it"
            )
        if dtype is STRING:
            return ArrayConst(array.astype(object))
        if dtype.bits < 8:  # arrays have one element per byte, files are packed
            return ArrayConst(array)
        view = as_bytes(array, what)
        return SourceConst(source(view, record.name), 0, view.nbytes, dtype, array.shape)

    def check_all_used(self) -> None:
        """Raise if a replacement has the name of no initializer."""
        for name in sorted(self._unused):
            what = f"an array was given for {name!r}, and no initializer has this name"
            raise InvalidArgument(what)

    def const(self, record: TensorRecord) -> Const:
        """Return the constant of a record; sizes are validated before bytes are read."""
        # Fast path for nearly all of a model's thousands of tensors: raw bytes, read in one call.
        plain = record.plain
        if plain is not None:
            number, dims, offset, length = plain
            kind = by_onnx(number)
            if (
                kind is not None
                and kind is not STRING
                and min(dims, default=1) > 0
                and length == kind.packed_bytes(math.prod(dims))
            ):
                return SourceConst(self._source, offset, length, kind, dims)
        try:
            dtype, shape = dtype_of(record.data_type), shape_of(record.dims)
            if record.has_segment:
                raise NotImplemented("tensors stored in segments are not supported")
            if record.location == 1:
                return self._external(record, dtype, shape)
            storage = record.storage
            if storage == "raw" or (record.offset >= 0 and storage != "none"):
                return self._in_place(record, dtype, shape)
            return shared_array_const(_typed(record, dtype, shape))
        except DecodeError as error:
            raise InvalidProtobuf(str(error), tensor=record.name or "(no name)") from None
        except SardonyxError as error:
            raise error.add_context(tensor=record.name or "(no name)") from None

    def _in_place(self, record: TensorRecord, dtype: DType, shape: tuple[int, ...]) -> Const:
        if dtype is STRING:
            raise InvalidGraph("strings cannot be stored as raw bytes")
        if record.storage != "raw":
            _check_field(record, dtype)
        _check_length(record.length, dtype, shape, "the model holds")
        return SourceConst(self._source, record.offset, record.length, dtype, shape)

    def _external(self, record: TensorRecord, dtype: DType, shape: tuple[int, ...]) -> Const:
        if dtype is STRING:
            raise InvalidGraph("strings cannot be stored as external data")
        entries = dict(record.external_data)
        location = entries.get("location")
        if location is None:
            raise InvalidGraph("external data has no location")
        offset = _number(entries, "offset", 0)
        needed = dtype.packed_bytes(math.prod(shape))
        length = _number(entries, "length", needed)
        _check_length(length, dtype, shape, "external_data says")
        if not needed:
            return ArrayConst(np.empty(shape, dtype.np))
        file = self._files.open(location)
        if offset + length > file.data.nbytes:
            raise InvalidGraph(
                f"the data file {location} has {file.data.nbytes} bytes, "
                f"and the tensor is at bytes {offset} to {offset + length}",
                hint="the file is cut short or belongs to another model",
            )
        return SourceConst(self._files.part(location, offset, length), offset, length, dtype, shape)

    def dense(self, record: SparseTensorRecord) -> Const:
        """Return a sparse tensor as a dense one, after a check of its indices."""
        values, indices = self.const(record.values), self.const(record.indices)
        shape = shape_of(record.dims)
        if math.prod(shape) * values.dtype.itemsize > MAX_DENSE_BYTES:
            raise InvalidGraph(
                f"the sparse tensor of shape {list(shape)} is too large to expand",
                tensor=record.values.name,
            )
        positions = indices.read().astype(np.int64)
        count = values.count
        if positions.ndim == 2 and positions.shape == (count, len(shape)):
            _check_range(positions, np.array(shape, np.int64), record.values.name)
            flat = np.ravel_multi_index(tuple(positions.T), shape) if count else positions[:, 0]
        elif positions.shape == (count,):
            _check_range(positions, np.int64(math.prod(shape)), record.values.name)
            flat = positions
        else:
            raise InvalidGraph(
                f"sparse indices of shape {list(positions.shape)} "
                f"do not fit {count} values of rank {len(shape)}",
                tensor=record.values.name,
            )
        out = np.zeros(math.prod(shape), values.dtype.np)
        out[flat] = values.read().reshape(-1)
        return shared_array_const(out.reshape(shape))


def _check_range(positions: Any, bound: Any, name: str) -> None:
    if np.any(positions < 0) or np.any(positions >= bound):
        raise InvalidGraph("a sparse index is outside the tensor", tensor=name)


def _number(entries: dict[str, str], key: str, default: int) -> int:
    text = entries.get(key)
    if text is None or text == "":
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InvalidGraph(f"external data has {key} {text!r}, which is not a byte count")
    return int(text)


def _check_length(length: int, dtype: DType, shape: tuple[int, ...], where: str) -> None:
    needed = dtype.packed_bytes(math.prod(shape))
    if length != needed:
        raise InvalidGraph(f"{where} {length} bytes, and {dtype}{list(shape)} needs {needed}")


def _check_field(record: TensorRecord, dtype: DType) -> None:
    expected = _FIELDS.get(dtype.name, "int32")
    if record.storage != expected:
        what = f"{dtype} is stored in {expected}_data, and the tensor has {record.storage}_data"
        raise InvalidGraph(what)


def _typed(record: TensorRecord, dtype: DType, shape: tuple[int, ...]) -> Any:
    """Return an array from a typed field, which has a number per element or per packed byte."""
    count = math.prod(shape)
    if record.storage == "none":
        if count:
            raise InvalidGraph(f"the tensor {dtype}{list(shape)} has no data")
        return np.empty(shape, dtype.np)
    _check_field(record, dtype)
    if dtype is STRING:
        _check_count(len(record.strings), count)
        out = np.empty(count, object)
        out[:] = [s.decode("utf-8", "replace") for s in record.strings]
        return out.reshape(shape)
    values = record.values
    assert values is not None
    if dtype.kind == "complex":
        _check_count(values.size, 2 * count)
        return values.view(dtype.np).reshape(shape)
    if dtype.bits < 8:
        _check_count(values.size, dtype.packed_bytes(count))
        return unpack(values.astype(np.uint8), dtype, count).reshape(shape)
    _check_count(values.size, count)
    if dtype.is_float and dtype.bits < 32:
        return values.astype(f"u{dtype.itemsize}").view(dtype.np).reshape(shape)
    return values.astype(dtype.np).reshape(shape)


def _check_count(count: int, expected: int) -> None:
    if count != expected:
        raise InvalidGraph(f"the tensor has {count} numbers, and its shape needs {expected}")
