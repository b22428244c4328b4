# /// script
# dependencies = ["ndonnx==0.23.0", "onnx"]
# ///
"""ndonnx: numpy's functions as ONNX models, with constants computed on the way."""

import ndonnx as ndx
import numpy as np
import onnxruntime

DATA = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)


def make():
    x = ndx.argument(shape=("n", 4), dtype=ndx.float32)
    centered = x - ndx.mean(x, axis=0)
    weights = ndx.asarray(np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2))
    scores = ndx.tanh(ndx.matmul(centered, ndx.exp(weights)))
    best = ndx.where(scores > ndx.asarray(np.float32(0.25)), scores, ndx.zeros_like(scores))
    outputs = {"best": best, "order": ndx.argsort(x[:, 0]), "all": ndx.all(x > -9)}
    model = ndx.build({"x": x}, outputs)
    eager = ndx.cumulative_sum(ndx.asarray(DATA), axis=0).unwrap_numpy()
    return onnxruntime.InferenceSession(model.SerializeToString()), eager


def use(made):
    session, eager = made
    return [session.run(None, {"x": DATA}), eager]
