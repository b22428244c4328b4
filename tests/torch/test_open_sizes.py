"""Sizes that are known only when a node has run, on the torch provider and on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import sardonyx
from tests.op_cases import f32

pytest.importorskip("torch")

X = f32(2, 6)
Nodes = list[tuple[str, list[str], list[str]]]
CASES: dict[str, tuple[Nodes, dict[str, Any]]] = {
    "Reshape": ([("Reshape", ["x", "t"], ["z"])], {"t": np.array([3, -1])}),
    "Expand": ([("Expand", ["x", "t"], ["z"])], {"t": np.array([3, 1, 6])}),
    "Squeeze": ([("Squeeze", ["w", "t"], ["z"])], {"w": f32(2, 1, 3), "t": np.array([1])}),
    "Unsqueeze": ([("Unsqueeze", ["x", "t"], ["z"])], {"t": np.array([-1, 0])}),
    "Split": ([("Split", ["x", "t"], ["z", "q"])], {"t": np.array([2, 0])}),
    "Slice": ([("Slice", ["x", "t", "e"], ["z"])], {"t": np.array([0, 1]), "e": np.array([2, 4])}),
    "Tile": ([("Tile", ["x", "t"], ["z"])], {"t": np.array([2, 3])}),
    "ConstantOfShape": ([("ConstantOfShape", ["t"], ["z"])], {"t": np.array([4, 2])}),
    "Range": (
        [("Range", ["t", "e", "d"], ["r"]), ("Cast", ["r"], ["z"])],
        {"t": np.array(1), "e": np.array(9), "d": np.array(3)},
    ),
    "OneHot": ([("OneHot", ["t", "d", "x"], ["z"])], {"t": np.array([0, 2]), "d": np.array(3)}),
    "NonZero": (
        [
            ("NonZero", ["x"], ["i"]),
            ("Transpose", ["i"], ["j"]),
            ("GatherND", ["x", "j"], ["z"]),
        ],
        {},
    ),
    "CenterCropPad": ([("CenterCropPad", ["x", "t"], ["z"])], {"t": np.array([5, 3])}),
}


@pytest.mark.parametrize("name", CASES)
def test_open_sizes(name: str) -> None:
    nodes, feeds = CASES[name]
    feeds = {"x": X.reshape(-1)[:2] if name == "OneHot" else X, **feeds}
    model = _model(nodes, feeds)
    results = [
        sardonyx.InferenceSession(model, providers=providers).run(None, feeds)[0]
        for providers in (["TorchExecutionProvider"], ["CPUExecutionProvider"])
    ]
    np.testing.assert_array_equal(*results)


def _model(nodes: Nodes, feeds: dict[str, Any]) -> bytes:
    """A model of these nodes, followed by a Relu."""
    made = [
        helper.make_node(op, read, write, **({"to": TensorProto.FLOAT} if op == "Cast" else {}))
        for op, read, write in (*nodes, ("Relu", ["z"], ["y"]))
    ]
    inputs = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for k, v in feeds.items()
    ]
    output = helper.make_empty_tensor_value_info("y")
    graph = helper.make_graph(made, "open", inputs, [output])
    opsets = [helper.make_opsetid("", 22)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return model.SerializeToString()
