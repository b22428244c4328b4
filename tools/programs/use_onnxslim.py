# /// script
# dependencies = ["onnxslim==0.1.98", "onnx"]
# ///
"""onnxslim: makes a model smaller, and checks by running both that they mean the same."""

import numpy as np
import onnxruntime
from networks import network, random
from onnx import helper
from onnxslim import slim

PICTURE = np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype(np.float32)


def make():
    nodes = [
        helper.make_node("Identity", ["x"], ["i"]),
        helper.make_node("Pad", ["i", "pads"], ["p"]),
        helper.make_node("Conv", ["p", "w"], ["c"]),
        helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("Shape", ["r"], ["shape"]),
        helper.make_node("Slice", ["shape", "zero", "one"], ["batch"]),
        helper.make_node("Concat", ["batch", "minus"], ["flat"], axis=0),
        helper.make_node("Reshape", ["r", "flat"], ["f"]),
        helper.make_node("MatMul", ["f", "k"], ["g"]),
        helper.make_node("Add", ["g", "bias"], ["y"]),
    ]
    weights = {name: np.abs(random(n, 8)) for n, name in enumerate("sbmv")}
    weights |= {"w": random(5, 8, 3, 3, 3), "k": random(6, 8 * 32 * 32, 10), "bias": random(7, 10)}
    weights |= {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "zero": np.array([0])}
    weights |= {"one": np.array([1]), "minus": np.array([-1])}
    inputs, outputs = {"x": (np.float32, ("n", 3, 32, 32))}, {"y": ("n", 10)}
    return network(nodes, inputs, outputs, weights)


def use(model):
    small = slim(model, model_check=True, input_shapes=["x:1,3,32,32"])
    session = onnxruntime.InferenceSession(small.SerializeToString())
    kinds = [node.op_type for node in small.graph.node]
    return {"kinds": kinds, "y": session.run(None, {"x": PICTURE})[0]}
