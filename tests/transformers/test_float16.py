"""Models and tensors in float16, by the functions of onnxruntime.transformers.float16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.models import DIGITS
from sardonyx.transformers import float16

NUMBERS = np.array([0, 1e-9, -1e-9, 1e6, -1e6, np.inf, -np.inf, np.nan, 1.5], np.float32)
LEAST = 5.96e-08
ROUNDED = np.array([0, LEAST, -LEAST, 65504, -65504, np.inf, -np.inf, np.nan, 1.5], np.float16)


@pytest.mark.parametrize("raw", [True, False])
def test_tensors(raw: bool) -> None:
    data: Any = NUMBERS.tobytes() if raw else NUMBERS
    tensor = helper.make_tensor("w", TensorProto.FLOAT, [3, 3], data, raw)
    half = float16.convert_tensor_float_to_float16(tensor)
    assert half is tensor
    np.testing.assert_equal(numpy_helper.to_array(half), ROUNDED.reshape(3, 3))
    np.testing.assert_equal(float16.convert_np_to_float16(NUMBERS), ROUNDED)
    info = float16.make_value_info_from_tensor(half)
    assert info.type.tensor_type.elem_type == TensorProto.FLOAT16
    integers = numpy_helper.from_array(np.arange(3), "i")
    assert float16.convert_tensor_float_to_float16(integers).data_type == TensorProto.INT64
    exact = numpy_helper.from_array(np.array([1, 2048, 2049], np.float32))
    assert float16.float_to_float16_max_diff(exact) == 1


def test_wrong_arguments() -> None:
    for call in (float16.convert_tensor_float_to_float16, float16.float_to_float16_max_diff):
        with pytest.raises(ValueError, match="Expected input type is an ONNX TensorProto"):
            call(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="float"):
        float16.float_to_float16_max_diff(numpy_helper.from_array(np.arange(3)))
    with pytest.raises(ValueError, match="Expected an ONNX ModelProto"):
        float16.convert_float_to_float16(3)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="min_positive_val"):
        float16.convert_float_to_float16(DIGITS, min_positive_val=0.0)


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}')


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "Relu Cast Range Cast Add"),
        ({"op_block_list": []}, "Relu Cast Range Cast Add"),  # Range has no half in this opset
        ({"keep_io_types": ["y"]}, "Relu Cast Range Cast Add Cast"),
        ({"keep_io_types": True}, "Cast Relu Range Cast Add Cast"),
        ({"node_block_list": ["sum"]}, "Relu Cast Range Cast Add Cast"),
    ],
)
def test_models(options: dict[str, Any], expected: str) -> None:
    model = parsed(
        "(float[3] x, float n) => (float[3] y) { a = Relu(x) r = Range(z, n, o) y = Add(a, r) }"
    )
    model.graph.node[2].name = "sum"
    for name, number in {"z": 0, "o": 1}.items():
        model.graph.initializer.append(numpy_helper.from_array(np.float32(number), name))
    half = float16.convert_float_to_float16(model, **options)
    onnx.checker.check_model(half, full_check=True)
    assert sorted(n.op_type for n in half.graph.node) == sorted(expected.split())
    assert [n.op_type for n in model.graph.node] == ["Relu", "Range", "Add"]
    session = sardonyx.InferenceSession(half)
    types = {i.name: np.float32 if i.type == "tensor(float)" else np.float16
             for i in session.get_inputs()}  # fmt: skip
    (y,) = session.run(None, {"x": np.ones(3, types["x"]), "n": np.array(3, types["n"])})
    np.testing.assert_array_equal(y, [1, 2, 3])


@pytest.mark.parametrize(
    ("options", "scales", "n_casts"),
    [
        ({}, TensorProto.FLOAT, 0),
        ({"force_fp16_initializers": True}, TensorProto.FLOAT16, 1),
    ],
)
def test_forced_weights(options: dict[str, Any], scales: int, n_casts: int) -> None:
    model = parsed('(float[1,1,2,2] x) => (float[1,1,4,4] y) { y = Resize(x, "", s) }')
    model.graph.initializer.append(numpy_helper.from_array(np.float32([1, 1, 2, 2]), "s"))
    half = float16.convert_float_to_float16(model, **options)
    assert {t.name: t.data_type for t in half.graph.initializer}["s"] == scales
    assert sum(n.op_type == "Cast" for n in half.graph.node) == n_casts


def test_blocked_nodes_in_bfloat16() -> None:
    model = parsed("(float[3] x) => (float[3] y) { a = Relu(x) y = Exp(a) }")
    half = float16.convert_float_to_float16(
        model, op_block_list=["Exp"], use_bfloat16_as_blocked_nodes_dtype=True
    )
    casts = [n for n in half.graph.node if n.op_type == "Cast"]
    assert [c.attribute[0].i for c in casts] == [TensorProto.BFLOAT16, TensorProto.FLOAT16]


def test_paths(tmp_path: Path) -> None:
    onnx.save(onnx.load(DIGITS), tmp_path / "m.onnx", save_as_external_data=True, location="w",
              size_threshold=0)  # fmt: skip
    half = float16.convert_float_to_float16(str(tmp_path / "m.onnx"))
    assert all(t.data_type != TensorProto.FLOAT for t in half.graph.initializer)
