"""Ops of half types that compute in float32: no step is left to Python, and none is off."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx as sdx
from sardonyx.enums import GraphOptimizationLevel as Level
from sardonyx.graph.infer import infer
from sardonyx.load import load
from sardonyx.passes.halves import widen_halves

RNG = np.random.default_rng(0)
KINDS = {TensorProto.FLOAT16: np.float16, TensorProto.BFLOAT16: ml_dtypes.bfloat16}


def weight(name: str, *shape: int, dtype: Any) -> Any:
    array = (RNG.standard_normal(shape) / 4).astype(dtype)
    return numpy_helper.from_array(array, name)


CASES: dict[str, tuple[list[Any], dict[str, tuple[int, ...]], tuple[int, ...]]] = {
    "conv": (
        [
            helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["r"]),
            helper.make_node("Conv", ["r", "v"], ["d"]),
            helper.make_node("Add", ["d", "x"], ["y"]),
        ],
        {"w": (5, 4, 3, 3), "b": (5,), "v": (4, 5, 1, 1)},
        (2, 4, 7, 9),
    ),
    "pools": (
        [
            helper.make_node("MaxPool", ["x"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
            helper.make_node("AveragePool", ["m"], ["a"], kernel_shape=[2, 2]),
            helper.make_node("GlobalAveragePool", ["a"], ["y"]),
        ],
        {},
        (2, 4, 8, 8),
    ),
    "transposed": (
        [helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2])],
        {"w": (4, 3, 2, 2)},
        (1, 4, 5, 5),
    ),
    "gru": (
        [helper.make_node("GRU", ["x", "w", "r"], ["y"], hidden_size=3)],
        {"w": (1, 9, 4), "r": (1, 9, 3)},
        (5, 2, 4),
    ),
}


def model_of(case: str, kind: int) -> bytes:
    nodes, weights, shape = CASES[case]
    dtype = KINDS[kind]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        [weight(name, *dims, dtype=dtype) for name, dims in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    return bytes(model.SerializeToString())


def test_what_lies_between_is_not_rounded() -> None:
    graph = load(model_of("conv", TensorProto.FLOAT16)).graph
    infer(graph)
    widen_halves(graph)
    casts = [n for n in graph.nodes if n.op.name == "Cast"]
    assert [str(n.outputs[0].tensor.dtype) for n in casts] == ["f32", "f16"]
    assert casts[1].outputs[0] in graph.outputs


@pytest.mark.parametrize("kind", KINDS, ids=["float16", "bfloat16"])
@pytest.mark.parametrize("case", CASES)
def test_native_and_right(case: str, kind: int) -> None:
    model, shape, dtype = model_of(case, kind), CASES[case][2], KINDS[kind]
    feed = {"x": RNG.standard_normal(shape).astype(dtype)}
    fast = sdx.InferenceSession(model)
    assert fast._compiled.program.python_steps == 0
    plain = sdx.SessionOptions()
    plain.graph_optimization_level = Level.ORT_DISABLE_ALL
    wanted = sdx.InferenceSession(model, plain).run(None, feed)[0]
    found = fast.run(None, feed)[0]
    assert found.dtype == wanted.dtype == dtype
    rounding = 2 * float(ml_dtypes.finfo(dtype).eps)
    np.testing.assert_allclose(
        found.astype(np.float32), wanted.astype(np.float32), rtol=rounding, atol=rounding
    )
