"""Digests of weights and blobs: SHA-256 of blocks, as many at once as there are cores.

Of the digests in hashlib it is the fastest where CPUs have instructions for it, which most have.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from typing import Any, Final, NamedTuple

from sardonyx.graph.const import Source

BLOCK: Final = 32 << 20  # bytes of a digest: small enough that all cores have some
_GAP: Final = 4096  # bytes between weights that belong to one digest
_ALONE: Final = 4 << 20  # bytes that are not worth threads
_THREADS: Final = 16
Count = Callable[[int], None]  # told of bytes that are done; may raise to end the work


class Place(NamedTuple):
    """Bytes in a file."""

    source: Source
    start: int
    length: int


class Block(NamedTuple):
    """Bytes in a file, and the digest that they had."""

    place: Place
    sum_: str


def cut(places: Iterable[Place]) -> list[Place]:
    """The same bytes in blocks: each once, file by file, in the order in which they lie."""
    runs: dict[int, tuple[Source, list[list[int]]]] = {}
    for source, start, length in sorted(places, key=lambda p: p.start):
        ends = runs.setdefault(id(source), (source, []))[1]
        if ends and start <= ends[-1][1] + _GAP:
            ends[-1][1] = max(ends[-1][1], start + length)
        elif length:
            ends.append([start, start + length])
    return [
        Place(source, at, min(BLOCK, end - at))
        for source, ends in runs.values()
        for start, end in ends
        for at in range(start, end, BLOCK)
    ]


def sums(places: Sequence[Place], count: Count) -> list[str]:
    """The digest of each place."""
    found = dict(_in_threads(places, count))
    return [found[i] for i in range(len(places))]


def first_other(blocks: Sequence[Block], count: Count) -> Place | None:
    """A place whose bytes have changed."""
    with closing(_in_threads([b.place for b in blocks], count)) as made:
        for i, sum_ in made:
            if sum_ != blocks[i].sum_:
                return blocks[i].place
    return None


class Running:
    """Digests of what is written, block by block."""

    def __init__(self) -> None:
        from hashlib import sha256

        self._new = sha256
        self._sum = sha256()
        self._room = BLOCK
        self._done: list[str] = []

    def add(self, data: Any) -> None:
        """More bytes."""
        view = memoryview(data)
        while len(view):
            part = view[: self._room]
            self._sum.update(part)
            self._room -= len(part)
            view = view[len(part) :]
            if not self._room:
                self._next()

    def finish(self) -> list[str]:
        """The digests of all blocks, the last of which may be shorter."""
        if self._room < BLOCK:
            self._next()
        return self._done

    def _next(self) -> None:
        self._done.append(self._sum.hexdigest())
        self._sum, self._room = self._new(), BLOCK


def _sum(place: Place) -> str:
    """Reads bytes once: pages of mapped files are let go of behind it."""
    from hashlib import sha256  # OpenSSL's: 3 ms, which a start that has nothing to check saves

    source, start, length = place
    source.fetch(start, length)
    try:
        return sha256(source.data[start : start + length]).hexdigest()
    finally:
        source.advise(mmap.MADV_DONTNEED, start, length)


def _in_threads(places: Sequence[Place], count: Count) -> Generator[tuple[int, str], None, None]:
    """The number of each place and its digest, in the order in which they are done."""
    n_threads = min(len(places), len(os.sched_getaffinity(0)), _THREADS)
    if n_threads < 2 or sum(p.length for p in places) < _ALONE:
        for i, place in enumerate(places):
            yield i, _sum(place)
            count(place.length)
        return
    from concurrent.futures import ThreadPoolExecutor, as_completed

    with ThreadPoolExecutor(n_threads) as pool:
        waiting = {pool.submit(_sum, place): i for i, place in enumerate(places)}
        try:
            for done in as_completed(waiting):
                i = waiting[done]
                yield i, done.result()
                count(places[i].length)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
