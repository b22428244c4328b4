# /// script
# dependencies = ["onnxscript==0.7.2", "onnx"]
# ///
"""onnxscript: functions of ONNX in Python, which run op by op, and as one model."""

import numpy as np
import onnxruntime
from onnxscript import FLOAT, script
from onnxscript import opset18 as op

DATA = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)
SCALE = np.linspace(0.5, 2, 8, dtype=np.float32)


@script()
def normalized(x: FLOAT["n", 8], scale: FLOAT[8]) -> FLOAT["n", 8]:  # noqa: F821
    square = op.Mul(x, x)
    mean = op.ReduceMean(square, op.Constant(value_ints=[-1]))
    return x / op.Sqrt(mean + 1e-5) * scale


@script()
def repeated(x: FLOAT["n", 8], scale: FLOAT[8]) -> FLOAT["n", 8]:  # noqa: F821
    y = x
    for _ in range(3):
        y = op.Tanh(y) + scale
    return y


def make():
    models = [function.to_model_proto() for function in (normalized, repeated)]
    return [onnxruntime.InferenceSession(model.SerializeToString()) for model in models]


def use(sessions):
    eager = [normalized(DATA, SCALE), repeated(DATA, SCALE)]
    feeds = {"x": DATA, "scale": SCALE}
    return [eager, [session.run(None, feeds)[0] for session in sessions]]
