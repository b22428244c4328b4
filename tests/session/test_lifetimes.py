"""Lifetimes: runs and sessions, arrays and their memory, threads and the process."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import sardonyx

WIDTH = 192
PRODUCT = f"""<ir_version: 8, opset_import: ["": 17]>
g (float[n,{WIDTH}] x) => (float[n,{WIDTH}] y) {{ h = MatMul(x, w)  y = Relu(h) }}"""


def product() -> bytes:
    """A model whose weights are read from memory that its program owns."""
    model = onnx.parser.parse_model(PRODUCT)
    weights = np.random.default_rng(0).standard_normal((WIDTH, WIDTH)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    return bytes(model.SerializeToString())


def feed(n: int) -> dict[str, Any]:
    return {"x": np.random.default_rng(n).standard_normal((n, WIDTH)).astype(np.float32)}


def test_a_run_keeps_the_weights_that_it_reads() -> None:
    """The session may get another program while a run is under way."""
    session = sardonyx.InferenceSession(product())
    expected = session.run(None, feed(3))[0]
    fast = session._fast_path
    assert fast is not None
    call = fast.call
    del session, fast
    gc.collect()
    others = [np.full((WIDTH, WIDTH), np.nan, np.float32) for _ in range(8)]
    made = call(feed(3))
    assert isinstance(made, list)
    np.testing.assert_array_equal(made[0], expected)
    assert len(others) == 8


def test_arrays_outlive_their_session() -> None:
    session = sardonyx.InferenceSession(product())
    kept = [session.run(None, feed(n))[0] for n in (1, 40, 400)]
    copies = [k.copy() for k in kept]
    binding = session.io_binding()
    binding.bind_cpu_input("x", feed(50)["x"])
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    value = binding.get_outputs()[0]
    bound = value.numpy().copy()
    del session, binding
    gc.collect()
    other = sardonyx.InferenceSession(product())
    for n in (1, 40, 50, 400):
        other.run(None, feed(n))
    for array, copy in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(array, copy)
        array[:] = 0  # still memory of its own
    np.testing.assert_array_equal(value.numpy(), bound)


EXIT = """
import threading, numpy as np, onnx, sardonyx
session = sardonyx.InferenceSession(onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y)'
    '{ a = Exp(x) y = Sin(a) }'
).SerializeToString())
x, started = np.ones(SIZE, np.float32), threading.Barrier(4)
def work():
    started.wait()
    while True:
        session.run(None, {"x": x}, OPTIONS)
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
started.wait()
"""


@pytest.mark.parametrize("options", ["None", "sardonyx.RunOptions()"])
@pytest.mark.parametrize("size", ["10", "100000"])
def test_the_process_ends_while_threads_run(size: str, options: str) -> None:
    code = EXIT.replace("SIZE", size).replace("OPTIONS", options)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
