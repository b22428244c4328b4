# /// script
# dependencies = ["onnxruntime==1.31.1", "onnx", "sympy"]
# ///
"""onnxruntime.quantization: quantizes a network, with a session that it calibrates by."""

import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
from networks import convolutions, network, random
from onnx import helper, load, save
from onnxruntime import quantization as q

SHAPE = (1, 3, 16, 16)


class Pictures(q.CalibrationDataReader):
    """Four random pictures."""

    def __init__(self):
        rng = np.random.default_rng(7)
        self.left = [{"x": rng.standard_normal(SHAPE).astype(np.float32)} for _ in range(4)]

    def get_next(self):
        return self.left.pop() if self.left else None


def make():
    nodes, weights = convolutions("x", (3, 8, 8))
    nodes += [
        helper.make_node("ReduceMean", ["features"], ["m"], axes=[2, 3], keepdims=0),
        helper.make_node("MatMul", ["m", "w"], ["y"]),
    ]
    weights["w"] = random(9, 8, 4)
    folder = Path(tempfile.mkdtemp())
    save(network(nodes, {"x": (np.float32, SHAPE)}, {"y": (1, 4)}, weights), folder / "model.onnx")
    return folder


def use(folder):
    plain = folder / "model.onnx"
    q.quant_pre_process(plain, folder / "ready.onnx")
    q.quantize_dynamic(folder / "ready.onnx", folder / "dynamic.onnx")
    for name, form in (("qdq", q.QuantFormat.QDQ), ("qop", q.QuantFormat.QOperator)):
        q.quantize_static(
            folder / "ready.onnx", folder / f"{name}.onnx", Pictures(), quant_format=form
        )
    results = {}
    for name in ("dynamic", "qdq", "qop"):
        model = load(folder / f"{name}.onnx")
        (y,) = onnxruntime.InferenceSession(model.SerializeToString()).run(
            None, {"x": np.ones(SHAPE, np.float32)}
        )
        results[name] = {"ops": [node.op_type for node in model.graph.node], "y": y}
    return results
