"""Session config keys: each is supported, or logged with the reason why it has no effect."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, parser

import sardonyx
from sardonyx import InferenceSession, SessionOptions, errors
from sardonyx.ort.config_keys import IGNORED, RUN_KEYS, SUPPORTED

ADD = parser.parse_model(
    """<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Add(x, x) }"""
)


def with_entries(entries: dict[str, str]) -> SessionOptions:
    options = SessionOptions()
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    return options


def test_every_key_of_the_installed_onnxruntime_is_known() -> None:
    library = Path(onnxruntime.capi.onnxruntime_pybind11_state.__file__).read_bytes()
    form = rb"\0((?:session|optimization|ep|mlas)\.[a-z0-9_.]{6,}[a-z0-9])\0"
    found = set(re.findall(form, library))
    keys = {k.decode() for k in found}
    assert len(keys) > 70
    assert not keys - SUPPORTED - IGNORED.keys() - RUN_KEYS


@pytest.mark.parametrize("key", sorted(IGNORED))
def test_keys_that_change_nothing_say_why(key: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "sardonyx"):
        SessionOptions().add_session_config_entry(key, "1")
    said = f"the session config key {key} has no effect: {IGNORED[key]}"
    assert caplog.messages == [said]
    assert not SUPPORTED & IGNORED.keys()


REFUSED = [
    ("session.load_model_format", "TFLITE", errors.InvalidArgument, "must be ONNX or ORT"),
    ("session.save_model_format", "TFLITE", errors.InvalidArgument, "must be ONNX or ORT"),
    ("session.disable_cpu_ep_fallback", "1", errors.Fail, "nodes run on the CPU"),
    ("session.intra_op.spin_duration_us", "-1", errors.InvalidArgument, "microseconds"),
    ("session.set_denormal_as_zero", "yes", errors.InvalidArgument, "one of 0, 1"),
    ("session.function_expansion_node_limit", "x", errors.InvalidArgument, "number"),
    ("sardonyx.stop_after_pass", "fuse", errors.InvalidArgument, "the number of a pass"),
]


@pytest.mark.parametrize(("key", "value", "kind", "match"), REFUSED, ids=[r[0] for r in REFUSED])
def test_values_that_cannot_be(key: str, value: str, kind: Any, match: str) -> None:
    with pytest.raises(kind, match=match):
        InferenceSession(ADD, with_entries({key: value}))


HARMLESS = [
    ("session.disable_prepacking", "1"), ("session.force_spinning_stop", "1"),
    ("session.intra_op.spin_duration_us", "10"), ("session.load_model_format", "ONNX"),
    ("session.intra_op.allow_spinning", "0"), ("session.disable_quant_qdq", "1"),
    ("session.strict_shape_type_inference", "1"), ("session.set_denormal_as_zero", "1"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), HARMLESS, ids=[h[0] for h in HARMLESS])
def test_keys_that_do_not_change_results(key: str, value: str) -> None:
    x = np.arange(5, dtype=np.float32)
    session = InferenceSession(ADD, with_entries({key: value}))
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x + x)


def test_denormals_become_zero_and_only_there() -> None:
    x = np.full(100_000, 1e-40, np.float32)  # enough for all threads
    plain = InferenceSession(ADD)
    flushed = InferenceSession(ADD, with_entries({"session.set_denormal_as_zero": "1"}))
    for _ in range(3):
        assert (flushed.run(None, {"x": x})[0] == 0).all()
        assert (plain.run(None, {"x": x})[0] > 0).all()
    assert np.float32(1e-40) * np.float32(2) > 0  # on this thread, too
    options = sardonyx.RunOptions()  # the checked path
    assert (flushed.run(None, {"x": x}, options)[0] == 0).all()
    assert np.float32(1e-40) * np.float32(2) > 0


def test_denormals_in_steps_of_python() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (double[n] x) => (double[n] y) { y = Erf(x) }"""
    session = InferenceSession(
        parser.parse_model(text), with_entries({"session.set_denormal_as_zero": "1"})
    )
    session.run(None, {"x": np.full(4, 1e-310)})
    assert np.float64(1e-310) * 2 > 0


def test_strict_inference_refuses_shapes_that_are_not_so() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[2,3] x) => (float[2,4] y) { y = Neg(x) }"""
    model = parser.parse_model(text)
    InferenceSession(model)
    with pytest.raises(errors.ShapeError, match=r"y is declared as f32\[2,4\], and is f32\[2,3\]"):
        InferenceSession(model, with_entries({"session.strict_shape_type_inference": "1"}))


def test_expansion_of_functions_is_bounded() -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "d": 1]>
    g (float[n] x) => (float[n] y) { a = d.twice(x) b = d.twice(a) y = d.twice(b) }
    <domain: "d", opset_import: ["": 17]> twice (x) => (y) { t = Add(x, x) y = Identity(t) }"""
    model = parser.parse_model(text)
    InferenceSession(model, with_entries({"session.function_expansion_node_limit": "6"}))
    with pytest.raises(errors.InvalidGraph, match="more than 5 nodes"):
        InferenceSession(model, with_entries({"session.function_expansion_node_limit": "5"}))
    with pytest.raises(errors.InvalidGraph, match="more than 20 bytes"):
        InferenceSession(model, with_entries({"session.function_expansion_byte_limit": "20"}))


def test_gelu_is_approximated_on_request() -> None:
    text = """<ir_version: 10, opset_import: ["": 20]>
    g (float[n] x) => (float[n] y) { y = Gelu(x) }"""
    model, x = parser.parse_model(text), np.linspace(-3, 3, 41, dtype=np.float32)
    exact = InferenceSession(model).run(None, {"x": x})[0]
    options = with_entries({"optimization.enable_gelu_approximation": "1"})
    tanh = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    found = InferenceSession(model, options).run(None, {"x": x})[0]
    np.testing.assert_allclose(found, tanh, atol=2e-6)
    assert np.abs(found - exact).max() > 1e-5


def test_qdq_handling_can_be_disabled() -> None:
    w = helper.make_tensor("w", TensorProto.INT8, [4, 4], list(range(16)))
    scale = helper.make_tensor("s", TensorProto.FLOAT, [], [0.1])
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "s"], ["e"]),
        helper.make_node("MatMul", ["d", "e"], ["m"]),
        helper.make_node("QuantizeLinear", ["m", "s"], ["y"]),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [info("x", 1, [2, 4])], [info("y", TensorProto.UINT8, [2, 4])], [w, scale]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    rows = {
        value: {row for _, _, row in session._compiled.program.nodes()}
        for value in "01"
        for session in [InferenceSession(model, with_entries({"session.disable_quant_qdq": value}))]
    }
    assert rows["0"] != rows["1"]
    onnx.checker.check_model(model)


def test_provider_graph_assignment_info() -> None:
    with pytest.raises(errors.Fail, match="record_ep_graph_assignment_info"):
        InferenceSession(ADD).get_provider_graph_assignment_info()
    key = "session.record_ep_graph_assignment_info"
    (part,) = InferenceSession(ADD, with_entries({key: "1"})).get_provider_graph_assignment_info()
    assert part.ep_name == "CPUExecutionProvider"
    assert len(part.get_nodes()) == 1
