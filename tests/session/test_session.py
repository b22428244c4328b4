"""InferenceSession as programs written for onnxruntime use it."""

from __future__ import annotations

import json
import logging
import pickle
import threading
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

import sardonyx
from sardonyx import errors

TEXT = """<ir_version: 8, opset_import: ["" : 17], producer_name: "maker", model_version: 3,
 doc_string: "what it is">
 name (float[N, 3] x, float[M, 3] z) => (float[N, 3] sum, float[N, 3] kept) {
 sum = Add(x, z)
 kept = Relu(x) }"""
X = np.array([[1, -2, 3]], np.float32)


@pytest.fixture
def session() -> sardonyx.InferenceSession:
    return sardonyx.InferenceSession(parser.parse_model(TEXT))


def both() -> list[object]:
    data = parser.parse_model(TEXT).SerializeToString()
    return [
        m.InferenceSession(data, providers=["CPUExecutionProvider"])
        for m in (sardonyx, onnxruntime)
    ]


def test_metadata_equals_that_of_onnxruntime() -> None:
    ours, theirs = both()
    for a, b in zip(
        ours.get_inputs() + ours.get_outputs(),
        theirs.get_inputs() + theirs.get_outputs(),
        strict=True,
    ):
        assert (a.name, a.type, a.shape, str(a)) == (b.name, b.type, b.shape, str(b))
    for name in (
        "producer_name",
        "graph_name",
        "domain",
        "description",
        "graph_description",
        "version",
        "custom_metadata_map",
    ):
        assert getattr(ours.get_modelmeta(), name) == getattr(theirs.get_modelmeta(), name)
    assert ours.get_providers() == theirs.get_providers()


def test_outputs_by_name(session: sardonyx.InferenceSession) -> None:
    feeds = {"x": X, "z": X}
    assert [a.tolist() for a in session.run(["kept", "sum"], feeds)] == [[[1, 0, 3]], [[2, -4, 6]]]
    assert len(session.run([], feeds)) == len(session.run(None, feeds)) == 2


@pytest.mark.parametrize(
    ("names", "feeds", "kind", "text"),
    [
        (None, {"x": X}, ValueError, r"Required inputs \(\['z'\]\) are missing"),
        (["nope"], {"x": X, "z": X}, errors.InvalidArgument, "Invalid output name: nope"),
        (None, {"x": X, "z": X, "q": X}, errors.InvalidArgument, "Invalid input name: q"),
        (
            None,
            {"x": X, "z": X.astype(np.float64)},
            errors.InvalidArgument,
            r"tensor\(double\)[\s\S]*tensor\(float\)",
        ),
        (None, {"x": X, "z": X[0]}, errors.InvalidArgument, "z has rank 1"),
        (
            None,
            {"x": X, "z": X[:, :2]},
            errors.InvalidArgument,
            "2 in dim 1, but the model expects 3",
        ),
        (
            None,
            {"x": X[:, :2], "z": X[0]},
            errors.InvalidArgument,
            "x has 2 in dim 1, but the model expects 3[\\s\\S]*also +input z has rank 1",
        ),
        (
            None,
            {"x": np.ones((2, 3), np.float32), "z": np.ones((5, 3), np.float32)},
            errors.InvalidArgument,
            "do not broadcast: 2 and 5",
        ),
        (None, {"x": X, "z": None}, errors.InvalidArgument, "not None"),
    ],
)
def test_wrong_calls(session: sardonyx.InferenceSession, names, feeds, kind, text) -> None:
    with pytest.raises(kind, match=text):
        session.run(names, feeds)


def test_broadcast_sizes_are_decided_at_run_time(session: sardonyx.InferenceSession) -> None:
    many = np.ones((4, 3), np.float32)
    assert session.run(["sum"], {"x": many, "z": X})[0].shape == (4, 3)
    assert session.run(["sum"], {"x": X, "z": many})[0].shape == (4, 3)


def test_names_that_differ_are_split(caplog: pytest.LogCaptureFixture) -> None:
    text = TEXT.replace("float[M, 3] z", "float[N, 3] z")
    split = sardonyx.InferenceSession(parser.parse_model(text))
    many = np.ones((4, 3), np.float32)
    with caplog.at_level(logging.INFO, "sardonyx"):
        assert split.run(["sum"], {"x": many, "z": X})[0].shape == (4, 3)
    assert "the dims named N differ" in caplog.text


def test_free_dimensions_can_be_fixed() -> None:
    options = sardonyx.SessionOptions()
    options.add_free_dimension_override_by_name("N", 2)
    fixed = sardonyx.InferenceSession(parser.parse_model(TEXT), options)
    with pytest.raises(errors.InvalidArgument, match="1 in dim 0, but the model expects 2"):
        fixed.run(None, {"x": X, "z": X})


@pytest.mark.parametrize("text", ["y = Identity(x)", "y = Reshape(x, s)", "y = Transpose(x)"])
def test_outputs_share_no_memory(text: str) -> None:
    made = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> '
        "g (float[2, 3] x) => (float[?, ?] y, float[2] w2) "
        f"<int64[2] s = {{3, 2}}, float[2] w = {{1, 2}}> {{ {text}\n w2 = Identity(w) }}"
    )
    aliased = sardonyx.InferenceSession(made)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    y, w = aliased.run(None, {"x": x})
    assert y.flags.c_contiguous
    assert not np.may_share_memory(x, y)
    w[:] = 9
    y[:] = 9
    assert aliased.run(None, {"x": x})[1].tolist() == [1, 2]
    assert x.max() == 5


def test_inputs_of_any_form(session: sardonyx.InferenceSession) -> None:
    want = session.run(None, {"x": X, "z": X})
    wide = np.zeros((1, 6), np.float32)
    wide[:, ::2] = X
    for form in (X.tolist(), wide[:, ::2], np.asfortranarray(X)):
        got = session.run(None, {"x": form, "z": X})
        np.testing.assert_array_equal(got[0], want[0])


def test_many_threads(session: sardonyx.InferenceSession) -> None:
    def work(n: int) -> None:
        x = np.full((n, 3), n, np.float32)
        for _ in range(20):
            (y,) = session.run(["sum"], {"x": x, "z": x})
            if y.shape != (n, 3) or (y != 2 * n).any():
                wrong.append(n)

    wrong: list[int] = []
    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 9)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_terminate(session: sardonyx.InferenceSession) -> None:
    options = sardonyx.RunOptions()
    options.terminate = True
    with pytest.raises(errors.Fail, match="terminate"):
        session.run(None, {"x": X, "z": X}, options)


def test_an_endless_loop_can_be_terminated() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1] x, bool c) => (float[1] y) {
      y = Loop("", c, x) <body = b (int64 i, bool go, float[1] a) => (bool on, float[1] n) {
        on = Identity(go)
        n = Neg(a) }> }"""
    looping = sardonyx.InferenceSession(parser.parse_model(text))
    options = sardonyx.RunOptions()
    timer = threading.Timer(0.05, lambda: setattr(options, "terminate", True))
    timer.start()
    with pytest.raises(errors.Fail, match="terminate"):
        looping.run(None, {"x": X[0, :1], "c": np.array(True)}, options)


def test_a_failing_node_is_named() -> None:
    made = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> '
        "g (float[4] x, int64[1] i) => (float[1] y) { [pick] y = Gather(x, i) }"
    )
    with pytest.raises(errors.SardonyxError, match=r"9[\s\S]*Gather"):
        sardonyx.InferenceSession(made).run(None, {"x": np.ones(4, np.float32), "i": np.array([9])})


def test_profile(tmp_path: Path) -> None:
    options = sardonyx.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "p")
    profiled = sardonyx.InferenceSession(parser.parse_model(TEXT), options)
    profiled.run(None, {"x": X, "z": X})
    assert profiled.get_profiling_start_time_ns() > 0
    events = json.loads(Path(profiled.end_profiling()).read_text())
    names = {e["name"] for e in events}
    assert {"model_loading_proto", "session_initialization", "model_run", "stage_infer"} <= names
    steps = [e for e in events if e["cat"] == "Node"]
    assert {e["args"]["op_name"] for e in steps} == {"Add", "Relu"}
    assert all(e["ph"] == "X" and e["dur"] >= 0 and e["ts"] >= 0 for e in events)
    assert profiled.end_profiling() == ""


def test_unknown_config_keys_name_the_nearest(caplog: pytest.LogCaptureFixture) -> None:
    options = sardonyx.SessionOptions()
    with caplog.at_level(logging.WARNING, "sardonyx"):
        options.add_session_config_entry("session.intra_op_num_thread", "2")
    assert "did you mean session.intra_op_num_threads?" in caplog.text
    assert options.get_session_config_entry("session.intra_op_num_thread") == "2"
    with pytest.raises(RuntimeError, match="no_such"):
        options.get_session_config_entry("no_such")


def test_config_entries_equal_to_properties() -> None:
    options = sardonyx.SessionOptions()
    options.add_session_config_entry("session.graph_optimization_level", "enable_basic")
    options.add_session_config_entry("session.intra_op_num_threads", "3")
    assert options.graph_optimization_level == sardonyx.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert options.intra_op_num_threads == 3
    with pytest.raises(errors.InvalidArgument, match="one of disable_all"):
        options.add_session_config_entry("session.graph_optimization_level", "some")


def test_session_options_have_onnxruntimes_defaults() -> None:
    ours, theirs = sardonyx.SessionOptions(), onnxruntime.SessionOptions()
    for name in vars(ours):
        if not name.startswith("_"):
            want = getattr(theirs, name)
            assert getattr(ours, name) == (want if isinstance(want, (str, int)) else int(want)), (
                name
            )


def test_names_of_the_module() -> None:
    for name in (
        "ExecutionMode",
        "ExecutionOrder",
        "GraphOptimizationLevel",
        "OrtAllocatorType",
        "OrtMemType",
        "OrtSparseFormat",
    ):
        ours, theirs = getattr(sardonyx, name), getattr(onnxruntime, name)
        assert {k: int(v) for k, v in ours.__members__.items()} == {
            k: int(v) for k, v in theirs.__members__.items()
        }
    assert sardonyx.get_available_providers() == ["CPUExecutionProvider"]
    assert sardonyx.get_all_providers() == onnxruntime.get_all_providers()
    assert sardonyx.get_device() == onnxruntime.get_device()


@pytest.mark.parametrize(
    ("providers", "options"),
    [
        ("CPUExecutionProvider", None),
        ([7], None),
        (["CPUExecutionProvider"], [{}, {}]),
        ([("CPUExecutionProvider", {})], [{}]),
    ],
)
def test_wrong_providers(providers, options) -> None:
    with pytest.raises(ValueError, match="provider"):
        sardonyx.InferenceSession(
            parser.parse_model(TEXT), providers=providers, provider_options=options
        )


def test_unavailable_providers_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "sardonyx"):
        made = sardonyx.InferenceSession(
            parser.parse_model(TEXT), providers=["CUDAExecutionProvider"]
        )
    assert "CUDAExecutionProvider is not available" in caplog.text
    assert made.get_providers() == ["CPUExecutionProvider"]


def test_errors_can_be_pickled() -> None:
    error = errors.InvalidArgument("what", node="n")
    again = pickle.loads(pickle.dumps(error))
    assert (
        str(again) == str(error) == "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : what\n  node   n"
    )


def test_an_output_that_is_an_input_or_constant() -> None:
    made = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> '
        "g (float[2] x) => (float[2] x, float[2] w, float[2] y, float[2] y)"
        " <float[2] w = {1, 2}> { y = Neg(x) }"
    )
    x = np.array([3, 4], np.float32)
    got = sardonyx.InferenceSession(made).run(None, {"x": x})
    assert [a.tolist() for a in got] == [[3, 4], [1, 2], [-3, -4], [-3, -4]]
    assert not np.may_share_memory(got[2], got[3])


def test_a_model_proto_is_not_changed() -> None:
    made = parser.parse_model(TEXT)
    before = made.SerializeToString()
    sardonyx.InferenceSession(made)
    assert made.SerializeToString() == before
    assert isinstance(made, onnx.ModelProto)


def test_initializers_from_arrays() -> None:
    made = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> '
        "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Mul(x, w) }"
    )
    x = np.ones(2, np.float32)
    options = sardonyx.SessionOptions()
    options.add_initializer("w", np.array([5, 6], np.float32))
    assert sardonyx.InferenceSession(made, options).run(None, {"x": x})[0].tolist() == [5, 6]
    options = sardonyx.SessionOptions()
    options.add_external_initializers(["w"], [np.zeros(3, np.float32)])
    with pytest.raises(errors.InvalidArgument, match=r"w is f32\[2\], and f32\[3\] was given"):
        sardonyx.InferenceSession(made, options)
    options = sardonyx.SessionOptions()
    options.add_initializer("nope", x)
    with pytest.raises(errors.InvalidArgument, match="no initializer has this name"):
        sardonyx.InferenceSession(made, options)


def test_a_load_can_be_cancelled() -> None:
    options = sardonyx.SessionOptions()
    options.set_load_cancellation_flag(True)
    with pytest.raises(errors.ModelLoadCanceled):
        sardonyx.InferenceSession(parser.parse_model(TEXT), options)


def test_exceptions_by_their_onnxruntime_path() -> None:
    from onnxruntime.capi import onnxruntime_pybind11_state as theirs

    from sardonyx.capi import onnxruntime_pybind11_state as ours

    names = [
        n
        for n in dir(ours)
        if isinstance(getattr(ours, n), type) and issubclass(getattr(ours, n), Exception)
    ]
    assert len(names) == 15
    assert all(issubclass(getattr(theirs, n), Exception) for n in names)


@pytest.mark.parametrize("value", ["a", [[1.0], [2.0, 3.0]]], ids=["text", "ragged"])
def test_feeds_that_are_not_arrays_name_their_input(
    session: sardonyx.InferenceSession, value: object
) -> None:
    feeds = dict.fromkeys((i.name for i in session.get_inputs()), value)
    with pytest.raises(errors.InvalidArgument, match="input x is a tensor"):
        session.run(None, feeds)


def test_a_feed_that_is_no_dict(session: sardonyx.InferenceSession) -> None:
    with pytest.raises(TypeError, match="dict by name"):
        session.run(None, [np.zeros(1)])  # type: ignore[arg-type]


def test_enums_are_shown_by_name() -> None:
    assert f"{sardonyx.ExecutionMode.ORT_PARALLEL}" == "ExecutionMode.ORT_PARALLEL"
