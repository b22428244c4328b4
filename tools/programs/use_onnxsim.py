# /// script
# dependencies = ["onnxsim==0.8.1"]
# ///
"""onnxsim: simplifies a model, and checks by running it that it means the same."""

import numpy as np
import onnxruntime
import onnxsim
from networks import convolutions, network
from onnx import helper

PICTURE = np.random.default_rng(0).standard_normal((1, 3, 16, 16)).astype(np.float32)


def make():
    nodes, weights = convolutions("x", (3, 8, 8))
    nodes += [
        helper.make_node("Shape", ["features"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Concat", ["n", "rest"], ["t"], axis=0),
        helper.make_node("Reshape", ["features", "t"], ["y"]),
    ]
    weights |= {"zero": np.array([0]), "rest": np.array([-1])}
    return network(nodes, {"x": (np.float32, PICTURE.shape)}, {"y": (1, 8 * 16 * 16)}, weights)


def use(model):
    simple, is_same = onnxsim.simplify(model, check_n=2)
    (y,) = onnxruntime.InferenceSession(simple.SerializeToString()).run(None, {"x": PICTURE})
    return {"is_same": is_same, "ops": [node.op_type for node in simple.graph.node], "y": y}
