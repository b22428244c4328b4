"""The file: a header with a table of sections, blobs, and behind them the index and the graph.

Everything is little-endian. The header and both sections have checksums, which every load looks at.
Digests of the blobs stand in the index, by blocks of the file; they are compared once.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from typing import Any, BinaryIO, Final, NamedTuple

from sardonyx.base.digest import blake2b
from sardonyx.errors import SardonyxError
from sardonyx.graph.const import Source
from sardonyx.load.source import map_file
from sardonyx.pack.checksums import BLOCK, Block, Place, Running
from sardonyx.pack.codec import items, need, number, text
from sardonyx.pack.errors import Broken, Other

MAGIC: Final = b"SARDPACK"
FORMAT: Final = 2
PAGE: Final = 4096  # the header's place, and where large blobs begin
ALIGN: Final = 64
LARGE: Final = 1 << 20
_HEAD: Final = struct.Struct("<8sIIQ")  # magic, format, sections, bytes of the file
_SECTION: Final = struct.Struct("<QQ16s")  # offset, length, checksum
_PIECE: Final = 1 << 22  # bytes that are written or checked at once
_SECTIONS: Final = 2


class Blob(NamedTuple):
    """Bytes in a pack."""

    offset: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + self.length


def checksum(data: Any) -> bytes:
    """What is kept to know bytes again."""
    return blake2b(data, digest_size=16).digest()


class Writer:
    """Writes blobs one after the other, then the sections, and the header last."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._end = PAGE
        self._sums = Running()
        self.blobs: list[Blob] = []
        self.id_ = ""  # of the file, once it is finished
        file.write(bytes(PAGE))

    def blob(self, length: int, pieces: Iterable[Any]) -> int:
        """The number of a new blob."""
        start = _aligned(self._end, PAGE if length >= LARGE else ALIGN)
        self._put(bytes(start - self._end))
        for piece in pieces:
            for i in range(0, len(piece), _PIECE):
                self._put(piece[i : i + _PIECE])
        assert self._end == start + length, f"{self._end - start} bytes for a blob of {length}"
        self.blobs.append(Blob(start, length))
        return len(self.blobs) - 1

    def sums(self) -> list[str]:
        """The digests of all blobs, after the last of them."""
        self._put(bytes(_aligned(self._end, ALIGN) - self._end))
        return self._sums.finish()

    def _put(self, data: Any) -> None:
        self._file.write(data)
        self._sums.add(data)
        self._end += len(data)

    def finish(self, *sections: Any) -> int:
        """Writes the sections and the header; returns the size of the file."""
        table = b""
        for section in sections:
            data = json.dumps(section, allow_nan=False, separators=(",", ":")).encode()
            start = _aligned(self._end, ALIGN)
            self._file.write(bytes(start - self._end))
            self._file.write(data)
            table += _SECTION.pack(start, len(data), checksum(data))
            self._end = start + len(data)
        header = _HEAD.pack(MAGIC, FORMAT, len(sections), self._end) + table
        self._file.seek(0)
        self._file.write(header + checksum(header))
        self.id_ = checksum(header).hex()
        self._file.seek(0, 2)
        return self._end


def _aligned(offset: int, grain: int) -> int:
    return -(-offset // grain) * grain


class PackFile:
    """A pack, mapped: its header and sections are sound, and its blobs lie apart in the file."""

    def __init__(self, path: str, copies: bool = False) -> None:
        self.source: Source = _mapped(path, copies)
        data = self.source.data
        spans = _table(data)
        self.index, self._graph = (data[start : start + length] for start, length in spans)
        document = parse(self.index, "index")
        need(type(document) is dict, "the index is no table")
        self.document: dict[str, Any] = document
        self.blobs = _blobs(document.get("blobs"), spans, data.nbytes)
        self.blocks = self._blocks(spans[0][0])
        end = _HEAD.size + _SECTIONS * _SECTION.size
        self.id_: str = checksum(data[:end]).hex()  # of all that it holds: the header has digests

    def graph(self) -> Any:
        """The graph's document."""
        return parse(self._graph, "graph")

    def blob(self, index: Any) -> Blob:
        """A blob by its number."""
        return self.blobs[number(index, 0, len(self.blobs))]

    def _blocks(self, end: int) -> list[Block]:
        """What lies before the sections, with the digests that it was written with."""
        starts = range(PAGE, end, BLOCK)
        listed = items(self.document.get("blocks"), len(starts))
        return [
            Block(Place(self.source, at, min(BLOCK, end - at)), text(sum_))
            for at, sum_ in zip(starts, listed, strict=True)
        ]


def _mapped(path: str, copies: bool) -> Source:
    try:
        return map_file(path, path, copies)
    except SardonyxError as error:
        raise Broken(error.what) from None


def _table(data: memoryview) -> list[tuple[int, int]]:
    """Offset and length of each section, all checksums compared."""
    need(data.nbytes >= PAGE, f"it has {data.nbytes} bytes, which is too short")
    magic, version, n_sections, size = _HEAD.unpack_from(data)
    need(magic == MAGIC, "it is no pack")
    if version != FORMAT:
        raise Other(f"it has format {version}, and {FORMAT} is read here")
    need(n_sections == _SECTIONS, f"it has {n_sections} sections")
    end = _HEAD.size + n_sections * _SECTION.size
    need(bytes(data[end : end + 16]) == checksum(data[:end]), "its header is damaged")
    need(size == data.nbytes, f"it has {data.nbytes} bytes of {size}: it is cut short")
    spans = []
    for i, name in enumerate(("index", "graph")):
        start, length, sum_ = _SECTION.unpack_from(data, _HEAD.size + i * _SECTION.size)
        need(PAGE <= start <= size and length <= size - start, f"its {name} lies outside")
        need(checksum(data[start : start + length]) == sum_, f"its {name} is damaged")
        spans.append((start, length))
    return spans


def parse(data: memoryview, name: str) -> Any:
    """A section's JSON."""
    try:
        return json.loads(bytes(data), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Broken(f"its {name} is not readable: {error}") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _blobs(listed: Any, sections: list[tuple[int, int]], size: int) -> list[Blob]:
    """The blobs, none of which shares a byte with another, a section or the header."""
    blobs = []
    for item in items(listed):
        offset, length = items(item, 2)
        blobs.append(Blob(number(offset, PAGE, size + 1), number(length, 0, size + 1)))
        need(offset % ALIGN == 0, f"a blob begins at {offset}")
    spans = sorted([(b.offset, b.length) for b in blobs] + sections)
    end = PAGE
    for offset, length in spans:
        need(offset >= end and length <= size - offset, f"a blob at {offset} lies where it cannot")
        end = offset + length
    return blobs
