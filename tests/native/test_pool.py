"""Sessions and the thread pool under stress; tools/sanitize.sh runs them under sanitizers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from onnx import parser

import sardonyx
from sardonyx.errors import Fail, InvalidArgument

HEADER = '<ir_version: 8, opset_import: ["" : 17]>'
# Products, whole-tensor and axis reductions, moves, a chain: enough work to be split at N = 64.
MIXED = (
    HEADER
    + """
 mixed (float[N, 96] x, float[96, 160] w, float[160, 40] v) => (float[N, 40] y, float[] s,
   float[40, N] t, int64[N] i) {
 a = MatMul(x, w)
 b = Erf(a)
 c = MatMul(b, v)
 y = Softmax(c)
 s = ReduceSum<keepdims = 0>(c)
 t = Transpose(c)
 i = ArgMax<axis = 1, keepdims = 0>(c)
}"""
)
GATHER = HEADER + " pick (float[N, 512] x, int64[K] i) => (float[K, 512] y) { y = Gather(x, i) }"
LOOP = (
    HEADER
    + """
 loop (int64 m, float[N, 64] x) => (float[N, 64] y) {
 go = Constant<value = bool {1}>()
 y = Loop (m, go, x)
 <body = step (int64 n, bool more, float[A, 64] a) => (bool on, float[A, 64] b) {
   on = Identity(more)
   c = Softmax(a)
   b = Add(c, a)
 }>
}"""
)
SIZES = (1, 2, 7, 31, 64, 200, 333)


def session_of(text: str, threads: int = 0) -> sardonyx.InferenceSession:
    options = sardonyx.SessionOptions()
    options.intra_op_num_threads = threads
    return sardonyx.InferenceSession(parser.parse_model(text).SerializeToString(), options)


def mixed_feed(n: int) -> dict[str, Any]:
    numbers = np.random.default_rng(n)
    return {
        "x": numbers.standard_normal((n, 96), np.float32),
        "w": numbers.standard_normal((96, 160), np.float32),
        "v": numbers.standard_normal((160, 40), np.float32),
    }


def bytes_of(arrays: list[Any]) -> list[bytes]:
    return [a.tobytes() for a in arrays]


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Runs work(0) to work(count - 1) at once; the first error is raised here."""
    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(work, i) for i in range(count)]:
            done.result()


@pytest.fixture(scope="module")
def expected() -> dict[int, list[bytes]]:
    """Return the results of MIXED for each size on one thread."""
    session = session_of(MIXED, 1)
    return {n: bytes_of(session.run(None, mixed_feed(n))) for n in SIZES}


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_any_number_of_threads_gives_the_same_bytes(
    threads: int, expected: dict[int, list[bytes]]
) -> None:
    session = session_of(MIXED, threads)
    for n in SIZES:
        assert bytes_of(session.run(None, mixed_feed(n))) == expected[n]


def test_many_threads_run_one_session(expected: dict[int, list[bytes]]) -> None:
    session = session_of(MIXED, 2)
    feeds = {n: mixed_feed(n) for n in SIZES}

    def work(i: int) -> None:
        for i_run in range(40):
            n = SIZES[(i + i_run) % len(SIZES)]
            assert bytes_of(session.run(None, feeds[n])) == expected[n]

    in_threads(8, work)


def test_sessions_come_and_go_while_others_run(expected: dict[int, list[bytes]]) -> None:
    kept = session_of(MIXED, 3)

    def work(i: int) -> None:
        for i_run in range(12):
            session = kept if i % 2 else session_of(MIXED, 1 + i_run % 3)
            n = SIZES[(i + i_run) % len(SIZES)]
            made = session.run(None, mixed_feed(n))
            del session
            assert bytes_of(made) == expected[n]

    in_threads(6, work)


def test_outputs_outlive_their_session_in_other_threads(expected: dict[int, list[bytes]]) -> None:
    made = session_of(MIXED, 2).run(None, mixed_feed(333))
    parts = [[a] for a in made]
    del made

    def work(i: int) -> None:
        array = parts[i].pop()
        assert array.tobytes() == expected[333][i]

    in_threads(len(parts), work)


def test_a_fault_in_one_run_leaves_the_others_alone() -> None:
    session = session_of(GATHER, 3)
    x = np.arange(300 * 512, dtype=np.float32).reshape(300, 512)
    good = np.random.default_rng(0).integers(0, 300, 400)
    bad = np.where(np.arange(400) > 150, 300, good)

    def work(i: int) -> None:
        for _ in range(10):
            if i % 2:
                np.testing.assert_array_equal(session.run(None, {"x": x, "i": good})[0], x[good])
            else:
                with pytest.raises(InvalidArgument, match="300"):
                    session.run(None, {"x": x, "i": bad})

    in_threads(4, work)


def test_a_run_is_terminated_from_another_thread() -> None:
    session = session_of(LOOP, 2)
    feed = {"m": np.array(10**12), "x": np.ones((64, 64), np.float32)}

    def work(_: int) -> None:
        options = sardonyx.RunOptions()

        def end() -> None:
            time.sleep(0.05)
            options.terminate = True

        ender = threading.Thread(target=end)
        ender.start()
        with pytest.raises(Fail, match="terminate"):
            session.run(None, feed, options)
        ender.join()

    in_threads(3, work)
    short = session.run(None, {**feed, "m": np.array(3)})[0]
    assert short.shape == (64, 64)


@pytest.mark.skipif("libtsan" in os.environ.get("LD_PRELOAD", ""), reason="forks with threads")
def test_a_fork_has_a_pool_of_its_own(expected: dict[int, list[bytes]]) -> None:
    session = session_of(MIXED, 3)
    session.run(None, mixed_feed(333))
    child = os.fork()
    if child == 0:
        same = bytes_of(session.run(None, mixed_feed(333))) == expected[333]
        new = bytes_of(session_of(MIXED, 3).run(None, mixed_feed(333))) == expected[333]
        os._exit(0 if same and new else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
