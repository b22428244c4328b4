"""Checksums of weights and blobs: SHA-256 of blocks, hashed in parallel.

SHA-256 is the fastest digest of hashlib on CPUs with SHA instructions, which most have.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from typing import Any, Final, NamedTuple

from sardonyx.graph.const import Source

BLOCK: Final = 32 << 20  # bytes of a digest: small enough that all cores have work
_GAP: Final = 4096  # bytes between weights; smaller gaps are hashed along
_SERIAL_BYTES: Final = 4 << 20  # below it, starting threads costs more than hashing
_MAX_THREADS: Final = 16
Count = Callable[[int], None]  # receives bytes that were hashed; may raise to cancel


class FileRange(NamedTuple):
    """A range of bytes in a file."""

    source: Source
    start: int
    length: int


class BlockDigest(NamedTuple):
    """A range of bytes and the digest that it had when the pack was written."""

    range: FileRange
    digest: str


def split_blocks(ranges: Iterable[FileRange]) -> list[FileRange]:
    """Return the same bytes as blocks: file by file, ascending, each byte once.

    Ranges that overlap or nearly touch are merged before they are split.
    """
    merged: dict[int, tuple[Source, list[list[int]]]] = {}
    for source, start, length in sorted(ranges, key=lambda r: r.start):
        spans = merged.setdefault(id(source), (source, []))[1]
        if spans and start <= spans[-1][1] + _GAP:
            spans[-1][1] = max(spans[-1][1], start + length)
        elif length:
            spans.append([start, start + length])
    return [
        FileRange(source, at, min(BLOCK, end - at))
        for source, spans in merged.values()
        for start, end in spans
        for at in range(start, end, BLOCK)
    ]


def compute_digests(ranges: Sequence[FileRange], count: Count) -> list[str]:
    """Return the digest of each range."""
    digests = dict(_digests_as_completed(ranges, count))
    return [digests[i] for i in range(len(ranges))]


def first_mismatch(blocks: Sequence[BlockDigest], count: Count) -> FileRange | None:
    """Return a range whose bytes have changed, the first that is found; None if there is none."""
    with closing(_digests_as_completed([b.range for b in blocks], count)) as digests:
        for i, digest in digests:
            if digest != blocks[i].digest:
                return blocks[i].range
    return None


class BlockHasher:
    """Digests of a stream that is written, block by block."""

    def __init__(self) -> None:
        from hashlib import sha256

        self._new = sha256
        self._hash = sha256()
        self._left = BLOCK
        self._done: list[str] = []

    def add(self, data: Any) -> None:
        """Add bytes."""
        view = memoryview(data)
        while len(view):
            head = view[: self._left]
            self._hash.update(head)
            self._left -= len(head)
            view = view[len(head) :]
            if not self._left:
                self._end_block()

    def finish(self) -> list[str]:
        """Return the digests of all blocks; the last may be shorter."""
        if self._left < BLOCK:
            self._end_block()
        return self._done

    def _end_block(self) -> None:
        self._done.append(self._hash.hexdigest())
        self._hash, self._left = self._new(), BLOCK


def _digest(range_: FileRange) -> str:
    from hashlib import sha256  # loads OpenSSL, 3 ms: not for loads that verify nothing

    source, start, length = range_
    source.fetch(start, length)
    try:
        return sha256(source.data[start : start + length]).hexdigest()
    finally:  # hashing a file must not fill the memory with its pages
        source.advise(mmap.MADV_DONTNEED, start, length)


def _digests_as_completed(
    ranges: Sequence[FileRange], count: Count
) -> Generator[tuple[int, str], None, None]:
    """Yield the index and the digest of each range, in the order of completion."""
    n_threads = min(len(ranges), len(os.sched_getaffinity(0)), _MAX_THREADS)
    if n_threads < 2 or sum(r.length for r in ranges) < _SERIAL_BYTES:
        for i, range_ in enumerate(ranges):
            yield i, _digest(range_)
            count(range_.length)
        return
    from concurrent.futures import ThreadPoolExecutor, as_completed

    # hashlib releases the GIL.
    with ThreadPoolExecutor(n_threads) as pool:
        waiting = {pool.submit(_digest, range_): i for i, range_ in enumerate(ranges)}
        try:
            for future in as_completed(waiting):
                i = waiting[future]
                yield i, future.result()
                count(ranges[i].length)
        finally:  # after a mismatch or a cancellation the rest is not read
            pool.shutdown(wait=True, cancel_futures=True)
