"""What stays as it is in fused models, nodes that are set aside, and edits of models."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.transformers import optimizer
from sardonyx.transformers.fusion_options import FusionOptions
from sardonyx.transformers.fusion_utils import FusionUtils, NumpyHelper
from sardonyx.transformers.onnx_model import OnnxModel
from sardonyx.transformers.onnx_model_bert import BertOnnxModel
from sardonyx.transformers.onnx_utils import extract_raw_data_from_model, has_external_data
from sardonyx.transformers.original_forms import restore

Array = np.ndarray[Any, Any]


def parsed(text: str, opset: int = 17) -> onnx.ModelProto:
    header = f'<ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1, "mine": 1]>'
    model: onnx.ModelProto = onnx.parser.parse_model(header + text)
    for position, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{position}"
    return model


def run(session: Any, model: onnx.ModelProto, feed: dict[str, Array]) -> list[Array]:
    results: list[Array] = session(model.SerializeToString()).run(None, feed)
    return results


def check(model: onnx.ModelProto, fused: OnnxModel, feed: dict[str, Array]) -> None:
    expected = run(onnxruntime.InferenceSession, model, feed)
    for session in (onnxruntime.InferenceSession, sardonyx.InferenceSession):
        for mine, theirs in zip(run(session, fused.model, feed), expected, strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-5)


def test_unfused_nodes_are_unchanged() -> None:
    """Constant nodes, names, and attributes that are defaults."""
    model = parsed(
        """g (float[B,3] x) => (float[B,3] z) <float[3] w = {1, 2, 3}> {
            alpha = Constant<value = float {1.702}>() one = Constant<value = float {1}>()
            same = Identity(w)
            s = Mul(alpha, x) g = Sigmoid(s) y = Mul(x, g)
            n = LeakyRelu<alpha = 0.01>(y) m = Add(n, one) z = Mul(m, same)
        }"""
    )
    fused = optimizer.optimize_model(model, opt_level=0)
    last = onnx.NodeProto.FromString(model.graph.node[8].SerializeToString())
    last.input[1] = "w"
    gelu = helper.make_node("QuickGelu", ["x"], ["y"], "QuickGelu_0", domain="com.microsoft",
                            alpha=float(np.float32(1.702)))  # fmt: skip
    expected = [gelu, model.graph.node[6], model.graph.node[7], last]
    assert list(fused.model.graph.node[1:]) == expected
    assert fused.model.graph.node[0] == model.graph.node[1]
    assert [t.name for t in fused.model.graph.initializer] == ["w"]
    check(model, fused, {"x": np.array([[-1, 0, 2]], np.float32)})


def test_older_op_versions_are_not_restored_in_a_newer_opset() -> None:
    """A LayerNormalization needs opset 17, where a Unsqueeze has its axes as an input."""
    model = parsed(
        """g (float[B,3] x) => (float[B,1,3] z)
        <float[3] w = {1, 2, 3}, float[3] b = {0, 1, 0}, float two = {2}, float e = {0.001}> {
            m = ReduceMean<axes = [-1]>(x) d = Sub(x, m) p = Pow(d, two)
            v = ReduceMean<axes = [-1]>(p) ve = Add(v, e) r = Sqrt(ve) n = Div(d, r)
            s = Mul(n, w) y = Add(s, b) z = Unsqueeze<axes = [1]>(y)
        }""", 11)  # fmt: skip
    fused = optimizer.optimize_model(model, opt_level=0)
    assert fused.get_operator_statistics() == {"LayerNormalization": 1, "Unsqueeze": 1}
    onnx.checker.check_model(fused.model, full_check=True)
    check(model, fused, {"x": np.array([[-1, 0, 2]], np.float32)})


def test_nodes_that_cannot_be_inferred_are_set_aside() -> None:
    """Ops of others, and nodes that contradict ONNX, stay where they are."""
    gate = "s = Mul(alpha, {0}) g = Sigmoid(s) y = Mul({0}, g)"
    text = "g (float[B,3] x) => (float[B,3] z) <float alpha = {1.5}, float[2] two = {1, 2}> {"
    other = parsed(text + "a = mine.Other<k = 3>(x)" + gate.format("a") + "z = mine.Other(y)}")
    fused = optimizer.optimize_model(other, opt_level=0)
    assert fused.get_operator_statistics(True) == {"mine:Other": 2, "com.microsoft:QuickGelu": 1}
    assert [v.name for v in fused.model.graph.input] == ["x"]
    assert [v.name for v in fused.model.graph.output] == ["z"]
    fused.topological_sort()
    assert fused.model.graph.node[0] == other.graph.node[0]
    wrong = parsed(
        text.replace("B,3] x", "B,3] x, float[2] t") + "r = Reshape(x, t)" + gate.format("r")
        + "z = Identity(y)}"
    )  # fmt: skip
    fused = optimizer.optimize_model(wrong, opt_level=0)
    assert fused.get_operator_statistics() == {"Reshape": 1, "QuickGelu": 1}


def test_values_of_set_aside_nodes_have_unknown_types() -> None:
    """A Cast of one stays, and other nodes have the type of what it is made of."""
    text = """g (float16[B,3] x) => (float16[B,4] z, float16[B,3] y) {
        a = mine.Other(x) f = Cast<to = 10>(a) y = Mul(f, x) z = Pad<pads = [0, 0, 0, 1]>(a)
    }"""
    fused = optimizer.optimize_model(parsed(text, 10), opt_level=0)
    counts = fused.get_operator_statistics(True)
    assert counts == {"mine:Other": 1, "Cast": 1, "Mul": 1, "Pad": 1}
    types = {t.name: t.data_type for t in fused.model.graph.initializer}
    assert TensorProto.FLOAT not in types.values()


def test_bodies_of_set_aside_nodes_read_values() -> None:
    model = parsed("""g (float[B] x) => (float[B] y) {
        h = Neg(x) y = mine.Other<body = b () => (float o) { o = Relu(h) }>(x)
    }""")
    fused = optimizer.optimize_model(model, opt_level=0)
    assert [node.op_type for node in fused.model.graph.node] == ["Neg", "Other"]


def test_defaults_of_inputs_stay() -> None:
    text = "g (float[3] x, float[3] w) => (float[3] y) <float[3] w = {1, 2, 3}> { y = Relu(x) }"
    model = parsed(text)
    fused = optimizer.optimize_model(model, opt_level=0)
    assert [value.name for value in fused.model.graph.input] == ["x", "w"]
    check(model, fused, {"x": np.float32([1, -2, 3])})


@pytest.mark.parametrize(
    ("old", "new", "opsets"),
    [
        ('GridSample<mode = "bilinear">(a, b)', "GridSample(a, b)", (16, 20)),
        ("Gemm<transA = 1>(a, b)", "Gemm(a, b)", (17, 17)),
    ],
)
def test_changed_nodes_are_not_restored(old: str, new: str, opsets: tuple[int, int]) -> None:
    """A node without an attribute has its default, which is not what the old one had."""
    signature = "g (float[2,2] a, float[2,2] b) => (float[2,2] y)"
    original, result = (
        parsed(f"{signature} {{ y = {node} }}", opset)
        for node, opset in zip((old, new), opsets, strict=True)
    )
    restore(result, original)
    assert not result.graph.node[0].attribute
    same = parsed(f"{signature} {{ y = {new} }}", opsets[0])
    restore(same, parsed(f"{signature} {{ y = {new.replace('(', '<beta = 1.0>(')} }}", opsets[0]))
    assert len(same.graph.node[0].attribute) == new.startswith("Gemm")


def test_misspelt_attributes_stay() -> None:
    norm = "LayerNormalization<axis = -1, epsion = 0.001>(x, w)"
    model = parsed(f"g (float[1,2] x, float[2] w) => (float[1,2] y) {{ y = {norm} }}")
    fused = optimizer.optimize_model(model, opt_level=0)
    assert fused.model.graph.node[0] == model.graph.node[0]


def test_models_of_which_nothing_can_be_inferred_stay(caplog: pytest.LogCaptureFixture) -> None:
    model = parsed("g (float[3] x) => (float[3] y) { y = Relu(nothing) }")
    fused = optimizer.optimize_model(model, opt_level=0)
    assert fused.model is model
    assert "nothing makes the value 'nothing'" in caplog.text


MASKED = """g (int64[B,S] ids, int64[B,S] mask) => (float[B,S,4] y)
<int64[1] rows = {1}, float[4] scale = {1, 2, 3, 4}, float[4] shift = {0, 1, 2, 3}> {
    word = Gather(words, ids) place = Gather(places, ids) sum = Add(word, place)
    x = LayerNormalization<axis = -1, epsilon = 0.001>(sum, scale, shift)
    m = Cast<to = 6>(mask) lengths = ReduceSum<keepdims = 0>(m, rows)
    y = com.microsoft.Attention<num_heads = 2>(x, w, b, lengths)
}"""


def test_embeddings_count_the_rows_of_a_mask() -> None:
    model, rng = parsed(MASKED), np.random.default_rng(0)
    for name, dims in {"words": (9, 4), "places": (9, 4), "w": (4, 12), "b": (12,)}.items():
        tensor = numpy_helper.from_array(rng.standard_normal(dims).astype(np.float32), name)
        model.graph.initializer.append(tensor)
    feed = {"ids": np.array([[1, 8, 0], [4, 4, 7]]), "mask": np.array([[1, 1, 0], [1, 1, 1]])}
    fused = optimizer.optimize_model(model, opt_level=0)
    counts = fused.get_operator_statistics()
    assert counts == {"EmbedLayerNormalization": 1, "Attention": 1, "Cast": 2}
    check(model, fused, feed)
    raw = FusionOptions("bert")
    raw.use_raw_attention_mask()
    apart = optimizer.optimize_model(model, optimization_options=raw, opt_level=0)
    assert apart.get_operator_statistics()["ReduceSum"] == 1
    check(model, apart, feed)


SHAPED = """g (int64[B,S] ids, float[B,S,4] x) => (float[B,S,4] y)
<int64 zero = {0}, int64 one = {1}, int64[1] axis = {0}, int64[1] rows = {1}> {
    s0 = Shape(ids) s1 = Shape(ids) d0 = Gather(s0, zero) d1 = Gather(s1, one)
    u0 = Unsqueeze(d0, axis) u1 = Unsqueeze(d1, axis) dims = Concat<axis = 0>(u0, u1)
    ones = ConstantOfShape<value = float[1] {1}>(dims) whole = Cast<to = 6>(ones)
    lengths = ReduceSum<keepdims = 0>(whole, rows)
    y = com.microsoft.Attention<num_heads = 2>(x, w, b, lengths)
}"""


def test_cleanup_of_masks_of_ones() -> None:
    model = parsed(SHAPED)
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 12), np.float32), "w"))
    model.graph.initializer.append(numpy_helper.from_array(np.ones(12, np.float32), "b"))
    cleaned = BertOnnxModel(onnx.ModelProto.FromString(model.SerializeToString()))
    cleaned.clean_graph()
    (constant,) = cleaned.get_nodes_by_op_type("ConstantOfShape")
    value = numpy_helper.to_array(OnnxModel.get_node_attribute(constant, "value"))
    assert (value.dtype, value.tolist(), constant.input[0]) == (np.int32, [1], "s0")
    cleaned.prune_graph(allow_remove_graph_inputs=False)
    assert cleaned.get_operator_statistics() == {"Attention": 1}
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    check(model, cleaned, {"ids": np.zeros((2, 3), np.int64), "x": x})


def test_edits_of_nodes() -> None:
    model = OnnxModel(parsed(
        """g (int64[B,3] x, float[B,3] f) => (float[B,3] y) <int64[1] first = {0}> {
            i = Identity(x) u = Unsqueeze(i, first) n = Cast<to = 1>(u) a = Squeeze(n, first)
            r = Relu(f) t = Relu(r) y = Add(a, t)
        }"""))  # fmt: skip
    utils = FusionUtils(model)
    assert utils.cast_graph_input_to_int32("x") == (True, "x_int32")
    assert utils.cast_graph_input_to_int32("n") == (False, "n")
    assert model.output_name_to_node()["x_int32"].input[0] == "x"
    utils.remove_cast_int32("x")
    utils.remove_identity_nodes()
    (unsqueeze,) = model.get_nodes_by_op_type("Unsqueeze")
    assert unsqueeze.input[0] == "x"
    assert utils.get_squeeze_or_unsqueeze_axes(unsqueeze) == 0
    assert utils.check_node_input_value(unsqueeze, 1, [0])
    (cast,) = model.get_nodes_by_op_type("Cast")
    assert utils.check_node_attribute(cast, "to", TensorProto.FLOAT)
    assert not utils.check_node_attribute(cast, "saturate", 0, 1)
    first, second = model.get_nodes_by_op_type("Relu")
    assert FusionUtils.skip_parent(model, second, first, model.input_name_to_nodes())
    assert second.input[0] == "f"


def test_quantized_nodes_and_tensors() -> None:
    model = OnnxModel(parsed(
        """g (float[3] x) => (uint8[3] y, uint8[3] z)
        <float s = {0.1}, uint8 zero = {0}, uint8 one = {1}> {
            y = QuantizeLinear(x, s, zero) z = QuantizeLinear(x, s, one)
        }"""))  # fmt: skip
    is_symmetric = [FusionUtils.check_qdq_node_for_fusion(n, model) for n in model.nodes()]
    assert is_symmetric == [True, False]
    matrix = numpy_helper.from_array(np.arange(6, dtype=np.int8).reshape(2, 3), "m")
    FusionUtils.transpose_2d_int8_tensor(matrix)
    assert matrix.raw_data == bytes([0, 3, 1, 4, 2, 5])
    with pytest.raises(ValueError, match="v is not an int8 matrix"):
        FusionUtils.transpose_2d_int8_tensor(numpy_helper.from_array(np.zeros(3, np.int8), "v"))
    assert NumpyHelper.to_array(matrix, fill_zeros=True).tolist() == [[0, 0, 0], [0, 0, 0]]


def test_removed_weights() -> None:
    model = parsed("g (float[3] x) => (float[3] y) { y = Add(x, w) }")
    model.graph.initializer.append(numpy_helper.from_array(np.float32([1, 2, 3]), "w"))
    assert not has_external_data(model)
    names, values = extract_raw_data_from_model(model)
    assert names == ("w",)
    assert values[0].numpy().tolist() == [1, 2, 3]
    assert has_external_data(model)
    options = sardonyx.SessionOptions()
    options.add_external_initializers(list(names), list(values))
    session = sardonyx.InferenceSession(model.SerializeToString(), options)
    assert session.run(None, {"x": np.ones(3, np.float32)})[0].tolist() == [2, 3, 4]
