"""Writes constants as TensorProto, with their bytes in the model or in an external data file."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from typing import BinaryIO, Final, Protocol

import numpy as np

from sardonyx.base.protobuf_wire import Message, Stream
from sardonyx.base.records import field, mutable
from sardonyx.graph.const import Const, Deferred, Source, SourceConst, pack
from sardonyx.graph.dtype import STRING

CHUNK: Final = 1 << 24  # bytes per write
SMALL: Final = 1 << 12  # bytes of tensors that are copied into the message
ALIGN: Final = 64  # alignment of tensors in a data file, so that kernels read them in place
PAGE: Final = 4096
LARGE: Final = 1 << 20  # bytes of tensors that start on a page, so that they can be mapped alone
SHAPES: Final = (
    64  # elements of vectors that may be a shape or axes, which readers need immediately
)

# Field numbers of TensorProto.
_DIMS, _TYPE, _STRINGS, _NAME, _RAW = 1, 2, 6, 8, 9
_EXTERNAL, _LOCATION = 13, 14


def stored_bytes(const: Const) -> int:
    """Return the bytes of a tensor as ONNX encodes it; 0 for strings, which are never external."""
    return 0 if const.dtype is STRING else const.dtype.packed_bytes(const.count)


def identity(const: Const) -> Hashable:
    """Return a key that is equal for constants that refer to the same bytes; reads nothing."""
    if isinstance(const, SourceConst):
        return id(const.source), const.offset, const.length
    return id(const)


def content(const: Const) -> Stream:
    """Return the bytes of a tensor as ONNX encodes it; those of a reference as in its source."""
    size = stored_bytes(const)
    if isinstance(const, SourceConst):
        data = const.source.data[const.offset : const.offset + const.length]
        return Stream(size, lambda: (data[i : i + CHUNK] for i in range(0, size, CHUNK)))
    return Stream(size, lambda: _chunks(const))


def _chunks(const: Const) -> Iterator[bytes | memoryview]:
    flat = np.ascontiguousarray(const.read()).reshape(-1)
    if const.dtype.bits < 8:
        step = CHUNK // 8  # a multiple of 8 elements gives whole bytes; packing uses a byte per bit
        for i in range(0, flat.size, step):
            yield pack(flat[i : i + step], const.dtype)
        return
    data = flat.view(np.uint8).data if flat.size else memoryview(b"")
    for i in range(0, data.nbytes, CHUNK):
        yield data[i : i + CHUNK]


@mutable
class DataFile:
    """The external data file: tensors in the order of their first use, each stored once."""

    location: str
    min_bytes: int
    external: Collection[Source] = ()  # the data files of the model that is saved
    _end: int = 0
    _offsets: dict[Hashable, int] = field(default_factory=dict)
    _streams: list[tuple[int, Stream]] = field(default_factory=list)

    def takes(self, const: Const) -> bool:
        """Return whether a tensor is large enough to be external.

        Vectors as short as shapes are not: onnxruntime cannot infer shapes from external data. But
        those that are external in the model may stay so.
        """
        is_external = isinstance(const, SourceConst) and const.source in self.external
        is_short = len(const.shape) < 2 and const.count <= SHAPES and not is_external
        return not is_short and stored_bytes(const) >= max(self.min_bytes, 1)

    def entries(self, const: Const, name: str) -> dict[str, object] | None:
        """Return the external_data entries of a tensor; None if it stays in the model."""
        if not self.takes(const):
            return None
        offset = self.reserve(const)
        return {"location": self.location, "offset": offset, "length": stored_bytes(const)}

    def reserve(self, const: Const) -> int:
        """Return the offset of a tensor, which is appended to the file if it is new."""
        key = identity(const)
        if key not in self._offsets:
            size = stored_bytes(const)
            alignment = PAGE if size >= LARGE else ALIGN
            self._offsets[key] = start = -(-self._end // alignment) * alignment
            self._streams.append((start, content(const)))
            self._end = start + size
        return self._offsets[key]

    @property
    def is_empty(self) -> bool:
        return not self._streams

    def write(self, file: BinaryIO) -> None:
        """Write all tensors."""
        end = 0
        for start, stream in self._streams:
            file.write(bytes(start - end))
            stream.write(file)
            end = start + stream.size


class External(Protocol):
    """Stores the bytes of tensors outside a model."""

    def entries(self, const: Const, name: str) -> dict[str, object] | None: ...


def tensor(const: Const, name: str = "", file: External | None = None) -> Message:
    """Return a TensorProto."""
    message = Message()
    if const.shape:
        message.numbers(_DIMS, const.shape)
    message.number(_TYPE, const.dtype.onnx)
    if name:
        message.text(_NAME, name)
    if const.dtype is STRING:
        for cell in const.read().reshape(-1).tolist():
            message.blob(_STRINGS, cell if isinstance(cell, bytes) else str(cell).encode())
    elif file is not None and (entries := file.entries(const, name)) is not None:
        for key, value in entries.items():
            message.message(_EXTERNAL, entry(key, str(value)))
        message.number(_LOCATION, 1)
    elif stored_bytes(const) <= SMALL and is_cheap(const):
        message.blob(_RAW, b"".join(content(const).pieces()))
    else:
        message.stream(_RAW, content(const))
    return message


def is_cheap(const: Const) -> bool:
    """Return whether a tensor may be read while a message is built, and not only when written."""
    return not isinstance(const, Deferred) or const.is_cheap


def entry(key: str, value: str) -> Message:
    """Return a StringStringEntryProto."""
    return Message().text(1, key).text(2, value)
