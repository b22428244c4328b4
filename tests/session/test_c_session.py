"""`session._sess` and `C.InferenceSession`: onnxruntime's compiled class, which packages reach."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import sardonyx
from sardonyx.capi import onnxruntime_pybind11_state as capi
from sardonyx.errors import InvalidArgument, NoModel

TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[n] x) => (float[n] y) { a = Mul(x, x)  b = Add(a, x)  y = Relu(b) }"""
X = np.float32([1, -2, 3])
Y = [2.0, 2.0, 12.0]


@pytest.fixture
def session() -> sardonyx.InferenceSession:
    options = sardonyx.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return sardonyx.InferenceSession(parser.parse_model(TEXT), options)


def test_the_view_of_a_session(session: sardonyx.InferenceSession) -> None:
    view = session._sess
    assert [i.name for i in view.inputs_meta] == ["x"]
    assert [o.name for o in view.outputs_meta] == ["y"]
    assert view.model_meta.graph_name == "g"
    assert "producer_name" in dir(sardonyx.ModelMetadata)
    assert not session._overridable_initializers
    assert session._profiling_start_time_ns == 0
    assert view.session_options is session.get_session_options()
    assert view.get_providers() == session.get_providers()
    assert view.run(["y"], {"x": X}, None)[0].tolist() == Y
    values = view.run_with_ort_values({"x": sardonyx.OrtValue.ortvalue_from_numpy(X)}, ["y"])
    assert isinstance(values, capi.OrtValueVector)
    assert values[0].numpy().tolist() == Y
    binding = capi.SessionIOBinding(view)
    binding.bind_input("x", X)
    binding.bind_output("y", capi.OrtDevice.make("cpu", 0))
    view.run_with_iobinding(binding, None)
    assert binding.get_outputs()[0].numpy().tolist() == Y


def test_construction_as_in_onnxruntime(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(parser.parse_model(TEXT), path)
    for model, is_path in ((str(path), True), (path.read_bytes(), False)):
        view = capi.InferenceSession(sardonyx.SessionOptions(), model, is_path, False)
        with pytest.raises(NoModel, match="initialize_session"):
            _ = view.inputs_meta
        view.initialize_session(["CPUExecutionProvider"], [{}], set())
        assert view.run(["y"], {"x": X})[0].tolist() == Y


def test_each_node_is_assigned(session: sardonyx.InferenceSession) -> None:
    parts = session.get_provider_graph_assignment_info()
    assert [[n.op_type for n in part.get_nodes()] for part in parts] == [["Mul"], ["Add"], ["Relu"]]
    assert {part.ep_name for part in parts} == {"CPUExecutionProvider"}


def test_providers_and_options_with_wrong_names(session: sardonyx.InferenceSession) -> None:
    with pytest.raises(RuntimeError, match="Unknown Provider Type: Odd"):
        session.set_providers(["Odd"])
    session.set_providers(["CPUExecutionProvider"])
    with pytest.warns(UserWarning, match="Duplicate provider .CPUExecutionProvider."):
        sardonyx.InferenceSession(parser.parse_model(TEXT), providers=["CPUExecutionProvider"] * 2)
    with pytest.raises(AttributeError, match="log_severity_levle"):
        sardonyx.RunOptions().log_severity_levle = 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sardonyx.RunOptions().logid = "x"


def sparse_constant(dense: Any) -> onnx.ModelProto:
    """A model whose output is a sparse constant, stored as tools before opset 11 did."""
    flat = dense.reshape(-1)
    at = np.flatnonzero(flat).astype(np.int64)
    value = helper.make_sparse_tensor(
        numpy_helper.from_array(flat[at], "v"), numpy_helper.from_array(at), dense.shape
    )
    node = helper.make_node("Constant", [], ["y"])
    node.attribute.append(onnx.AttributeProto(name="value", type=11, sparse_tensor=value))
    info = helper.make_sparse_tensor_value_info("y", TensorProto.FLOAT, dense.shape)
    graph = helper.make_graph([node], "g", [], [info])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=7)


def test_a_sparse_output() -> None:
    dense = np.float32([[0, 2, 0], [3, 0, 0]])
    session = sardonyx.InferenceSession(sparse_constant(dense))
    assert session.get_outputs()[0].type == "sparse_tensor(float)"
    (got,) = session.run(None, {})
    assert got.values().tolist() == [2, 3]
    assert got.as_coo_view().indices().tolist() == [1, 3]
    assert not got.values().flags.writeable
    assert not got.as_coo_view().indices().flags.writeable
    assert (got.to_dense() == dense).all()
    binding = session.io_binding()
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    assert binding.get_outputs()[0].data_type() == "sparse_tensor(float)"
    (value,) = session.run_with_ort_values(["y"], {})
    assert value.as_sparse_tensor().dense_shape() == [2, 3]


def test_strings_in_np_void() -> None:
    model = """<ir_version: 8, opset_import: ["": 17]>
    g (string[n] x) => (string[n] y) { y = Identity(x) }"""
    session = sardonyx.InferenceSession(parser.parse_model(model))
    texts = np.array([b"ab\0\0", b"\xc3\xa4cd"], np.void)
    assert session.run(None, {"x": texts})[0].tolist() == ["ab\0\0", "äcd"]
    with pytest.raises(InvalidArgument, match="not UTF-8"):
        session.run(None, {"x": np.array([b"\xff\xff"], np.void)})
    with pytest.raises(InvalidArgument, match="bfloat16"):  # whose bytes are ASCII by chance
        session.run(None, {"x": np.array([0x4141], np.uint16).view(ml_dtypes.bfloat16)})


@pytest.mark.parametrize(("least", "is_external"), [(20, True), (100, False)])
def test_weights_that_were_external_stay_so(tmp_path: Path, least: int, is_external: bool) -> None:
    pads = numpy_helper.from_array(np.int64([0, 0, 1, 1]), "pads")
    (tmp_path / "in.bin").write_bytes(pads.raw_data)
    pads.ClearField("raw_data")
    pads.data_location = TensorProto.EXTERNAL
    pads.external_data.add(key="location", value="in.bin")
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])
    nodes = [helper.make_node("Pad", ["x", "pads"], ["y"])]
    graph = helper.make_graph(nodes, "g", [info], [onnx.ValueInfoProto(name="y")], [pads])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    options = sardonyx.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "out.onnx")
    prefix = "session.optimized_model_external_initializers"
    options.add_session_config_entry(f"{prefix}_file_name", "out.bin")
    options.add_session_config_entry(f"{prefix}_min_size_in_bytes", str(least))
    sardonyx.InferenceSession(str(tmp_path / "m.onnx"), options)
    assert (tmp_path / "out.bin").exists() is is_external
    again = sardonyx.InferenceSession(str(tmp_path / "out.onnx"))
    assert again.run(None, {"x": np.ones((1, 2), np.float32)})[0].shape == (2, 3)


def test_a_stream_that_fails() -> None:
    def fail(data: bytes) -> None:
        raise ValueError("disk is full")

    compiler = sardonyx.ModelCompiler(sardonyx.SessionOptions(), parser.parse_model(TEXT))
    with pytest.raises(sardonyx.errors.Fail, match="ValueError: disk is full"):
        compiler.compile_to_stream(fail)


def test_optional_inputs_may_be_left_out() -> None:
    info = helper.make_value_info(
        "x", helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [2]))
    )
    nodes = [helper.make_node("OptionalHasElement", ["x"], ["y"])]
    graph = helper.make_graph(nodes, "g", [info], [onnx.ValueInfoProto(name="y")])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    session = sardonyx.InferenceSession(made)
    for feed, has in (({}, False), ({"x": None}, False), ({"x": np.ones(2, np.float32)}, True)):
        assert session.run(None, feed)[0] == has
