"""A training step of a gradient session and SGD with momentum in numpy, for tests of the loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

import sardonyx
from sardonyx.load import load
from sardonyx.train import gradient

RNG = np.random.default_rng(5)
SAMPLES = RNG.standard_normal((10, 3)).astype(np.float32)
GOALS = (SAMPLES @ np.float32([[1], [-2], [0.5]]) + 0.25).astype(np.float32)
DATA = {"x": SAMPLES, "goal": GOALS}


def regression() -> onnx.ModelProto:
    """Linear regression with the mean squared error as its loss."""
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["": 21]>
        regression (float[n, 3] x, float[n, 1] goal) => (float loss, float[n, 1] y) {
            y = Gemm(x, w, b) d = Sub(y, goal) e = Mul(d, d) loss = ReduceMean<keepdims=0>(e)
        }""")
    arrays = {"w": np.zeros((3, 1), np.float32), "b": np.zeros(1, np.float32)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in arrays.items())
    return model


class PlainStep:
    """The interface of TrainingStep."""

    def __init__(self, model: onnx.ModelProto, lr: float = 0.05) -> None:
        self._model, self._lr = model, lr
        self._session = sardonyx.InferenceSession(gradient(model, "loss"))
        self._names = [o.name for o in self._session.get_outputs()]
        arrays = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
        self.parameters: dict[str, Any] = {n: a.copy() for n, a in arrays.items()}
        self.state: dict[str, Any] = {n: np.zeros_like(a) for n, a in arrays.items()}
        self.state["step"] = np.array(0)
        self.statistics: dict[str, Any] = {}

    def run(self, feeds: Any, lr: Any = None) -> Mapping[str, Any]:
        """One update; `lr` is a number or a function of the number of updates."""
        count = int(self.state["step"])
        rate = self._lr if lr is None else lr(count) if callable(lr) else lr
        self.state["step"] = np.array(count + 1)
        results = self._session.run(None, {**feeds, **self.parameters})
        outputs = dict(zip(self._names, results, strict=True))
        for name, array in self.parameters.items():
            self.state[name] = np.float32(0.9) * self.state[name] + outputs[name + "_grad"]
            self.parameters[name] = array - np.float32(rate) * self.state[name]
        return outputs

    def load(self, parameters: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Continue with these."""
        self.parameters = {n: np.array(a) for n, a in parameters.items()}
        self.state = {n: np.array(a) for n, a in state.items()}

    def to_model(self) -> Any:
        """The model with the current parameters."""
        proto = onnx.ModelProto()
        proto.CopyFrom(self._model)
        for tensor in proto.graph.initializer:
            tensor.CopyFrom(onnx.numpy_helper.from_array(self.parameters[tensor.name], tensor.name))
        return load(proto)
