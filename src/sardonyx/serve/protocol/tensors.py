"""Tensors as bytes: little-endian, in row-major order; BYTES elements have a length each."""

from __future__ import annotations

import struct
from math import prod
from typing import Final

import numpy as np

from sardonyx.serve.protocol.datatypes import Array, Datatype
from sardonyx.serve.refusals import BadRequest

Buffer = bytes | bytearray | memoryview
_LENGTH: Final = struct.Struct("<I")


def from_bytes(name: str, datatype: Datatype, shape: tuple[int, ...], data: Buffer) -> Array:
    """Return the tensor that bytes contain; it shares their memory if they are aligned."""
    if datatype.is_bytes:
        return _strings(name, shape, data)
    expected = prod(shape) * datatype.dtype.itemsize
    if len(data) != expected:
        raise BadRequest(
            f"{name} has {len(data)} bytes; {datatype.name} of shape {list(shape)} has {expected}"
        )
    array: Array = np.frombuffer(data, datatype.dtype).reshape(shape)
    return array if array.flags.aligned else array.copy()


def to_bytes(array: Array) -> Buffer:
    """Return the bytes of a tensor, without a copy if it is contiguous."""
    if array.dtype.kind == "O":
        parts: list[bytes] = []
        for element in array.ravel().tolist():
            text = element.encode() if isinstance(element, str) else bytes(element)
            parts += (_LENGTH.pack(len(text)), text)
        return b"".join(parts)
    if array.size == 0:
        return b""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _strings(name: str, shape: tuple[int, ...], data: Buffer) -> Array:
    count, offset, size = prod(shape), 0, len(data)
    if count * _LENGTH.size > size:  # before a list of that many elements is made
        raise BadRequest(f"{name} has {size} bytes, which cannot be {count} BYTES elements")
    elements: list[str] = []
    for index in range(count):
        begin = offset + _LENGTH.size
        if begin > size:
            raise BadRequest(f"the bytes of {name} end before the length of element {index}")
        offset = begin + _LENGTH.unpack_from(data, begin - _LENGTH.size)[0]
        if offset > size:
            raise BadRequest(f"the bytes of {name} end within element {index}")
        elements.append(text_of(name, index, data[begin:offset]))
    if offset != size:
        raise BadRequest(f"{name} has {size - offset} bytes after its {count} elements")
    return string_array(elements, shape)


def text_of(name: str, index: int, data: Buffer) -> str:
    """Return a BYTES element as text: strings of ONNX are UTF-8."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise BadRequest(
            f"element {index} of {name} is not UTF-8, as strings of ONNX are: {error.reason}"
        ) from None


def string_array(elements: list[str], shape: tuple[int, ...]) -> Array:
    """Return an array of str objects; numpy alone would guess a type from them."""
    array = np.empty(len(elements), object)
    array[:] = elements
    return array.reshape(shape)
