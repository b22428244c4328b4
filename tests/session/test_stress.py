"""Many threads over one session: runs of all shapes, while others change, end and pickle it.

SARDONYX_STRESS multiplies how often each thread does its part; .ci/long asks for more.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import itertools
import logging
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import sardonyx
from sardonyx.ops import forget
from tests.session.concurrently import run_concurrently

TIMES = int(os.environ.get("SARDONYX_STRESS", "1"))
WIDTH = 48
MODEL = f"""<ir_version: 8, opset_import: ["": 17]>
g (float[n,m,{WIDTH}] x, float[k] c) => (float[n,m,{WIDTH}] y, float[n] s, int64[r,q] nz)
<float[k] c = {{0}}> {{
  h = MatMul(x, w)  a = Softmax(h)  y = Add(a, x)
  s = ReduceMax<axes=[1,2], keepdims=0>(y)
  b = Relu(s)  nz = NonZero(b)
}}"""


def model() -> bytes:
    made = onnx.parser.parse_model(MODEL.replace("float[k] c", "float[1] c"))
    weights = np.random.default_rng(0).standard_normal((WIDTH, WIDTH)).astype(np.float32)
    made.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    return bytes(made.SerializeToString())


def feed(i: int) -> dict[str, Any]:
    rng = np.random.default_rng(i)
    shape = (i % 5 + 1, i % 7 + 1, WIDTH)
    return {"x": rng.standard_normal(shape).astype(np.float32)}


FEEDS = [feed(i) for i in range(23)]


@pytest.fixture
def session() -> sardonyx.InferenceSession:
    return sardonyx.InferenceSession(model())


@pytest.fixture
def expected() -> list[list[bytes]]:
    alone = sardonyx.InferenceSession(model())
    return [[a.tobytes() for a in alone.run(None, f)] for f in FEEDS]


@pytest.fixture(autouse=True)
def _often() -> Iterator[None]:
    """Threads change places as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def at_once(*calls: Callable[[int], None], times: int = 60) -> None:
    """Call functions concurrently, as often as SARDONYX_STRESS asks."""
    run_concurrently(*calls, times=times * TIMES)


def runner(
    session: sardonyx.InferenceSession, expected: list[list[bytes]], step: int = 1
) -> Callable[[int], None]:
    def run(i: int) -> None:
        number = i * step % len(FEEDS)
        options = None if i % 3 else sardonyx.RunOptions()
        found = session.run(None, FEEDS[number], options)
        assert [a.tobytes() for a in found] == expected[number]

    return run


def test_runs_of_many_shapes(
    session: sardonyx.InferenceSession, expected: list[list[bytes]]
) -> None:
    """More shapes than bindings are kept for, each in an order of its own."""
    at_once(*(runner(session, expected, step) for step in (1, 2, 5, 7)), times=250)


CHANGES: dict[str, Callable[[sardonyx.InferenceSession, int], Any]] = {
    "providers": lambda s, i: s.set_providers(["CPUExecutionProvider"], [{"number": str(i)}]),
    "a default that is fed": lambda s, i: s.run(["y"], {**FEEDS[i % 23], "c": np.float32([i])}),
    "outputs alone": lambda s, i: s.run(["s"], FEEDS[i % 23], _only_path()),
    "pickling": lambda s, i: pickle.dumps(s),
    "copies": lambda s, i: copy.copy(s).run(["s"], FEEDS[i % 23]),
    "collecting": lambda s, i: gc.collect(i % 3),
    "memory that is dropped": lambda s, i: s.run(["s"], FEEDS[i % 23], _shrinking()),
    "an end": lambda s, i: _ended(s, i),
    "a binding": lambda s, i: _bound(s, i),
    "a session that goes": lambda s, i: sardonyx.InferenceSession(model()).run(None, FEEDS[i % 23]),
}


def _only_path() -> sardonyx.RunOptions:
    options = sardonyx.RunOptions()
    options.only_execute_path_to_fetches = True
    return options


def _shrinking() -> sardonyx.RunOptions:
    options = sardonyx.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return options


def _ended(session: sardonyx.InferenceSession, i: int) -> None:
    options = sardonyx.RunOptions()
    options.terminate = True
    with pytest.raises(sardonyx.SardonyxError, match="terminate"):
        session.run(None, FEEDS[i % 23], options)


def _bound(session: sardonyx.InferenceSession, i: int) -> None:
    binding = session.io_binding()
    binding.bind_cpu_input("x", FEEDS[i % 23]["x"])
    for name in ("y", "s", "nz"):
        binding.bind_output(name)
    session.run_with_iobinding(binding)


@pytest.mark.parametrize("name", CHANGES)
def test_a_session_changes_under_its_runs(
    name: str, session: sardonyx.InferenceSession, expected: list[list[bytes]]
) -> None:
    change = CHANGES[name]
    at_once(
        runner(session, expected),
        runner(session, expected, 3),
        lambda i: change(session, i) if i % 4 == 0 else None,
    )


def test_a_profile_ends_under_runs(expected: list[list[bytes]], tmp_path: Path) -> None:
    options = sardonyx.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "p")
    profiled, names = sardonyx.InferenceSession(model(), options), []
    run = runner(profiled, expected)
    ends = lambda i: names.append(profiled.end_profiling() if i == 20 else "")  # noqa: E731
    at_once(run, runner(profiled, expected, 5), ends)
    assert [Path(n).exists() for n in names if n] == [True]


def test_sessions_are_deleted_during_runs(expected: list[list[bytes]]) -> None:
    """The last reference goes with the run, on whichever thread that is."""
    held: list[Any] = [None] * 8

    def replace(i: int) -> None:
        held[i % len(held)] = sardonyx.InferenceSession(model())

    def run(i: int) -> None:
        with contextlib.suppress(AttributeError):
            found = held[i % len(held)].run(None, FEEDS[i % 23])
            assert [a.tobytes() for a in found] == expected[i % 23]

    at_once(replace, run, run, lambda i: held.__setitem__(i % len(held), None))


@pytest.mark.parametrize("what", ["raises", "exits", "deletes", "enters again"])
def test_callbacks_of_run_async(what: str, caplog: pytest.LogCaptureFixture) -> None:
    holder = [sardonyx.InferenceSession(model())]
    done, seen = threading.Semaphore(0), []

    def callback(results: list[Any], data: int, wrong: str) -> None:
        try:
            seen.append((data, wrong, [r.shape for r in results]))
            if what == "raises":
                raise KeyError("mine")
            if what == "exits":
                raise SystemExit(3)
            if what == "deletes":
                holder.clear()
                gc.collect()
            elif data < 8:
                holder[0].run(None, FEEDS[0])
                holder[0].run_async(None, FEEDS[0], callback, data + 8)
        finally:
            done.release()

    session = holder[0]
    for i in range(8):
        session.run_async(None, FEEDS[i], callback, i)
    del session
    with caplog.at_level(logging.ERROR, "sardonyx"):
        for _ in range(16 if what == "enters again" else 8):
            assert done.acquire(timeout=60)
    assert not [wrong for _, wrong, _ in seen if wrong]
    assert {data for data, _, _ in seen} == set(range(16 if what == "enters again" else 8))
    works = threading.Event()  # the threads are still there
    again = sardonyx.InferenceSession(model())
    again.run_async(None, FEEDS[0], lambda *_: works.set(), None)
    assert works.wait(60)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, ValueError])
def test_callbacks_hear_of_whatever_ends_a_run(kind: type[BaseException]) -> None:
    @sardonyx.custom_op("test.stress", "Raise", inputs="x:float", outputs="y:float", shape="first")
    def ends(x: Any) -> Any:
        raise kind("the end")

    text = """<ir_version: 8, opset_import: ["": 17, "test.stress": 1]>
    g (float[n] x) => (float[n] y) { y = test.stress.Raise(x) }"""
    try:
        session = sardonyx.InferenceSession(onnx.parser.parse_model(text))
        heard, done = [], threading.Event()

        def callback(results: list[Any], data: Any, wrong: str) -> None:
            heard.append((results, wrong))
            done.set()

        session.run_async(None, {"x": np.ones(2, np.float32)}, callback, None)
        assert done.wait(60)
        assert heard[0][0] == []
        assert "the end" in heard[0][1]
    finally:
        forget("test.stress", "Raise")


def test_forks_while_threads_run(
    session: sardonyx.InferenceSession, expected: list[list[bytes]]
) -> None:
    """A child finds no lock taken, and runs."""
    sys.setswitchinterval(0.001)  # this thread has its turn, too
    run, stop = runner(session, expected), threading.Event()

    def work() -> None:
        for i in itertools.count():
            if stop.is_set():
                return
            run(i)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(6 * TIMES):
            child = os.fork()
            if child == 0:
                how = 1
                signal.alarm(300)  # on a busy machine a child has waited 13 s for 10 ms of CPU
                with contextlib.suppress(BaseException):
                    for i in range(12):
                        run(i)
                    binding = session.io_binding()
                    binding.bind_cpu_input("x", FEEDS[1]["x"])
                    binding.bind_output("s")
                    session.run_with_iobinding(binding)
                    session.set_providers(["CPUExecutionProvider"], [{}])
                    run(3)
                    how = 0
                os._exit(how)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
