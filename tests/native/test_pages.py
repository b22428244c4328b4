"""Pools that cache pages: blocks of any size from freed pages, and no more resident than needed."""

from __future__ import annotations

import gc
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import parser

import sardonyx
import sardonyx._native as native
from sardonyx.ort.config_keys import Keys
from tests.session.concurrently import run_concurrently

# One output block and no arena to speak of: a run allocates, and the end of its array frees.
NEG = '<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (float[N] y) { y = Neg(x) }'
HEADER = 64  # bytes before those of a block
SMALLEST = 33  # pages: blocks below 128 KiB are malloc's
PAGE = mmap.PAGESIZE


def session_of(text: str = NEG, **entries: str) -> sardonyx.InferenceSession:
    options = sardonyx.SessionOptions()
    options.intra_op_num_threads = 1
    for key, value in ({Keys.CACHE_PAGES: "1"} | entries).items():
        options.add_session_config_entry(key, value)
    return sardonyx.InferenceSession(parser.parse_model(text).SerializeToString(), options)


def pool_of(session: sardonyx.InferenceSession) -> native.BlockPool:
    return session._program.pool


@pytest.fixture(scope="module")
def session() -> sardonyx.InferenceSession:
    return session_of()


@pytest.fixture
def pool(session: sardonyx.InferenceSession) -> Iterator[native.BlockPool]:
    """The pool of the session; nothing is cached."""
    gc.collect()
    pool_of(session).release_cached()
    assert pool_of(session).cached_bytes == 0
    yield pool_of(session)
    pool_of(session).release_cached()


def allocate(session: sardonyx.InferenceSession, n_pages: int, value: float = 1) -> Any:
    """An array in a block of so many pages."""
    size = (n_pages * PAGE - HEADER) // 4
    return session.run(None, {"x": np.full(size, -value, np.float32)})[0]


def pages_of(array: Any) -> range:
    """The addresses of an array's block."""
    start = array.ctypes.data - HEADER
    return range(start, start + -(-(array.nbytes + HEADER) // PAGE) * PAGE)


def overlap(a: range, b: range) -> bool:
    return a.start < b.stop and b.start < a.stop


def resident_bytes() -> int:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) << 10


# A size in pages allocates a block; a negative number frees one of those alive.
STEPS = st.lists(st.integers(SMALLEST, 400) | st.integers(-30, -1), max_size=60)


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_any_order_of_requests(session: sardonyx.InferenceSession, steps: list[int]) -> None:
    """Blocks never overlap and keep their contents; what is resident is the most ever in use."""
    pool = pool_of(session)
    pool.release_cached()
    alive: list[tuple[float, Any]] = []
    peak = 0
    for number, step in enumerate(steps):
        if step > 0:
            made = allocate(session, step, number)
            assert not any(overlap(pages_of(made), pages_of(other)) for _, other in alive)
            alive.append((number, made))
            del made
        elif alive:
            value, array = alive.pop(step % len(alive))
            assert (array == value).all()
            array[:] = np.nan  # the next block there must not keep it
            del array
        in_use = sum(len(pages_of(array)) for _, array in alive)
        peak = max(peak, in_use)
        assert pool.cached_bytes == peak - in_use
        assert pool.live_blocks == len(alive)
    assert all((array == value).all() for value, array in alive)
    alive.clear()
    assert pool.cached_bytes == peak
    pool.release_cached()
    assert pool.cached_bytes == 0


# Blocks that are allocated, those freed of them, a request, and what stays cached (in pages).
REUSE = {
    "the same size": ((100,), (0,), 100, 0),
    "a smaller block": ((100,), (0,), 40, 60),
    "two neighbours": ((100, 50, 60), (0, 1), 150, 0),
    "three neighbours, in any order": ((40, 50, 60), (0, 2, 1), 145, 5),
    "the tightest of two": ((100, 40, 60), (0, 2), 60, 100),
    "new pages at the end, as many given back": ((100, 40, 60), (0, 2), 120, 40),
    "more than there is": ((100,), (0,), 300, 0),
}


@pytest.mark.parametrize("name", REUSE)
def test_freed_pages_serve_other_sizes(
    session: sardonyx.InferenceSession, pool: native.BlockPool, name: str
) -> None:
    sizes, freed, wanted, cached = REUSE[name]
    blocks: dict[int, Any] = {i: allocate(session, n, i) for i, n in enumerate(sizes)}
    for i in freed:
        del blocks[i]
    assert pool.cached_bytes == sum(sizes[i] for i in freed) * PAGE
    made = allocate(session, wanted, 77)
    assert pool.cached_bytes == cached * PAGE
    assert (made == 77).all()
    assert all((array == i).all() for i, array in blocks.items())


def test_released_pages_go_back_to_the_system(
    session: sardonyx.InferenceSession, pool: native.BlockPool
) -> None:
    size = 64 << 20
    held = allocate(session, size // PAGE)
    kept = allocate(session, SMALLEST, 5)
    del held
    assert pool.cached_bytes == size
    before = resident_bytes()
    pool.release_cached()
    assert pool.cached_bytes == 0
    assert before - resident_bytes() > 0.9 * size
    assert (kept == 5).all()


def test_pages_of_new_blocks_are_the_freed_ones(
    session: sardonyx.InferenceSession, pool: native.BlockPool
) -> None:
    """Blocks of changing sizes, one at a time, use no more than the largest."""
    places = [pages_of(allocate(session, n)) for n in (400, 33, 200, 399, 50, 128)]
    assert all(overlap(places[0], place) for place in places)
    assert pool.cached_bytes == 400 * PAGE


def test_arrays_outlive_their_session() -> None:
    gc.collect()
    before = native.cached_bytes()  # by sessions of other tests
    made = session_of()
    held = [allocate(made, n, n) for n in (40, 90, 33)]
    del made
    gc.collect()
    other = session_of()
    more = [allocate(other, n, -n) for n in (90, 40, 200)]
    for n, array in zip((40, 90, 33, -90, -40, -200), held + more, strict=True):
        assert (array == n).all()
    held.clear()
    assert pool_of(other).cached_bytes == 0  # their pool is gone: their pages are not kept
    del more[0]
    assert pool_of(other).cached_bytes == 90 * PAGE
    del other
    gc.collect()
    more.clear()
    assert native.cached_bytes() == before


def test_blocks_in_use_at_a_release_are_not_kept(
    session: sardonyx.InferenceSession, pool: native.BlockPool
) -> None:
    before, freed = allocate(session, 80), allocate(session, 50)
    del freed
    pool.release_cached()
    after = allocate(session, 40)
    del before
    assert pool.cached_bytes == 0
    del after
    assert pool.cached_bytes == 40 * PAGE


def test_sessions_share_by_kind_of_caching() -> None:
    shared = {Keys.SHARE_BLOCK_POOL: "1"}
    pages = session_of(**shared)
    assert pool_of(pages) is pool_of(session_of(**shared))
    assert pool_of(pages) is not pool_of(session_of(**shared, **{Keys.CACHE_PAGES: "0"}))
    assert pool_of(pages) is not pool_of(session_of())


def test_threads_allocate_and_free_at_once(
    session: sardonyx.InferenceSession, pool: native.BlockPool
) -> None:
    def caller(seed: int) -> Any:
        numbers = np.random.default_rng(seed)
        alive: list[tuple[int, Any]] = []

        def work(i: int) -> None:
            alive.append((i, allocate(session, int(numbers.integers(SMALLEST, 150)), i)))
            if len(alive) > 3:
                value, array = alive.pop(int(numbers.integers(len(alive))))
                assert (array == value).all()

        return work

    run_concurrently(*map(caller, range(4)), times=40)
    gc.collect()
    assert pool.live_blocks == 0


def test_a_forked_child_has_pages_of_its_own(
    session: sardonyx.InferenceSession, pool: native.BlockPool
) -> None:
    held, freed = allocate(session, 50, 3), allocate(session, 60, 4)
    del freed
    child = os.fork()
    if child == 0:
        held[:] = 9
        other = allocate(session, 60, 8)
        pool.release_cached()
        good = (held == 9).all() and (other == 8).all() and pool.cached_bytes == 0
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (held == 3).all()
    assert pool.cached_bytes == 60 * PAGE


SCARCE = """
import resource
from tests.native.test_pages import allocate, pool_of, session_of
session = session_of()
mapped = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + (256 << 20),) * 2)
held = [allocate(session, n, n) for n in (40, 300, 70)]
assert all((a == n).all() for a, n in zip(held, (40, 300, 70)))
assert pool_of(session).live_blocks == 3
held.clear()
print(pool_of(session).cached_bytes, pool_of(session).live_blocks)
"""


def test_without_a_reserved_address_range() -> None:
    """Blocks are malloc's then."""
    command = [sys.executable, "-c", SCARCE]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout.split() == ["0", "0"]
