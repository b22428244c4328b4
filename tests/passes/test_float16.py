"""float16 ops that compute in float32: all run natively, with the right rounding."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx as sdx
from sardonyx.graph.infer import infer
from sardonyx.load import load
from sardonyx.ort.enums import GraphOptimizationLevel as Level
from sardonyx.passes.float16 import widen_float16

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
    "block": (
        [
            helper.make_node("MatMul", ["x", "w"], ["m"]),
            helper.make_node("Add", ["m", "b"], ["a"]),
            helper.make_node("Gelu", ["a"], ["g"]),
            helper.make_node("Split", ["g"], ["g0", "g1"], axis=-1, num_outputs=2),
            helper.make_node("Transpose", ["g1"], ["t"], perm=[0, 1, 3, 2]),
            helper.make_node("MatMul", ["g0", "t"], ["s"]),
            helper.make_node("Softmax", ["s"], ["p"]),
            helper.make_node("MatMul", ["p", "g1"], ["o"]),
            helper.make_node("MatMul", ["o", "v"], ["d"]),
            helper.make_node("Add", ["x", "d"], ["r"]),
            helper.make_node("LayerNormalization", ["r", "n"], ["l"]),
            helper.make_node("Concat", ["l", "x"], ["y"], axis=-1),
        ],
        {"w": (9, 12), "b": (12,), "v": (6, 9), "n": (9,)},
        (2, 3, 7, 9),
    ),
    "gru": (
        [helper.make_node("GRU", ["x", "w", "r"], ["y"], hidden_size=3)],
        {"w": (1, 9, 4), "r": (1, 9, 3)},
        (5, 2, 4),
    ),
}


def model_of(nodes: list[Any], weights: list[Any], kind: int, shape: tuple[int, ...]) -> Any:
    """Nodes from x to y."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def test_values_between_widened_ops_are_float32() -> None:
    nodes, weights, shape = CASES["conv"]
    given = [weight(name, *dims, dtype=np.float16) for name, dims in weights.items()]
    model = model_of(nodes, given, TensorProto.FLOAT16, shape)
    graph = load(model.SerializeToString()).graph
    infer(graph)
    widen_float16(graph)
    casts = [n for n in graph.nodes if n.op.name == "Cast"]
    assert [str(n.outputs[0].tensor.dtype) for n in casts] == ["f32", "f16"]
    assert casts[1].outputs[0] in graph.outputs


@pytest.mark.parametrize("kind", KINDS, ids=["float16", "bfloat16"])
@pytest.mark.parametrize("case", CASES)
def test_widened_ops(case: str, kind: int) -> None:
    nodes, weights, shape = CASES[case]
    dtype = KINDS[kind]
    given = [weight(name, *dims, dtype=dtype) for name, dims in weights.items()]
    model = model_of(nodes, given, kind, shape)
    feed = {"x": RNG.standard_normal(shape).astype(dtype)}
    fast = sdx.InferenceSession(model.SerializeToString())
    assert fast._compiled.program.python_steps == 0
    plain = sdx.SessionOptions()
    plain.graph_optimization_level = Level.ORT_DISABLE_ALL
    wanted = sdx.InferenceSession(model.SerializeToString(), plain).run(None, feed)[0]
    found = fast.run(None, feed)[0]
    assert found.dtype == wanted.dtype == dtype
    rounding = 2 * float(ml_dtypes.finfo(dtype).eps)
    np.testing.assert_allclose(
        found.astype(np.float32), wanted.astype(np.float32), rtol=rounding, atol=rounding
    )


def test_no_rounding_between_widened_ops() -> None:
    """A sum beyond the range of f16 that is scaled down again is the number that it is."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Reshape", ["m", "s"], ["r"]),
        helper.make_node("Mul", ["r", "c"], ["y"]),
    ]
    weights = [
        numpy_helper.from_array(np.full((64, 5), 200, np.float16), "w"),
        numpy_helper.from_array(np.array([15]), "s"),
        numpy_helper.from_array(np.array(2.0**-10, np.float16), "c"),
    ]
    model = model_of(nodes, weights, TensorProto.FLOAT16, (3, 64)).SerializeToString()
    y = sdx.InferenceSession(model).run(None, {"x": np.full((3, 64), 100, np.float16)})[0]
    np.testing.assert_array_equal(y, np.full(15, 1250, np.float16))


@pytest.mark.parametrize("op", ["Cast", "ArgMax", "Greater"])
def test_ops_with_other_results_read_rounded_values(op: str) -> None:
    """Exactly the numbers that a product of f16 has."""
    attrs: dict[str, dict[str, Any]] = {"Cast": {"to": TensorProto.FLOAT}}
    read = ["m", "z"] if op == "Greater" else ["m"]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node(op, read, ["t"], **attrs.get(op, {})),
        helper.make_node("Cast", ["t"], ["y"], to=TensorProto.FLOAT16),
    ]
    # 2049 is not a number of f16, and 2048 is its neighbour.
    w = np.array([[2048, 2048], [0, 1]], np.float16)
    zero = numpy_helper.from_array(np.array(2048, np.float16), "z")
    model = model_of(nodes, [numpy_helper.from_array(w, "w"), zero], TensorProto.FLOAT16, (1, 2))
    y = sdx.InferenceSession(model.SerializeToString()).run(
        None, {"x": np.ones((1, 2), np.float16)}
    )
    want = {"Cast": [[2048, 2048]], "ArgMax": [[0, 0]], "Greater": [[0, 0]]}[op]
    np.testing.assert_array_equal(y[0], np.array(want, np.float16))


def test_a_cast_to_bfloat16_rounds() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Cast", ["m"], ["b"], to=TensorProto.BFLOAT16),
        helper.make_node("Cast", ["b"], ["c"], to=TensorProto.FLOAT16),
        helper.make_node("Add", ["c", "m"], ["y"]),
    ]
    w = numpy_helper.from_array(np.array([[257]], np.float16), "w")
    model = model_of(nodes, [w], TensorProto.FLOAT16, (1, 1)).SerializeToString()
    y = sdx.InferenceSession(model).run(None, {"x": np.ones((1, 1), np.float16)})[0]
    np.testing.assert_array_equal(y, np.array([[256 + 257]], np.float16))


def test_caches_stay_float16() -> None:
    """Keys and values that come from outside are read as they are, not cast in every run."""
    nodes = [
        helper.make_node("Slice", ["x", "from", "to", "axis"], ["last"]),
        helper.make_node("MatMul", ["last", "w"], ["m"]),
        helper.make_node("Attention", ["m", "x", "x"], ["y"]),
    ]
    bounds = {"from": 8, "to": 9, "axis": 2}
    numbers = [numpy_helper.from_array(np.array([i]), name) for name, i in bounds.items()]
    weights = [weight("w", 16, 16, dtype=np.float16), *numbers]
    model = model_of(nodes, weights, TensorProto.FLOAT16, (1, 2, 9, 16))
    model.opset_import[0].version = 23
    run = sdx.InferenceSession(model.SerializeToString())
    (attention,) = (n for n in run._compiled.model.graph.nodes if n.op.name == "Attention")
    assert {v.tensor.dtype.name for v in attention.inputs if v is not None} == {"f16"}


@pytest.mark.parametrize("onnx_type", KINDS, ids=["f16", "bf16"])
@pytest.mark.parametrize(
    ("op", "attrs"), [("Gemm", {"transB": 1}), ("MatMul", {}), ("Conv", {"kernel_shape": [1]})]
)
def test_operands_of_unknown_rank(op: str, attrs: dict[str, Any], onnx_type: int) -> None:
    """Only one operand is of a known rank: the node stays as it is, in one type."""
    dtype = KINDS[onnx_type]
    x = {"Gemm": (5, 3), "MatMul": (3, 5), "Conv": (4, 3, 1)}[op]
    fed = (RNG.standard_normal(x) / 4).astype(dtype)
    first = weight("a", *{"Gemm": (2, 3), "MatMul": (2, 3), "Conv": (2, 3, 7)}[op], dtype=dtype)
    node = helper.make_node(op, ["a", "x"], ["m"], **attrs)
    relu = helper.make_node("Relu", ["m"], ["y"])
    made = []
    for shape in (None, x):
        given = helper.make_tensor_value_info("x", onnx_type, shape)
        wanted = helper.make_tensor_value_info("y", onnx_type, None)
        graph = helper.make_graph([node, relu], "g", [given], [wanted], [first])
        opsets = [helper.make_opsetid("", 22)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        made += sdx.InferenceSession(model.SerializeToString()).run(None, {"x": fed})
    gap = np.abs(made[0].astype(np.float32) - made[1].astype(np.float32))
    assert gap.max() <= np.abs(made[1].astype(np.float32)).max() * 2**-6
