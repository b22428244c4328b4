"""Reads weights from their files in chunks that fit a staging buffer, in file order.

Sequential reads by descriptor, from several threads: reading through a mapping faults page by page.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Self

import numpy as np

from sardonyx.base.locks import Lock
from sardonyx.base.records import frozen
from sardonyx.errors import Fail
from sardonyx.graph.const import File
from sardonyx.weights.loading import WeightReference

PAGE: Final = 4096  # bytes: O_DIRECT reads begin and end at multiples of it

_GAP: Final = 64 * 1024  # bytes between weights; reading smaller gaps costs less than a call
_TRIAL: Final = 128 << 20  # bytes by which the rate of each way of reading is measured
# Direct reads must be faster by this factor: they leave nothing in the page cache for later loads.
_GAIN: Final = 1.25
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class WeightRange(NamedTuple):
    """A range of a weight's bytes in a chunk."""

    weight: int  # index in the list of references
    weight_offset: int
    chunk_offset: int
    size_bytes: int


class _Trial:
    """Measures whether reads through the page cache or direct reads (O_DIRECT) are faster.

    First `_TRIAL` bytes are read through the cache, by all threads, then as many directly.
    """

    def __init__(self) -> None:
        self.is_direct = False  # the way being measured; once both are, the faster one
        self._began = 0.0
        self._size_bytes = 0
        self._rates: list[float] = []
        self._lock = Lock()

    def begin(self) -> None:
        """Start the clock, unless it runs."""
        with self._lock:
            if not self._began:
                self._began = time.perf_counter()

    def end(self, size_bytes: int, was_direct: bool) -> None:
        """Count bytes that were read."""
        with self._lock:
            # A read that began before the switch says nothing of the way measured now.
            if len(self._rates) == 2 or was_direct is not self.is_direct:
                return
            self._size_bytes += size_bytes
            if self._size_bytes < _TRIAL:
                return
            now = time.perf_counter()
            self._rates.append(self._size_bytes / max(now - self._began, 1e-9))
            self._began, self._size_bytes, self.is_direct = now, 0, True
            if len(self._rates) == 2:
                self.is_direct = self._rates[1] > _GAIN * self._rates[0]


class OpenFile:
    """A file of weights. Thread-safe.

    Bytes in the page cache are copied from it. The rest is read through the cache or directly,
    whichever is measured to be faster.
    """

    def __init__(self, file: File, descriptor: int) -> None:
        self.file: Final = file
        self._descriptor = descriptor
        self._has_nowait = True  # the file system supports RWF_NOWAIT
        self._trial = _Trial()
        self._direct: int | None  # a second descriptor, with O_DIRECT
        try:
            self._direct = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_DIRECT)
        except OSError:  # the file system has no direct reads
            self._direct = None
        self._can_read_direct = self._direct is not None

    def close(self) -> None:
        """Closes the descriptors."""
        os.close(self._descriptor)
        if self._direct is not None:
            os.close(self._direct)

    @property
    def size_bytes(self) -> int:
        """Its current size."""
        return os.fstat(self._descriptor).st_size

    def check(self) -> None:
        """Raise if the file changed since the model was opened, by its size and times."""
        now = File.of(self.file.path, os.fstat(self._descriptor))
        if now != self.file:
            what = "size" if now.size_bytes != self.file.size_bytes else "time"
            raise Fail(
                f"{self.file.path} changed since the model was opened: it has another {what}",
                hint="load the model again",
            )

    def read(self, into: memoryview, begin: int, size_bytes: int) -> int:
        """Read into a buffer from offset `begin`; return the bytes read, fewer at the file's end.

        `begin` is a multiple of PAGE, and `into` holds whole pages.
        """
        done = self._read_cached(into[:size_bytes], begin)
        if done < size_bytes:
            self._trial.begin()
        while done < size_bytes:
            is_direct = self._has_nowait and self._can_read_direct and self._trial.is_direct
            if is_direct:
                count = self._read_direct(into, begin, done, size_bytes)
            else:
                count = self._read_buffered(into, begin, done, size_bytes)
            if count <= 0:
                break
            self._trial.end(count, is_direct)
            done += count
        return min(done, size_bytes)

    def _read_cached(self, into: memoryview, begin: int) -> int:
        """Read what is in the page cache, without waiting for the disk."""
        if not self._has_nowait:
            return 0
        try:
            return os.preadv(self._descriptor, [into], begin, os.RWF_NOWAIT)
        except BlockingIOError:
            return 0
        except OSError:
            self._has_nowait = False
            return 0

    def _read_buffered(self, into: memoryview, begin: int, done: int, size_bytes: int) -> int:
        if self._has_nowait:
            # The whole range at once: the kernel's own readahead covers only the next pages.
            advice = os.POSIX_FADV_WILLNEED
            os.posix_fadvise(self._descriptor, begin + done, size_bytes - done, advice)
        return os.preadv(self._descriptor, [into[done:size_bytes]], begin + done)

    def _read_direct(self, into: memoryview, begin: int, done: int, size_bytes: int) -> int:
        assert self._direct is not None
        start, end = done // PAGE * PAGE, -(-size_bytes // PAGE) * PAGE
        try:
            return start + os.preadv(self._direct, [into[start:end]], begin + start) - done
        except OSError:  # the device requires another alignment
            self._can_read_direct = False
            return self._read_buffered(into, begin, done, size_bytes)


def reopened(file: File) -> OpenFile | None:
    """Open a mapped file again by its path; return None if another file is there now."""
    try:
        descriptor = os.open(file.path, _FLAGS)
    except OSError:
        return None
    status = os.fstat(descriptor)
    if (status.st_dev, status.st_ino) != (file.device, file.inode):
        os.close(descriptor)
        return None
    return OpenFile(file, descriptor)


@frozen
class FileChunk:
    """A range of a file that is read at once, and the weights in it."""

    file: OpenFile
    begin: int
    size_bytes: int
    ranges: tuple[WeightRange, ...]
    references: Sequence[WeightReference]

    def read(self, into: memoryview) -> None:
        """Read the chunk into a buffer."""
        path = self.file.file.path
        try:
            done = self.file.read(into, self.begin, self.size_bytes)
        except OSError as error:
            name = self.references[self.ranges[0].weight].name
            raise Fail(
                f"{path} cannot be read at {self.begin}: {error.strerror}", weight=name
            ) from None
        for each in self.ranges:
            if each.chunk_offset + each.size_bytes > done:
                reference = self.references[each.weight]
                end = reference.offset + reference.length
                missing = min(end - self.file.size_bytes, reference.length)
                raise Fail(
                    f"{path} is too short: it ends {missing} bytes before the end of "
                    f"{reference.name!r}, {reference.length} bytes at {reference.offset}",
                    weight=reference.name,
                    hint="load the model again; the file became shorter since it was opened",
                )


class _MemorySource:
    """A weight in memory; its view is dropped after the last of its ranges was copied."""

    def __init__(self, reference: WeightReference, n_ranges: int) -> None:
        self._reference = reference
        self._left = n_ranges
        self._view: memoryview | None = None
        self._lock = Lock()

    def read(self, part: WeightRange, into: memoryview) -> None:
        # The lock is held while a computed weight is evaluated: it is evaluated once.
        with self._lock:
            if self._view is None:
                self._view = self._reference.buffer()
            view = self._view
        target = np.frombuffer(into, np.uint8, part.size_bytes, part.chunk_offset)
        target[...] = np.frombuffer(view, np.uint8, part.size_bytes, part.weight_offset)
        self._reference.release(part.weight_offset, part.size_bytes)
        with self._lock:
            self._left -= 1
            if not self._left:
                self._view = None


@frozen
class MemoryChunk:
    """Weights in memory, or ranges of them, back to back."""

    ranges: tuple[WeightRange, ...]
    sources: dict[int, _MemorySource]

    @property
    def size_bytes(self) -> int:
        """The bytes of a buffer that it fills."""
        return self.ranges[-1].chunk_offset + self.ranges[-1].size_bytes

    def read(self, into: memoryview) -> None:
        """Copy the chunk into a buffer."""
        for each in self.ranges:
            self.sources[each.weight].read(each, into)


class ChunkedReader:
    """Splits weights into `chunks` of at most `capacity` bytes, which threads read independently.

    Groups are read one after the other, the weights of a group in file order.
    """

    def __init__(
        self,
        references: Sequence[WeightReference],
        capacity: int,
        groups: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self._references = references
        self._files: dict[File, OpenFile | None] = {}
        self.chunks: list[FileChunk | MemoryChunk] = []
        try:
            for group in [range(len(references))] if groups is None else groups:
                self.chunks.extend(self._split(group, capacity))
        except BaseException:
            self.close()
            raise

    def _split(self, group: Sequence[int], capacity: int) -> Iterator[FileChunk | MemoryChunk]:
        placed: defaultdict[OpenFile | None, list[int]] = defaultdict(list)
        for weight in group:
            placed[self._open(self._references[weight])].append(weight)
        for file, weights in placed.items():
            if file is None:
                yield from self._split_memory(weights, capacity)
            else:
                yield from self._split_file(file, weights, capacity)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check(self) -> None:
        """Raise if a file changed while it was read."""
        for file in filter(None, self._files.values()):
            file.check()

    def close(self) -> None:
        """Close all files."""
        for file in filter(None, self._files.values()):
            file.close()
        self._files.clear()

    def _open(self, reference: WeightReference) -> OpenFile | None:
        """Return the open file of a weight; None: it is read from memory."""
        file = reference.file
        if file is None:
            return None
        if file not in self._files:
            opened = self._files[file] = reopened(file)
            if opened is not None:
                opened.check()
        return self._files[file]

    def _split_file(self, file: OpenFile, weights: list[int], capacity: int) -> Iterator[FileChunk]:
        ranges: list[WeightRange] = []
        begin = end = 0  # of the chunk, in the file

        def chunk() -> FileChunk:
            return FileChunk(file, begin, end - begin, tuple(ranges), self._references)

        for weight in sorted(weights, key=lambda i: self._references[i].offset):
            reference, done = self._references[weight], 0
            while done < reference.length:
                at = reference.offset + done
                if ranges and (at < begin or at > end + _GAP or at >= begin + capacity):
                    yield chunk()
                    ranges = []
                if not ranges:
                    begin = end = at // PAGE * PAGE
                count = min(reference.length - done, begin + capacity - at)
                ranges.append(WeightRange(weight, done, at - begin, count))
                end = max(end, at + count)  # weights may overlap in the file
                done += count
        if ranges:
            yield chunk()

    def _split_memory(self, weights: list[int], capacity: int) -> Iterator[MemoryChunk]:
        sources = {}
        chunks: list[list[WeightRange]] = [[]]
        at = 0
        for weight in weights:
            length, done, n_ranges = self._references[weight].length, 0, 0
            while done < length:
                if at == capacity:
                    chunks.append([])
                    at = 0
                count = min(length - done, capacity - at)
                chunks[-1].append(WeightRange(weight, done, at, count))
                done, at, n_ranges = done + count, at + count, n_ranges + 1
            sources[weight] = _MemorySource(self._references[weight], n_ranges)
        yield from (MemoryChunk(tuple(ranges), sources) for ranges in chunks if ranges)
