"""Threads: equal bytes for any number, forks, options, and termination."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx
import sardonyx._native as native
from sardonyx.errors import Fail, InvalidArgument
from tests.session.concurrently import run_concurrently

NETWORK = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 3, 32, 32] x, float[16, 3, 3, 3] w, float[16, 64] m)
    => (float[N, 64] y, float[N] total) {
  c = Conv <pads = [1, 1, 1, 1]> (x, w)
  r = Relu (c)
  p = GlobalAveragePool (r)
  f = Flatten (p)
  y = MatMul (f, m)
  s = Softmax (y)
  total = ReduceSum <keepdims = 0> (s, axes)
}
"""
FOREVER = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[N] x) => (float[N] y) {
  y = Loop (, , x) <body = b (int64 i, bool go, float[N] v) => (bool go_on, float[N] more) {
    more = Add (v, v)
    go_on = Identity (go)
  }>
}
"""


def network() -> bytes:
    model = onnx.parser.parse_model(NETWORK.replace(", axes)", ")"))
    model.graph.node[-1].input.append("axes")
    axes = onnx.numpy_helper.from_array(np.array([1]), "axes")
    model.graph.initializer.append(axes)
    return bytes(model.SerializeToString())


def feed(n: int = 5) -> dict[str, Any]:
    rng = np.random.default_rng(n)
    shapes = {"x": (n, 3, 32, 32), "w": (16, 3, 3, 3), "m": (16, 64)}
    return {k: rng.standard_normal(s).astype(np.float32) for k, s in shapes.items()}


def session(threads: int = 0, **entries: str) -> sardonyx.InferenceSession:
    options = sardonyx.SessionOptions()
    options.intra_op_num_threads = threads
    for key, value in entries.items():
        options.add_session_config_entry(f"session.{key.replace('__', '.')}", value)
    return sardonyx.InferenceSession(network(), options)


def as_bytes(outputs: list[Any]) -> list[bytes]:
    return [a.tobytes() for a in outputs]


def test_any_number_of_threads_gives_the_same_bytes() -> None:
    assert session()._compiled.program.python_steps == 0
    found = [as_bytes(session(n).run(None, feed())) for n in (1, 2, 3, 7)]
    assert all(f == found[0] for f in found)


def test_many_callers_with_shapes_of_their_own() -> None:
    shared = session(2)
    expected = {n: as_bytes(shared.run(None, feed(n))) for n in range(1, 9)}

    def caller(n: int) -> Callable[[int], None]:
        def call(_: int) -> None:
            assert as_bytes(shared.run(None, feed(n))) == expected[n]

        return call

    run_concurrently(*map(caller, expected), times=10)


def test_kept_outputs_are_not_overwritten() -> None:
    shared = session()
    kept = [shared.run(None, feed(n)) for n in (3, 3, 3, 4)]
    copies = [as_bytes(outputs) for outputs in kept]
    for n in (3, 4, 5):
        shared.run(None, feed(n))
    assert [as_bytes(outputs) for outputs in kept] == copies


def test_a_fork_has_threads_of_its_own() -> None:
    shared = session(2)
    expected = as_bytes(shared.run(None, feed()))
    child = os.fork()
    if child == 0:
        os._exit(0 if as_bytes(shared.run(None, feed())) == expected else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert as_bytes(shared.run(None, feed())) == expected


@pytest.mark.parametrize(
    "entries",
    [
        {"intra_op__allow_spinning": "0"},
        {"intra_op_thread_affinities": "1"},
        {"intra_op_thread_affinities": "1;1-2"},
    ],
)
def test_options_change_no_result(entries: dict[str, str]) -> None:
    assert as_bytes(session(3, **entries).run(None, feed())) == as_bytes(
        session(1).run(None, feed())
    )


@pytest.mark.parametrize("text", ["0", "a", "1;;2", "2-x"])
def test_wrong_affinities(text: str) -> None:
    with pytest.raises(InvalidArgument, match="CPUs from 1"):
        session(2, intra_op_thread_affinities=text)


def test_the_pool_fits_the_process() -> None:
    assert 1 <= native.usable_cpus() <= len(os.sched_getaffinity(0))


def test_terminate_ends_a_run_between_steps() -> None:
    endless = sardonyx.InferenceSession(onnx.parser.parse_model(FOREVER).SerializeToString())
    assert endless._compiled.program.python_steps == 0
    options = sardonyx.RunOptions()
    threading.Timer(0.05, lambda: setattr(options, "terminate", True)).start()
    with pytest.raises(Fail, match="terminate"):
        endless.run(None, {"x": np.ones(3, np.float32)}, options)


def test_ctrl_c_ends_a_run() -> None:
    code = f"""
import signal, threading
import numpy as np, onnx, sardonyx
signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
endless = sardonyx.InferenceSession(onnx.parser.parse_model({FOREVER!r}).SerializeToString())
try:
    threading.Timer(0.1, lambda: print("running", flush=True)).start()
    endless.run(None, {{"x": np.ones(3, np.float32)}})
except KeyboardInterrupt:
    print("stopped")
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "running\n"
    child.send_signal(signal.SIGINT)
    try:
        assert child.communicate(timeout=60)[0] == "stopped\n"
    finally:
        child.kill()
    assert child.returncode == 0


@pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="sanitizers take memory of their own")
def test_without_more_threads_runs_continue() -> None:
    code = """
import resource
import numpy as np, onnx, sardonyx
model = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Exp(x) }')
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)  # stacks of eight threads or so
options = sardonyx.SessionOptions()
options.intra_op_num_threads = 200
options.add_session_config_entry("session.intra_op_thread_affinities", ";".join(["1"] * 199))
session = sardonyx.InferenceSession(model.SerializeToString(), options)
print((session.run(None, {"x": np.zeros(100_000, np.float32)})[0] == 1).all())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
