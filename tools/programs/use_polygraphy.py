# /// script
# dependencies = ["polygraphy==0.53.6", "onnx"]
# ///
"""polygraphy: runs a model with every value marked as an output."""

import numpy as np
from networks import convolutions, network
from polygraphy.backend.onnx import BytesFromOnnx, ModifyOutputs
from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx

PICTURE = np.random.default_rng(0).standard_normal((1, 3, 24, 24)).astype(np.float32)


def make():
    nodes, weights = convolutions("x", (3, 8, 8, 4))
    model = network(
        nodes, {"x": (np.float32, PICTURE.shape)}, {"features": (1, 4, 24, 24)}, weights
    )
    every = ModifyOutputs(model, outputs=["c0", "r0", "c1", "features"], copy=True)
    return SessionFromOnnx(BytesFromOnnx(every), providers=["cpu"])


def use(session):
    with OnnxrtRunner(session) as runner:
        return dict(runner.infer({"x": PICTURE}))
