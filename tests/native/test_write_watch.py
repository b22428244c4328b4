"""Watches of memory: which bytes they stand for in a digest, and several of one memory."""

from __future__ import annotations

import threading

import numpy as np

from sardonyx._native import MemoryDigest

CALLS = 4  # of a digest until its memory is watched


def test_a_watch_covers_the_chunks_of_its_own_span() -> None:
    """Also where another span begins at the same address, and what lies between them is not."""
    memory, between = np.zeros(2**21, np.uint8), np.zeros(1000, np.uint8)
    address = memory.ctypes.data
    spans = [(address, 2**15), (between.ctypes.data, between.nbytes), (address, memory.nbytes)]
    digest = MemoryDigest(spans)
    before = [digest.compute(1) for _ in range(CALLS)][-1]
    for array, at in ((between, 5), (memory, 2**13), (memory, 2**20), (memory, -1)):
        array[at] = 9
        after = digest.compute(1)
        assert after != before
        assert after == MemoryDigest(spans).compute(1)
        before = after


def test_threads_share_watches_that_others_drop() -> None:
    """Spans of one beginning and of different lengths cannot be watched at once."""
    memory = np.zeros(2**18, np.uint8)

    def digest_again(length: int) -> None:
        for _ in range(20_000):
            digest = MemoryDigest([(memory.ctypes.data, length)])
            for _ in range(CALLS):
                digest.compute(1)

    threads = [
        threading.Thread(target=digest_again, args=(length,), daemon=True)
        for length in (2**16, 2**17)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
