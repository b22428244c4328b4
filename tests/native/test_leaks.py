"""Native objects at the end of a process: none is left, but where others hold on to them."""

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
HELD = """
import torch
library = torch.library.Library('sardonyx_tests', 'DEF')
library.define('run(Tensor x) -> Tensor')
kept = lambda x: torch.from_numpy(session.run(['y'], {'x': x})[0])
torch.library.impl('sardonyx_tests::run', 'CPU')(kept)
assert torch.ops.sardonyx_tests.run(torch.ones(2)).tolist() == [2, 2]
library._destroy = lambda: None  # as for a library that is never taken back
import ctypes
ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))
"""


def left_over(program: str, *, is_told: bool = True) -> str:
    """What a process says of native objects that are there at its end."""
    asked = {"SARDONYX_LEAKS": "1"} if is_told else {}
    plain = {k: v for k, v in os.environ.items() if k != "SARDONYX_LEAKS"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BEGIN + program],
        env=plain | asked, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stderr


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_left(way: str) -> None:
    assert left_over(WAYS[way]) == ""


def test_what_others_hold_is_told_when_asked_for() -> None:
    """The session of this program is never freed, so that the tests above can fail."""
    program = "import ctypes\nctypes.pythonapi.Py_IncRef(ctypes.py_object(session))"
    assert "leaked" in left_over(program)
    assert left_over(program, is_told=False) == ""


def test_torch_and_a_session_end_without_a_word() -> None:
    pytest.importorskip("torch")
    assert left_over(HELD, is_told=False) == ""
