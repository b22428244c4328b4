"""No native object is leaked at the end of a process, unless others hold a reference."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

BEGIN = """
import threading
import numpy as np
from onnx import parser
import sardonyx as ort

model = parser.parse_model('''<ir_version: 10, opset_import: ["": 21]>
g (float[n] x) => (float[n] y, seq(float[n]) s) {
    y = Add(x, x)  s = SequenceConstruct(x, y) }''')
session = ort.InferenceSession(model)
x = np.ones(4, np.float32)
"""
WAYS = {
    "run": "session.run(None, {'x': x}); session.run(['y'], {'x': x}, ort.RunOptions())",
    "values": """
value = ort.OrtValue.ortvalue_from_numpy(x)
capsule = value.to_dlpack()
session.run_with_ort_values(None, {'x': value})
""",
    "binding": """
binding = session.io_binding()
binding.bind_cpu_input('x', x)
binding.bind_output('y')
session.run_with_iobinding(binding)
""",
    "asynchronous": """
done = threading.Event()
session.run_async(None, {'x': x}, lambda *_: done.set(), None)
done.wait()
""",
    "errors": """
for feed in ({'x': x.astype(np.float64)}, {'z': x}):
    try:
        session.run(None, feed)
    except Exception as error:
        kept = error
""",
    "gradient": """
from sardonyx.train import gradient
made = ort.InferenceSession(gradient(model, 'y', ['x'], seeds=True))
made.run(None, {'x': x, 'y_grad': x})
""",
}
# torch keeps the functions of its ops, and with them all that they reach, to the very end.
HELD = """
import torch

@torch.library.custom_op('sardonyx_tests::run', mutates_args=())
def run(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(session.run(['y'], {'x': x})[0])

@torch.compile(backend='eager')
def twice(x):
    return run(x) + run(x)

run.register_fake(torch.empty_like)
assert twice(torch.ones(2)).tolist() == [4, 4]
"""


def left_over(program: str, *, is_reported: bool = True) -> str:
    """Return the report of a process about native objects that are alive at its end."""
    asked = {"SARDONYX_LEAKS": "1"} if is_reported else {}
    plain = {k: v for k, v in os.environ.items() if k != "SARDONYX_LEAKS"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BEGIN + program],
        env=plain | asked, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stderr


@pytest.mark.parametrize("way", WAYS)
def test_no_leaks(way: str) -> None:
    assert left_over(WAYS[way]) == ""


def test_leaked_objects_are_reported_on_request() -> None:
    """The session of this program is never freed, so that the tests above can fail."""
    program = "import ctypes\nctypes.pythonapi.Py_IncRef(ctypes.py_object(session))"
    assert "leaked" in left_over(program)
    assert left_over(program, is_reported=False) == ""


def test_torch_and_a_session_end_without_output() -> None:
    pytest.importorskip("torch")
    assert left_over(HELD, is_reported=False) == ""
