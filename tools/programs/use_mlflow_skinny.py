# /// script
# dependencies = ["mlflow-skinny==3.17.2", "onnx", "pandas"]
# ///
"""mlflow: saves a model of its ONNX flavour, loads it as a function of Python."""

import tempfile
from pathlib import Path

import mlflow
import numpy as np
from networks import network, random
from onnx import helper


def make():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["z"]),
        helper.make_node("Softmax", ["z"], ["y"], axis=-1),
    ]
    model = network(nodes, {"x": (np.float32, ("n", 8))}, {"y": ("n", 4)}, {"w": random(1, 8, 4)})
    path = Path(tempfile.mkdtemp()) / "model"
    mlflow.onnx.save_model(model, str(path))
    return mlflow.pyfunc.load_model(str(path))


def use(model):
    return model.predict({"x": random(2, 5, 8)})
