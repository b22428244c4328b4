"""Models that contradict ONNX in ways that onnxruntime tolerates: run alike, with one warning."""

from __future__ import annotations

import logging
import re
from typing import Any

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.errors import InvalidGraph

F = TensorProto.FLOAT
X = np.float32([[1, -2, 3, 0.5]])
SCALE = np.float32([1, 2, 3, 4])


def model(
    nodes: list[onnx.NodeProto],
    opsets: dict[str, int],
    given: dict[str, Any],
    constants: dict[str, Any] | None = None,
) -> bytes:
    kinds = {k: helper.np_dtype_to_tensor_dtype(v.dtype) for k, v in given.items()}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(k, kinds[k], v.shape) for k, v in given.items()],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(v, k) for k, v in (constants or {}).items()],
    )
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    made: bytes = helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()
    return made


def node(op: str, inputs: str, domain: str = "", **attrs: Any) -> onnx.NodeProto:
    names = [n.replace("_", "") for n in inputs.split()]
    outputs = ["y", "state"] if op == "LinearAttention" else ["y"]
    return helper.make_node(op, names, outputs, domain=domain, **attrs)


def loop() -> onnx.NodeProto:
    """A loop whose body declares its counter and condition as vectors."""
    body = helper.make_graph(
        [
            helper.make_node("Squeeze", ["i"], ["n"], axes=[0]),
            helper.make_node("Cast", ["n"], ["f"], to=F),
            helper.make_node("Add", ["v", "f"], ["w"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, [1]),
            helper.make_tensor_value_info("c", TensorProto.BOOL, [1]),
            helper.make_tensor_value_info("v", F, None),
        ],
        [
            helper.make_tensor_value_info("c", TensorProto.BOOL, [1]),
            helper.make_tensor_value_info("w", F, None),
        ],
    )
    return helper.make_node("Loop", ["m", "", "x"], ["y"], body=body)


def empty_if() -> onnx.NodeProto:
    body = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["z"])], "b", [], [onnx.ValueInfoProto(name="z")]
    )
    return helper.make_node("If", [], [], then_branch=body, else_branch=body)


def renamed(**constants: Any) -> bytes:
    """x + c + c, with another Constant node of that name before the last sum."""
    nodes = [
        helper.make_node("Constant", [], ["c"], value_float=2.0),
        helper.make_node("Add", ["x", "c"], ["a"]),
        helper.make_node("Constant", [], ["c"], value_float=3.0),
        helper.make_node("Add", ["a", "c"], ["y"]),
    ]
    return model(nodes[bool(constants) :], {"": 17}, {"x": X}, constants)


MS = "com.microsoft"
LINEAR = np.random.default_rng(1).standard_normal((1, 3, 8)).astype(np.float32) * 0.3
QKV = np.arange(16, dtype=np.float32).reshape(1, 2, 8) / 8
NORM = {"x": X.astype(np.float16)}
TABLE: dict[str, tuple[bytes, dict[str, Any], str]] = {
    "com.microsoft is not imported": (
        model([node("Gelu", "x", MS)], {"": 17}, {"x": X}), {"x": X},
        "uses com.microsoft and does not import",
    ),
    "ai.onnx is not imported": (
        model([node("Softmax", "x", axis=-1)], {MS: 1}, {"x": X}), {"x": X},
        "uses ai.onnx and does not import",
    ),
    "ai.onnx.ml is not imported": (
        model([node("Binarizer", "x", "ai.onnx.ml")], {"": 17}, {"x": X}), {"x": X},
        "uses ai.onnx.ml and does not import",
    ),
    "a misspelt attribute": (
        model([node("LayerNormalization", "x s", epsion=0.1)], {"": 17}, {"x": X}, {"s": SCALE}),
        {"x": X}, "has no attribute epsion",
    ),
    "a misspelt attribute of an old opset": (
        model([node("LayerNormalization", "x s", epsion=0.1)], {"": 12}, {"x": X}, {"s": SCALE}),
        {"x": X}, "has no attribute epsion",
    ),
    "a scale of another type": (
        model([node("LayerNormalization", "x s")], {"": 12}, NORM, {"s": SCALE}), NORM, "",
    ),
    "an axis of a scale per tensor": (
        model([node("DequantizeLinear", "q s z", MS, axis=1)], {"": 17, MS: 1},
              {"q": np.int32([1, -2, 3])}, {"s": np.float32([0.5]), "z": np.int32([0])}),
        {"q": np.int32([1, -2, 3])}, "",
    ),
    "a past's length without a past": (
        model([node("MultiHeadAttention", "q q q _ _ _ _ _ n", MS, num_heads=2)], {"": 17, MS: 1},
              {"q": QKV}, {"n": np.int32([1])}),
        {"q": QKV}, r"does not read its inputs \[8\]",
    ),
    "a decay that the rule does not read": (
        model([node("LinearAttention", "l l l p d b", MS, update_rule="delta", q_num_heads=2,
                    kv_num_heads=2)], {"": 17, MS: 1}, {"l": LINEAR},
              {"p": np.zeros((1, 2, 4, 4), np.float32), "d": -np.ones((1, 3, 2), np.float32),
               "b": np.full((1, 3, 2), 0.5, np.float32)}),
        {"l": LINEAR}, r"does not read its inputs \[4\]",
    ),
    "a mask of one column": (
        model([node("Attention", "q w b m", MS, num_heads=2)], {"": 17, MS: 1},
              {"q": QKV, "m": np.zeros((1, 1), np.int32)},
              {"w": np.float32(np.arange(192).reshape(8, 24) % 5), "b": np.zeros(24, np.float32)}),
        {"q": QKV, "m": np.zeros((1, 1), np.int32)}, "does not read a mask of one column",
    ),
    "a node without inputs and outputs": (
        model([empty_if(), node("Relu", "x")], {"": 17}, {"x": X}), {"x": X}, "is ignored",
    ),
    "a counter that is a vector": (
        model([loop()], {"": 11}, {"x": X}, {"m": np.int64(3).reshape(())}), {"x": X}, "",
    ),
    "two Constant nodes of one name": (renamed(), {"x": X}, "'c' is made twice"),
    "a Constant node with the name of an initializer": (
        renamed(c=np.float32(5)), {"x": X}, "'c' is made twice",
    ),
    "the same domain twice": (
        model([node("Relu", "x")], {"ai.onnx": 0, "": 17}, {"x": X}), {"x": X}, "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_results_equal_those_of_onnxruntime(name: str, caplog: pytest.LogCaptureFixture) -> None:
    data, feed, said = TABLE[name]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    (want,) = onnxruntime.InferenceSession(data, options).run(None, feed)
    with caplog.at_level(logging.WARNING, "sardonyx"):
        (got,) = sardonyx.InferenceSession(data).run(None, feed)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert got.dtype == want.dtype
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == bool(said)
    if said:
        assert re.search(said, warnings[0])


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (model([node("Relu", "x", alpha=1.0)], {"": 17}, {"x": X}), "Relu has no attribute alpha"),
        (model([node("Relu", "x")], {}, {"x": X}), "does not import its opset"),
        (model([node("Own", "x", "own")], {"": 17}, {"x": X}), "uses own and does not import"),
        (model([node("Relu", "x")], {"": 0}, {"x": X}), "imports opset 0"),
    ],
    ids=["attribute", "no opset", "unknown domain", "opset 0"],
)
def test_what_onnxruntime_refuses_too(made: bytes, said: str) -> None:
    with pytest.raises(InvalidGraph, match=said):
        sardonyx.InferenceSession(made)
