"""Reads weights in pieces that fit a buffer: by descriptor, in the order in which they lie."""

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

PAGE: Final = 4096  # bytes; what reads past the page cache begin and end at multiples of

_GAP: Final = 64 * 1024  # bytes between weights that are read along, rather than in another call
_TRIAL: Final = 128 << 20  # bytes that each way of reading is tried with
_GAIN: Final = 1.25  # by which reading past the page cache must be faster: it fills no cache
_AHEAD: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class Part(NamedTuple):
    """A stretch of a weight in a piece."""

    weight: int  # its number
    begin: int  # in the weight's bytes
    at: int  # in the piece
    size_bytes: int


class _Trial:
    """Which way of reading is faster: each has a stretch of the file for itself, by all threads."""

    def __init__(self) -> None:
        self.goes_past = False  # the way that is tried, and in the end the faster one
        self._began = 0.0
        self._size_bytes = 0
        self._rates: list[float] = []
        self._lock = Lock()

    def begin(self) -> None:
        """Some bytes are about to be read."""
        with self._lock:
            if not self._began:
                self._began = time.perf_counter()

    def end(self, size_bytes: int, went_past: bool) -> None:
        """They were read."""
        with self._lock:
            if len(self._rates) == 2 or went_past is not self.goes_past:
                return
            self._size_bytes += size_bytes
            if self._size_bytes < _TRIAL:
                return
            now = time.perf_counter()
            self._rates.append(self._size_bytes / max(now - self._began, 1e-9))
            self._began, self._size_bytes, self.goes_past = now, 0, True
            if len(self._rates) == 2:
                self.goes_past = self._rates[1] > _GAIN * self._rates[0]


class OpenFile:
    """A file of weights, read from many threads. What is cached is copied from there.

    For the rest there are two ways: through the page cache, or past it. Both are tried.
    """

    def __init__(self, file: File, descriptor: int) -> None:
        self.file: Final = file
        self._descriptor = descriptor
        self._can_ask = True  # whether the system tells what is cached
        self._trial = _Trial()
        self._direct: int | None  # another descriptor, for reads past the page cache
        try:
            self._direct = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_DIRECT)
        except OSError:  # a file system without such reads
            self._direct = None
        self._can_go_past = self._direct is not None

    def close(self) -> None:
        """Closes the descriptors."""
        os.close(self._descriptor)
        if self._direct is not None:
            os.close(self._direct)

    @property
    def size_bytes(self) -> int:
        """Its size by now."""
        return os.fstat(self._descriptor).st_size

    def check(self) -> None:
        """The file must be what it was when the model was opened."""
        now = File.of(self.file.path, os.fstat(self._descriptor))
        if now != self.file:
            what = "size" if now.size_bytes != self.file.size_bytes else "time"
            raise Fail(
                f"{self.file.path} changed since the model was opened: it has another {what}",
                hint="load the model again",
            )

    def read(self, into: memoryview, begin: int, size_bytes: int) -> int:
        """Fills `into` from a place in the file; fewer bytes than asked for where it ends.

        `begin` is a multiple of PAGE, and `into` holds whole pages.
        """
        done = self._read_cached(into[:size_bytes], begin)
        if done < size_bytes:
            self._trial.begin()
        while done < size_bytes:
            goes_past = self._can_ask and self._can_go_past and self._trial.goes_past
            if goes_past:
                count = self._read_past(into, begin, done, size_bytes)
            else:
                count = self._read_through(into, begin, done, size_bytes)
            if count <= 0:
                break
            self._trial.end(count, goes_past)
            done += count
        return min(done, size_bytes)

    def _read_cached(self, into: memoryview, begin: int) -> int:
        """Bytes that can be had without waiting, from the page cache."""
        if not self._can_ask:
            return 0
        try:
            return os.preadv(self._descriptor, [into], begin, os.RWF_NOWAIT)
        except BlockingIOError:
            return 0
        except OSError:
            self._can_ask = False
            return 0

    def _read_through(self, into: memoryview, begin: int, done: int, size_bytes: int) -> int:
        if self._can_ask:  # all at once: a read alone asks for little more than the next pages
            advice = os.POSIX_FADV_WILLNEED
            os.posix_fadvise(self._descriptor, begin + done, size_bytes - done, advice)
        return os.preadv(self._descriptor, [into[done:size_bytes]], begin + done)

    def _read_past(self, into: memoryview, begin: int, done: int, size_bytes: int) -> int:
        assert self._direct is not None
        start, end = done // PAGE * PAGE, -(-size_bytes // PAGE) * PAGE
        try:
            return start + os.preadv(self._direct, [into[start:end]], begin + start) - done
        except OSError:  # other rules of alignment
            self._can_go_past = False
            return self._read_through(into, begin, done, size_bytes)


def reopened(file: File) -> OpenFile | None:
    """A mapped file by a descriptor; None if its path has come to lead elsewhere."""
    try:
        descriptor = os.open(file.path, _AHEAD)
    except OSError:
        return None
    status = os.fstat(descriptor)
    if (status.st_dev, status.st_ino) != (file.device, file.inode):
        os.close(descriptor)
        return None
    return OpenFile(file, descriptor)


@frozen
class FilePiece:
    """A stretch of a file, with weights in it."""

    file: OpenFile
    begin: int
    size_bytes: int
    parts: tuple[Part, ...]
    references: Sequence[WeightReference]

    def read(self, into: memoryview) -> None:
        """Fills a buffer."""
        path = self.file.file.path
        try:
            done = self.file.read(into, self.begin, self.size_bytes)
        except OSError as error:
            name = self.references[self.parts[0].weight].name
            raise Fail(
                f"{path} cannot be read at {self.begin}: {error.strerror}", weight=name
            ) from None
        for part in self.parts:
            if part.at + part.size_bytes > done:
                reference = self.references[part.weight]
                end = reference.offset + reference.length
                missing = min(end - self.file.size_bytes, reference.length)
                raise Fail(
                    f"{path} is too short: it ends {missing} bytes before the end of "
                    f"{reference.name!r}, {reference.length} bytes at {reference.offset}",
                    weight=reference.name,
                    hint="load the model again; the file became shorter since it was opened",
                )


class _Buffer:
    """A weight in memory, there as long as parts of it are to be read."""

    def __init__(self, reference: WeightReference, n_parts: int) -> None:
        self._reference = reference
        self._left = n_parts
        self._view: memoryview | None = None
        self._lock = Lock()

    def read(self, part: Part, into: memoryview) -> None:
        with self._lock:
            if self._view is None:
                self._view = self._reference.buffer()
            view = self._view
        there = np.frombuffer(into, np.uint8, part.size_bytes, part.at)
        there[...] = np.frombuffer(view, np.uint8, part.size_bytes, part.begin)
        self._reference.release(part.begin, part.size_bytes)
        with self._lock:
            self._left -= 1
            if not self._left:
                self._view = None


@frozen
class MemoryPiece:
    """Weights in memory, or stretches of them, one after the other."""

    parts: tuple[Part, ...]
    buffers: dict[int, _Buffer]

    @property
    def size_bytes(self) -> int:
        """What it takes of a buffer."""
        return self.parts[-1].at + self.parts[-1].size_bytes

    def read(self, into: memoryview) -> None:
        """Fills a buffer."""
        for part in self.parts:
            self.buffers[part.weight].read(part, into)


class Reading:
    """Weights that are being read: `pieces` hold all their bytes, each `capacity` at most.

    They come in groups, one after the other; within a group, in the order in which they lie.
    """

    def __init__(
        self,
        references: Sequence[WeightReference],
        capacity: int,
        groups: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self._references = references
        self._files: dict[File, OpenFile | None] = {}
        self.pieces: list[FilePiece | MemoryPiece] = []
        try:
            for group in [range(len(references))] if groups is None else groups:
                self.pieces.extend(self._cut(group, capacity))
        except BaseException:
            self.close()
            raise

    def _cut(self, group: Sequence[int], capacity: int) -> Iterator[FilePiece | MemoryPiece]:
        placed: defaultdict[OpenFile | None, list[int]] = defaultdict(list)
        for weight in group:
            placed[self._open(self._references[weight])].append(weight)
        for file, weights in placed.items():
            if file is None:
                yield from self._cut_memory(weights, capacity)
            else:
                yield from self._cut_file(file, weights, capacity)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check(self) -> None:
        """The files must not have changed while they were read."""
        for file in filter(None, self._files.values()):
            file.check()

    def close(self) -> None:
        """Closes all files."""
        for file in filter(None, self._files.values()):
            file.close()
        self._files.clear()

    def _open(self, reference: WeightReference) -> OpenFile | None:
        """The file of a weight; None for one that is read from memory."""
        file = reference.file
        if file is None:
            return None
        if file not in self._files:
            opened = self._files[file] = reopened(file)
            if opened is not None:
                opened.check()
        return self._files[file]

    def _cut_file(self, file: OpenFile, weights: list[int], capacity: int) -> Iterator[FilePiece]:
        parts: list[Part] = []
        begin = end = 0

        def piece() -> FilePiece:
            return FilePiece(file, begin, end - begin, tuple(parts), self._references)

        for weight in sorted(weights, key=lambda i: self._references[i].offset):
            first, length, done = (
                self._references[weight].offset,
                self._references[weight].length,
                0,
            )
            while done < length:
                at = first + done
                if parts and (at < begin or at > end + _GAP or at >= begin + capacity):
                    yield piece()
                    parts = []
                if not parts:
                    begin = end = at // PAGE * PAGE
                count = min(length - done, begin + capacity - at)
                parts.append(Part(weight, done, at - begin, count))
                end = max(end, at + count)
                done += count
        if parts:
            yield piece()

    def _cut_memory(self, weights: list[int], capacity: int) -> Iterator[MemoryPiece]:
        buffers = {}
        rows: list[list[Part]] = [[]]
        at = 0
        for weight in weights:
            length, done, n_parts = self._references[weight].length, 0, 0
            while done < length:
                if at == capacity:
                    rows.append([])
                    at = 0
                count = min(length - done, capacity - at)
                rows[-1].append(Part(weight, done, at, count))
                done, at, n_parts = done + count, at + count, n_parts + 1
            buffers[weight] = _Buffer(self._references[weight], n_parts)
        yield from (MemoryPiece(tuple(row), buffers) for row in rows if row)
