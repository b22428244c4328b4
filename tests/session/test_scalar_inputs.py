"""Inputs that are one number: of kernels that read one, and declared as scalars by the model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, parser

import sardonyx
from sardonyx.errors import InvalidArgument
from sardonyx.graph.dtype import by_numpy
from sardonyx.ops import all_ops

X = np.ones((4, 4), np.float32)
BOXES = np.ones((1, 3, 4), np.float32)
SCORES = np.ones((1, 1, 3), np.float32)
SIGNAL = np.ones((1, 16, 1), np.float32)
PADS = np.array([0, 0, 1, 1])
ONE = np.array([2])
HALF = np.array([0.5], np.float32)

CASES: dict[str, tuple[list[Any], int]] = {  # inputs, and which of them is one number
    "Pad": ([X, PADS, HALF], 2),
    "Trilu": ([X, ONE], 1),
    "NonMaxSuppression": ([BOXES, SCORES, ONE, HALF, HALF], 3),
    "STFT": ([SIGNAL, ONE, np.ones(4, np.float32)], 1),
    "DFT": ([SIGNAL, ONE], 1),
    "BlackmanWindow": ([ONE], 0),
    "MelWeightMatrix": ([ONE, ONE * 8, ONE * 800, HALF, HALF * 100], 3),
}


def model(op: str, inputs: list[Any], number: int) -> bytes:
    """A node whose number is declared as a vector of open length."""
    infos = [
        helper.make_tensor_value_info(
            f"x{i}",
            by_numpy(x.dtype).onnx,  # type: ignore[union-attr]  # of numpy's own types
            ["N"] if i == number else x.shape,
        )
        for i, x in enumerate(inputs)
    ]
    node = helper.make_node(op, [i.name for i in infos], ["y"])
    output = helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)
    graph = helper.make_graph([node], "g", infos, [output])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    made.graph.output[0].ClearField("type")
    return made.SerializeToString()


@pytest.mark.parametrize("op", CASES)
@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.parametrize("options", [None, sardonyx.RunOptions()], ids=["fast", "checked"])
def test_a_number_in_a_vector(op: str, count: int, options: sardonyx.RunOptions | None) -> None:
    inputs, number = CASES[op]
    session = sardonyx.InferenceSession(model(op, inputs, number))
    feeds = {f"x{i}": x for i, x in enumerate(inputs)}
    feeds[f"x{number}"] = np.repeat(inputs[number], count)
    if count == 1:
        session.run(None, feeds, options)
        return
    with pytest.raises(InvalidArgument, match="must have one element"):
        session.run(None, feeds, options)


def test_singles_name_inputs() -> None:
    """A name that is misspelt would check nothing."""
    found = {op.name: len(op.singles) for op in all_ops() if op.singles}
    assert {name: found[name] for name in CASES} == {
        "Pad": 1,
        "Trilu": 1,
        "NonMaxSuppression": 3,
        "STFT": 2,
        "DFT": 2,
        "BlackmanWindow": 1,
        "MelWeightMatrix": 5,
    }


@pytest.mark.parametrize("shape", [(1,), (1, 1)])
def test_one_element_for_a_declared_scalar(shape: tuple[int, ...]) -> None:
    """As in onnxruntime it is accepted; results have the rank that the model declares."""
    session = sardonyx.InferenceSession(scaled())
    with pytest.warns(UserWarning, match="x has shape .* and the model declares a scalar"):
        (y,) = session.run(None, {"x": np.full(shape, 3, np.float32), "v": HALF})
    assert y.tolist() == [1.5]


def test_several_elements_for_a_declared_scalar() -> None:
    session = sardonyx.InferenceSession(scaled())
    with pytest.raises(InvalidArgument, match="x has rank 1, but the model expects rank 0"):
        session.run(None, {"x": np.ones(2, np.float32), "v": HALF})


def scaled() -> bytes:
    """A vector, scaled by a scalar input."""
    text = """<ir_version: 8, opset_import: ["": 17]>
        scaled (float x, float[n] v) => (float[n] y) { y = Mul(x, v) }"""
    return parser.parse_model(text).SerializeToString()
