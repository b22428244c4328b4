"""Ops of your own: one in numpy, one in C, in a model that knows neither."""

from __future__ import annotations

import ctypes
import pathlib
import shutil
import subprocess
import tempfile
from typing import Any

import numpy as np
import onnx

import sardonyx


@sardonyx.custom_op(
    "acme",
    "Notch",
    inputs="x:T",
    outputs="y:T",
    types={"T": "float double"},
    attrs={"width": 0.5},
    shape="first",
)
def notch(x: Any, *, width: float) -> Any:
    """Nothing between -width and width."""
    return np.where(np.abs(x) < width, 0, x).astype(x.dtype)


MODEL = onnx.parser.parse_model("""
    <ir_version: 10, opset_import: ["": 21, "acme": 1]>
    g (float[n] x) => (float[n] y) { a = acme.Notch<width=1.5>(x) y = Mul(a, a) }""")
X = np.arange(-3, 4, dtype=np.float32)
session = sardonyx.InferenceSession(MODEL)
print("numpy", session.run(None, {"x": X})[0])

# The same in C, as a native step. The header says what a function gets.
HEADER = pathlib.Path(sardonyx.__file__).parent / "include"
SOURCE = """
#include <math.h>
#include "sardonyx_op.h"

int notch(const sardonyx_tensor* in, int n_in, const sardonyx_tensor* out, int n_out,
          const double* numbers, int n_numbers) {
  int64_t n = 1;
  for (int i = 0; i < in->rank; ++i) n *= in->dims[i];
  const float* x = in->data;
  float* y = out->data;
  for (int64_t i = 0; i < n; ++i) y[i] = fabsf(x[i]) < numbers[0] ? 0 : x[i];
  return 0;
}
"""
if compiler := shutil.which("cc"):
    with tempfile.TemporaryDirectory() as folder:
        source, library = f"{folder}/notch.c", f"{folder}/notch.so"
        pathlib.Path(source).write_text(SOURCE)
        command = [compiler, "-O2", "-shared", "-fPIC", f"-I{HEADER}", source, "-o", library, "-lm"]
        subprocess.run(command, check=True)
        function = ctypes.CDLL(library).notch
    sardonyx.native_op(
        function,
        "acme",
        "Notch",
        inputs="x:float",
        outputs="y:float",
        attrs={"width": 0.5},
        shape="first",
    )
    print("C    ", sardonyx.InferenceSession(MODEL).run(None, {"x": X})[0])
