"""A small classifier for tests of the training API, and its artifacts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from sardonyx.training import artifacts
from sardonyx.training.api import CheckpointState, Module, Optimizer

WEIGHTS = ("w1", "b1", "w2", "b2")


def classifier(width: int = 5) -> onnx.ModelProto:
    """A network of two layers from 3 features to 2 classes."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        net (float[batch, 3] x) => (float[batch, 2] scores) {
            hidden = Gemm(x, w1, b1)
            active = Tanh(hidden)
            scores = Gemm(active, w2, b2)
        }""")
    rng = np.random.default_rng(0)
    shapes = ((3, width), (width,), (width, 2), (2,))
    for name, shape in zip(WEIGHTS, shapes, strict=True):
        array = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def generate(folder: Path, model: onnx.ModelProto | None = None, **options: object) -> Path:
    """Write artifacts: cross entropy and AdamW for all weights, unless options say otherwise."""
    defaults: dict[str, object] = {
        "requires_grad": [n for n in WEIGHTS if n not in options.get("frozen_params", ())],
        "loss": artifacts.LossType.CrossEntropyLoss,
        "optimizer": artifacts.OptimType.AdamW,
    }
    artifacts.generate_artifacts(
        model or classifier(), artifact_directory=folder, **(defaults | options)
    )
    return folder


def load(folder: Path, **options: object) -> tuple[CheckpointState, Module, Optimizer]:
    """Return state, module and optimizer of artifacts."""
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx", **options)
    return state, module, Optimizer(folder / "optimizer_model.onnx", module)


def batch(seed: int = 0, size: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Return features and labels."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((size, 3)).astype(np.float32), rng.integers(0, 2, size)
