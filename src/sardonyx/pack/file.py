"""The file format of packs: a header, blobs, then two JSON sections, the index and the graph.

All numbers are little-endian. Every load validates the header and both sections by their checksums
(BLAKE2b). The index has SHA-256 checksums of the blobs, by blocks of the file, which `validate`
verifies once.
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
from sardonyx.pack.checksums import BLOCK, BlockDigest, BlockHasher, FileRange
from sardonyx.pack.codec import read_int, read_list, read_str, require
from sardonyx.pack.errors import InvalidPack, PackMismatch

MAGIC: Final = b"SARDPACK"
FORMAT: Final = 3
HEADER_BYTES: Final = 4096
PAGE: Final = 4096  # alignment of large blobs, whose pages are mapped
ALIGN: Final = 64  # alignment of other blobs and of sections: a cache line
LARGE: Final = 1 << 20  # bytes of a blob
_HEAD: Final = struct.Struct("<8sIIQ")  # magic, format, sections, bytes of the file
_SECTION: Final = struct.Struct("<QQ16s")  # offset, length, checksum
_WRITE_BYTES: Final = 1 << 22  # bytes per write
_SECTIONS: Final = 2


class Blob(NamedTuple):
    """A range of bytes in a pack."""

    offset: int
    length: int


def checksum(data: Any) -> bytes:
    """Return the 16-byte checksum of a header or section."""
    return blake2b(data, digest_size=16).digest()


class PackWriter:
    """Writes blobs one after the other, then the sections, and the header last.

    Until then the header is zeros, so that a partial file is never taken for a pack.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._end = HEADER_BYTES  # offset of the next byte
        self._hasher = BlockHasher()
        self.blobs: list[Blob] = []
        self.id_ = ""  # checksum of the header, once it is written
        file.write(bytes(HEADER_BYTES))

    def blob(self, length: int, buffers: Iterable[Any]) -> int:
        """Write a blob of `length` bytes and return its number."""
        start = _aligned(self._end, PAGE if length >= LARGE else ALIGN)
        self._put(bytes(start - self._end))  # padding is hashed too: blocks have no holes
        for buffer in buffers:
            for i in range(0, len(buffer), _WRITE_BYTES):
                self._put(buffer[i : i + _WRITE_BYTES])
        assert self._end == start + length, f"{self._end - start} bytes for a blob of {length}"
        self.blobs.append(Blob(start, length))
        return len(self.blobs) - 1

    def block_digests(self) -> list[str]:
        """Return the checksums of all blobs, by blocks of the file; no blob may follow."""
        self._put(bytes(_aligned(self._end, ALIGN) - self._end))
        return self._hasher.finish()

    def _put(self, data: Any) -> None:
        self._file.write(data)
        self._hasher.add(data)
        self._end += len(data)

    def finish(self, *sections: Any) -> int:
        """Write the sections and the header; return the size of the file."""
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
    """Round up to a multiple of `grain`."""
    return -(-offset // grain) * grain


class PackFile:
    """A mapped pack; header and sections are validated, and no blobs overlap."""

    def __init__(self, path: str, copies: bool = False) -> None:
        self.source: Source = _mapped(path, copies)
        data = self.source.data
        spans = _sections(data)
        self.index, self._graph = (data[start : start + length] for start, length in spans)
        document = parse(self.index, "index")
        require(type(document) is dict, "the index is not an object")
        self.document: dict[str, Any] = document
        self.blobs = _blobs(document.get("blobs"), spans, data.nbytes)
        self.blocks = self._blocks(spans[0][0])
        end = _HEAD.size + _SECTIONS * _SECTION.size
        # Identifies all bytes: the header has checksums of the sections, the index those of blobs.
        self.id_: str = checksum(data[:end]).hex()

    def graph(self) -> Any:
        """Return the JSON document of the graph."""
        return parse(self._graph, "graph")

    def blob(self, index: Any) -> Blob:
        """Return a blob by its number in the document."""
        return self.blobs[read_int(index, 0, len(self.blobs))]

    def _blocks(self, end: int) -> list[BlockDigest]:
        """Return the blocks of all bytes before the sections, with the checksums of the index."""
        starts = range(HEADER_BYTES, end, BLOCK)
        digests = read_list(self.document.get("blocks"), len(starts))
        return [
            BlockDigest(FileRange(self.source, at, min(BLOCK, end - at)), read_str(digest))
            for at, digest in zip(starts, digests, strict=True)
        ]


def _mapped(path: str, copies: bool) -> Source:
    try:
        return map_file(path, path, copies)
    except SardonyxError as error:
        raise InvalidPack(error.what) from None


def _sections(data: memoryview) -> list[tuple[int, int]]:
    """Validate the header and the sections; return offset and length of each section."""
    require(data.nbytes >= HEADER_BYTES, f"it has {data.nbytes} bytes, which is too short")
    magic, version, n_sections, size = _HEAD.unpack_from(data)
    require(magic == MAGIC, "it is not a pack")
    if version != FORMAT:  # before anything that the format defines is read
        raise PackMismatch(f"it has format {version}; this version reads {FORMAT}")
    require(n_sections == _SECTIONS, f"it has {n_sections} sections")
    end = _HEAD.size + n_sections * _SECTION.size
    require(bytes(data[end : end + 16]) == checksum(data[:end]), "its header is damaged")
    require(size == data.nbytes, f"it has {data.nbytes} bytes of {size}: it is cut short")
    spans = []
    for i, name in enumerate(("index", "graph")):
        start, length, expected = _SECTION.unpack_from(data, _HEAD.size + i * _SECTION.size)
        require(
            HEADER_BYTES <= start <= size and length <= size - start,
            f"its {name} is outside of the file",
        )
        require(checksum(data[start : start + length]) == expected, f"its {name} is damaged")
        spans.append((start, length))
    return spans


def parse(data: memoryview, name: str) -> Any:
    """Parse the JSON of a section."""
    try:
        return json.loads(bytes(data), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidPack(f"its {name} is not readable: {error}") from None


def _no_constant(name: str) -> None:
    """Reject NaN and Infinity, which JSON does not have; `codec` writes them as lists."""
    raise ValueError(f"{name} is not a number")


def _blobs(listed: Any, sections: list[tuple[int, int]], size: int) -> list[Blob]:
    """Return the blobs; no byte is shared with another blob, a section or the header."""
    blobs = []
    for item in read_list(listed):
        offset, length = read_list(item, 2)
        blobs.append(Blob(read_int(offset, HEADER_BYTES, size + 1), read_int(length, 0, size + 1)))
        require(offset % ALIGN == 0, f"a blob begins at {offset}")
    spans = sorted([(b.offset, b.length) for b in blobs] + sections)
    # Sorted by offset, each must begin after the one before has ended.
    end = HEADER_BYTES
    for offset, length in spans:
        require(
            offset >= end and length <= size - offset,
            f"the blob at {offset} overlaps the header, a section or another blob, "
            "or exceeds the file",
        )
        end = offset + length
    return blobs
