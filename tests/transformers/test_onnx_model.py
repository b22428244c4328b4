"""Edits and lookups of `OnnxModel`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from sardonyx.models import DIGITS
from sardonyx.transformers.onnx_model import OnnxModel
from sardonyx.transformers.shape_infer_helper import SymbolicShapeInferenceHelper

TEXT = """<ir_version: 8, opset_import: ["": 17]> g
(float[B,3] x, float[3] unused) => (float[B,3] y)
<float[3] w = {1, 2, 3}, float[3] same = {1, 2, 3}, float[1] two = {2}, float[3] dead = {0, 0, 0}> {
    a = Add(x, w)
    b = Mul(a, two)
    c = Relu(b)
    d = Add(c, same)
    e = Exp(dead)
    y = Relu(d)
}"""


@pytest.fixture
def model() -> OnnxModel:
    found = OnnxModel(onnx.parser.parse_model(TEXT))
    for name, node in zip("abcdey", found.nodes(), strict=True):
        node.name = f"node_{name}"
    return found


def names(nodes: Any) -> list[str] | None:
    return None if nodes is None else [node.name.removeprefix("node_") for node in nodes]


def test_parents_and_children(model: OnnxModel) -> None:
    a, b, c, d, _, y = model.nodes()
    assert names(model.get_children(a)) == ["b"]
    assert names(model.get_children(a, output_index=1)) == []
    assert names(model.get_parents(d)) == ["c"]
    assert model.get_parent(d, 0) == c
    assert model.get_parent(d, 5) is None
    assert model.match_parent(y, "Add", 0) == d
    assert model.match_parent(y, "Mul", 0) is None
    assert model.match_parent(y, "Add", None, exclude=[d]) is None
    assert model.match_parent(d, "Mul", 1) is None
    assert names(model.match_parent_path(y, ["Add", "Relu", "Mul"], [0, 0, 0])) == ["d", "c", "b"]
    assert model.match_parent_path(y, ["Add", "Mul"]) is None
    makers, found = model.output_name_to_node(), []
    paths = [(["Mul"], [0]), (["Add", "Relu"], [None, None])]
    assert model.match_parent_path(y, *paths[1], makers, found) == [d, c]
    assert found == [0, 0]
    assert model.match_parent_paths(y, paths, makers)[0] == 1
    assert model.match_parent_paths(y, paths[:1], makers) == (-1, None, None)
    assert model.match_parent_paths_all(y, [*paths, *paths], makers)[0] == [1, 3]
    assert names(model.match_child_path(a, ["Mul", "Relu"], [(0, 0), (0, 0)])) == ["b", "c"]
    assert model.match_child_path(a, ["Mul", "Exp"]) is None
    assert model.find_first_child_by_type(a, "Relu") == c
    assert model.find_first_child_by_type(a, "Relu", recursive=False) is None
    assert model.find_first_parent_by_type(y, "Mul") == b
    assert names(model.get_parent_subgraph_nodes(y, [b])) == ["d", "c"]
    assert names(model.get_children_subgraph_nodes(a, [d])) == ["b", "c"]
    assert model.get_graph_inputs(y, recursive=True) == ["x"]
    assert model.input_index("same", d) == 1
    readers = model.input_name_to_nodes()
    assert model.is_safe_to_fuse_nodes([a, b], ["b"], readers, makers)
    assert not model.is_safe_to_fuse_nodes([a], [], readers, makers)


def test_constants_and_types(model: OnnxModel) -> None:
    a, b, *_ = model.nodes()
    assert model.get_constant_value("w").tolist() == [1, 2, 3]
    assert model.get_constant_value("a") is None
    assert model.find_constant_input(b, 2.0) == 1
    assert not model.has_constant_input(a, 1.0)
    assert model.is_constant_with_specified_dimension("w", 1, "bias")
    assert model.get_dtype("w") == model.get_dtype("x") == TensorProto.FLOAT
    assert (model.get_shape("w"), model.get_shape("x")) == ([3], ["B", 3])
    helper_ = model.infer_runtime_shape({"B": 2})
    assert isinstance(helper_, SymbolicShapeInferenceHelper)
    assert helper_.get_edge_shape("d") == [2, 3]
    assert helper_.compare_shape("a", "d")
    assert model.get_shape("d", helper_) == [2, 3]
    assert helper_.get_edge_shape("nothing") is None
    with pytest.raises(ValueError, match="nothing"):
        helper_.compare_shape("a", "nothing")
    model.disable_shape_inference()
    assert model.infer_runtime_shape() is None
    assert model.get_opset_version() == 17
    assert model.get_operator_statistics() == {"Add": 2, "Mul": 1, "Relu": 2, "Exp": 1}


def test_edits(model: OnnxModel) -> None:
    model.prune_graph()
    assert names(model.nodes()) == list("abcdy")
    assert [i.name for i in model.graph().input] == ["x"]
    assert {t.name for t in model.graph().initializer} == {"w", "same", "two"}
    model.remove_duplicated_initializer(None)
    assert {t.name for t in model.graph().initializer} == {"w", "two"}
    model.remove_node(model.nodes()[2])
    model.replace_input_of_all_nodes("c", "b")
    model.add_node(helper.make_node("Neg", ["y"], ["z"], name=model.create_node_name("Neg")))
    assert model.create_node_name("Neg") == "Neg_1"
    model.rename_graph_output("y", "result")
    with pytest.raises(RuntimeError, match="a exists in graph"):
        model.rename_graph_output("result", "a")
    model.add_prefix_to_names("p/")
    onnx.checker.check_model(model.model, full_check=True)
    assert [n.output[0] for n in model.nodes()] == ["p/a", "p/b", "p/d", "result", "p/z"]
    model.prune_graph(["result"])
    assert len(model.nodes()) == 4


def test_types_of_inputs_and_outputs(model: OnnxModel) -> None:
    graph = model.graph()
    cast, removed = model.change_graph_input_type(graph.input[0], TensorProto.FLOAT16)
    assert cast is not None
    assert (cast.op_type, removed) == ("Cast", [])
    assert model.change_graph_output_type(graph.output[0], TensorProto.DOUBLE) is not None
    assert model.change_graph_output_type(graph.output[0], TensorProto.DOUBLE) is None
    model.topological_sort()
    onnx.checker.check_model(model.model, full_check=True)
    cast, removed = model.change_graph_input_type(graph.input[0], TensorProto.FLOAT)
    assert cast is None
    assert [node.op_type for node in removed] == ["Cast"]
    model.remove_useless_cast_nodes()
    onnx.checker.check_model(model.model, full_check=True)


def test_consecutive_casts() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[3] x) => (float[3] y) {
        a = Cast<to=11>(x) b = Cast<to=1>(a) y = Relu(b) }"""
    model = OnnxModel(onnx.parser.parse_model(text))
    model.remove_cascaded_cast_nodes()
    assert [n.op_type for n in model.nodes()] == ["Cast", "Relu"]
    model.remove_useless_cast_nodes()
    assert [n.op_type for n in model.nodes()] == ["Relu"]


def test_sorting_and_saving(tmp_path: Path) -> None:
    model = OnnxModel(onnx.load(DIGITS))
    ops = [node.op_type for node in model.nodes()]
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in reversed(model.nodes())]
    del model.graph().node[:]
    model.add_nodes(nodes)
    model.save_model_to_file(str(tmp_path / "a" / "m.onnx"), use_external_data_format=True)
    assert (tmp_path / "a" / "m.onnx.data").exists()
    assert [n.op_type for n in onnx.load(tmp_path / "a" / "m.onnx").graph.node] == ops
    assert not any(t.external_data for t in model.graph().initializer)
    model.save(model.model, str(tmp_path / "b" / "m.onnx"), True, all_tensors_to_one_file=False)
    assert len(list((tmp_path / "b").iterdir())) > 2
    model = OnnxModel(onnx.load(DIGITS))  # onnx moves the weights of what it saves this way
    model.convert_float_to_float16(keep_io_types=False)
    assert model.use_float16()
    assert all(t.data_type == TensorProto.FLOAT16 for t in model.graph().initializer)
    model.clean_shape_infer()
    assert not model.graph().value_info
    looped = onnx.ModelProto()
    looped.graph.node.append(helper.make_node("Relu", ["b"], ["a"], name="first"))
    looped.graph.node.append(helper.make_node("Relu", ["a"], ["b"]))
    with pytest.raises(RuntimeError, match="not a DAG: the node first is in a cycle"):
        OnnxModel(looped).topological_sort()
    equal = [numpy_helper.from_array(np.float32(v)) for v in (1, 1, 2)]
    assert OnnxModel.has_same_value(equal[0], equal[1])
    assert not OnnxModel.has_same_value(equal[0], equal[2])
