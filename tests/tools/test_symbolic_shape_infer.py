"""Symbolic shape inference over ModelProtos: names, formulas, bodies, errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from sardonyx.tools.symbolic_shape_infer import (
    IncompleteInference,
    SymbolicShapeInference,
    get_opset,
    get_shape_from_value_info,
    main,
)

Shapes = dict[str, list[int | str | None] | None]


def shapes(text: str, **weights: np.ndarray) -> Shapes:  # type: ignore[type-arg]
    """The shapes that inference gives the values of a model as text."""
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> g {text}'
    )
    for name, array in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    inferred = SymbolicShapeInference.infer_shapes(model)
    assert inferred is not None
    graph = inferred.graph
    return {v.name: get_shape_from_value_info(v) for v in (*graph.value_info, *graph.output)}


CASES: dict[str, tuple[str, Shapes]] = {
    "names": ("(float[B,S,8] x) => (float y) { t = Transpose<perm=[1,0,2]>(x) y = Relu(t) }",
              {"t": ["S", "B", 8], "y": ["S", "B", 8]}),
    "formulas": ("(float[B,S] x, float[B,2] z) => (float y) { y = Concat<axis=1>(x, z) }",
                 {"y": ["B", "S + 2"]}),
    "products": ("(float[B,S,4] x) => (float y) { y = Flatten<axis=2>(x) }", {"y": ["B*S", 4]}),
    "shape arithmetic": (
        """(float[B,S,4] x, float[B,S] z) => (float y) {
            s = Shape(z) d = Gather(s, i) c = Concat<axis=0>(d, m) y = Reshape(x, c)
        }""",
        {"s": [2], "d": [1], "c": [2], "y": ["S", "4*B"]},
    ),
    "sizes of data": ("(float[B] x) => (int64 y) { n = NonZero(x) y = Transpose(n) }",
                      {"n": [1, "unk__0"], "y": ["unk__0", 1]}),
    "large symbols": (
        "(float[B] x) => (float y) { y = Slice(x, a, b) }", {"y": [9]},
    ),
    "names that are no identifiers": (
        '(float["past length"] x) => (float y) { y = Relu(x) }', {"y": ["past length"]},
    ),
    "com.microsoft": ("(float[B,8] x) => (float y) { y = com.microsoft.FastGelu(x) }",
                      {"y": ["B", 8]}),
}  # fmt: skip
WEIGHTS = {
    "shape arithmetic": {"i": np.array([1]), "m": np.array([-1])},
    "large symbols": {"a": np.array([-10]), "b": np.array([-1])},
}


@pytest.mark.parametrize("name", CASES)
def test_shapes(name: str) -> None:
    text, expected = CASES[name]
    if "past length" in text:
        text = text.replace('"past length"', "past")
    assert shapes(text, **WEIGHTS.get(name, {})) == {
        key: ["past" if d == "past length" else d for d in dims or ()]
        for key, dims in expected.items()
    }


def test_weights_are_not_read_and_bodies_are_annotated(tmp_path: Path) -> None:
    t, e = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "te")
    then = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["t"])], "then", [], [t])
    other = helper.make_graph([helper.make_node("Identity", ["x"], ["e"])], "else", [], [e])
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    graph = helper.make_graph(
        [node], "g",
        [helper.make_tensor_value_info("c", TensorProto.BOOL, []),
         helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.zeros((64, 64), np.float32), "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(
        model, tmp_path / "m.onnx", save_as_external_data=True, location="w", size_threshold=0
    )
    (tmp_path / "w").unlink()
    without = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    inferred = SymbolicShapeInference.infer_shapes(without)
    assert inferred is not None
    assert get_shape_from_value_info(inferred.graph.output[0]) == ["B", 64]
    body = inferred.graph.node[0].attribute[0].g
    assert get_shape_from_value_info(body.output[0]) == ["B", 64]
    assert inferred.graph.initializer == without.graph.initializer


def test_errors() -> None:
    with pytest.raises(IncompleteInference, match="the rank of y is not known"):
        shapes("(float[B,S] x, int64[N] s) => (float y) { y = Reshape(x, s) }")
    with pytest.raises(ValueError, match=r"Add.*f32 is FLOAT.*i64 is INT64|i64 is INT64"):
        shapes("(float[B] x, int64[B] z) => (float y) { y = Add(x, z) }")
    old = helper.make_model(helper.make_graph([], "g", [], []),
                            opset_imports=[helper.make_opsetid("", 6)])  # fmt: skip
    assert get_opset(old) == 6
    assert SymbolicShapeInference.infer_shapes(old) is None


def test_command_line(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[B] x) => (float[C] y) { y = Relu(x) }'
    )
    onnx.save(model, tmp_path / "m.onnx")
    main(["--input", str(tmp_path / "m.onnx"), "--output", str(tmp_path / "o.onnx")])
    assert get_shape_from_value_info(onnx.load(tmp_path / "o.onnx").graph.output[0]) == ["B"]
