"""Constants as ONNX tensors, their bytes in the model or in a file beside it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, BinaryIO, Final, Protocol

import numpy as np

from sardonyx.base.records import field, mutable
from sardonyx.graph.const import Const, Ref, pack
from sardonyx.graph.dtype import STRING
from sardonyx.save.wire import Message, Stream

PIECE: Final = 1 << 24  # bytes that are written at once
SMALL: Final = 1 << 12  # tensors up to this size become part of the message
ALIGN: Final = 64  # of tensors in a data file, so that kernels read them in place
PAGE: Final = 4096
SHAPES: Final = (
    64  # elements of a vector that may be a shape or axes: readers look into these at once
)
LARGE: Final = 1 << 20  # tensors of this size start on a page, so that they can be mapped alone

# Field numbers of TensorProto.
_DIMS, _TYPE, _STRINGS, _NAME, _RAW = 1, 2, 6, 8, 9
_EXTERNAL, _LOCATION = 13, 14


def stored_bytes(const: Const) -> int:
    """Bytes of a tensor in ONNX's form; of strings, nothing that counts here."""
    return 0 if const.dtype is STRING else const.dtype.packed_bytes(const.count)


def identity(const: Const) -> Hashable:
    """Equal for constants that are the same bytes by construction; nothing is read."""
    if isinstance(const, Ref):
        return id(const.source), const.offset, const.length
    return id(const)


def content(const: Const) -> Stream:
    """The bytes of a tensor in ONNX's form; a reference is copied from its source."""
    size = stored_bytes(const)
    if isinstance(const, Ref):
        data = const.source.data[const.offset : const.offset + const.length]
        return Stream(size, lambda: (data[i : i + PIECE] for i in range(0, size, PIECE)))
    return Stream(size, lambda: _pieces(const))


def _pieces(const: Const) -> Iterator[bytes | memoryview]:
    flat = np.ascontiguousarray(const.read()).reshape(-1)
    if const.dtype.bits < 8:
        step = PIECE // 8  # packing works on single bits, and a whole number of bytes comes out
        for i in range(0, flat.size, step):
            yield pack(flat[i : i + step], const.dtype)
        return
    data = flat.view(np.uint8).data if flat.size else memoryview(b"")
    for i in range(0, data.nbytes, PIECE):
        yield data[i : i + PIECE]


@mutable
class DataFile:
    """The file that large tensors go to: each where it is first asked for, each only once."""

    location: str
    min_bytes: int
    _end: int = 0
    _placed: dict[Hashable, int] = field(default_factory=dict)
    _streams: list[tuple[int, Stream]] = field(default_factory=list)

    def takes(self, const: Const) -> bool:
        """Whether a tensor is large enough to go here.

        Vectors as short as shapes never are: onnxruntime cannot infer shapes from data in files.
        """
        is_short = len(const.shape) < 2 and const.count <= SHAPES
        return not is_short and stored_bytes(const) >= max(self.min_bytes, 1)

    def entries(self, const: Const, name: str) -> dict[str, object] | None:
        """What a model says of where a tensor's bytes are; None if they stay in the model."""
        if not self.takes(const):
            return None
        offset = self.place(const)
        return {"location": self.location, "offset": offset, "length": stored_bytes(const)}

    def place(self, const: Const) -> int:
        """The offset of a tensor's bytes."""
        key = identity(const)
        if key not in self._placed:
            size = stored_bytes(const)
            grain = PAGE if size >= LARGE else ALIGN
            self._placed[key] = start = -(-self._end // grain) * grain
            self._streams.append((start, content(const)))
            self._end = start + size
        return self._placed[key]

    @property
    def is_empty(self) -> bool:
        return not self._streams

    def write(self, file: BinaryIO) -> None:
        """Writes all tensors that were placed."""
        end = 0
        for start, stream in self._streams:
            file.write(bytes(start - end))
            stream.write(file)
            end = start + stream.size


class External(Protocol):
    """Whoever keeps the bytes of tensors outside a model."""

    def entries(self, const: Const, name: str) -> dict[str, object] | None: ...


def tensor(const: Const, name: str = "", file: External | None = None) -> Message:
    """A TensorProto."""
    message = Message()
    if const.shape:
        message.numbers(_DIMS, const.shape)
    message.number(_TYPE, const.dtype.onnx)
    if name:
        message.text(_NAME, name)
    if const.dtype is STRING:
        for cell in const.read().reshape(-1).tolist():
            message.blob(_STRINGS, _encoded(cell))
    elif file is not None and (entries := file.entries(const, name)) is not None:
        for key, value in entries.items():
            message.message(_EXTERNAL, entry(key, str(value)))
        message.number(_LOCATION, 1)
    else:
        _embedded(message, const)
    return message


def _embedded(message: Message, const: Const) -> None:
    stream = content(const)
    if stream.size <= SMALL:
        message.blob(_RAW, b"".join(stream.pieces()))
    else:
        message.stream(_RAW, stream)


def entry(key: str, value: str) -> Message:
    """A StringStringEntryProto."""
    message = Message()
    message.text(1, key)
    message.text(2, value)
    return message


def _encoded(cell: Any) -> bytes:
    return cell if isinstance(cell, bytes) else str(cell).encode()
