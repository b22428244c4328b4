"""run_async, subsets of outputs, threads, forks, pickles, embedded options."""

from __future__ import annotations

import copy
import json
import os
import pickle
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import sardonyx
from sardonyx import InferenceSession, RunOptions, SessionOptions, errors

TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[n] x, int64[1] i) => (float[n] y, float[1] z)
{ y = Add(x, x)  z = Gather(y, i) }"""
X = np.arange(5, dtype=np.float32)
FEED = {"x": X, "i": np.array([2])}


@pytest.fixture
def model() -> onnx.ModelProto:
    return parser.parse_model(TEXT)


def test_results_come_to_the_callback(model: onnx.ModelProto) -> None:
    session, done = InferenceSession(model), threading.Event()
    got: list[Any] = []

    def callback(*args: Any) -> None:
        got.append((*args, threading.current_thread()))
        done.set()

    session.run_async(["z"], FEED, callback, "mine")
    assert done.wait(10)
    results, user_data, wrong, thread = got[0]
    np.testing.assert_array_equal(results[0], [4])
    assert (user_data, wrong) == ("mine", "")
    assert thread is not threading.current_thread()
    done.clear()
    session.run_async(["z"], {**FEED, "x": X.astype(float)}, callback, None)
    assert done.wait(10)
    assert got[1][0] == []
    assert "expected: (tensor(float))" in got[1][2]
    with pytest.raises(ValueError, match="'i'"):
        session.run_async(None, {"x": X}, callback, None)


def test_many_runs_at_once(model: onnx.ModelProto) -> None:
    session, got, done = InferenceSession(model), [], threading.Event()

    def callback(results: list[Any], number: int, wrong: str) -> None:
        got.append((number, results[0][1], wrong))
        if len(got) == 50:
            done.set()

    for number in range(50):
        session.run_async(None, {**FEED, "x": X * number}, callback, number)
    assert done.wait(20)
    assert sorted(got) == [(n, 2 * n, "") for n in range(50)]


def test_a_failing_callback_does_not_affect_other_runs(
    model: onnx.ModelProto, caplog: pytest.LogCaptureFixture
) -> None:
    session, done = InferenceSession(model), threading.Event()

    def callback(*args: Any) -> None:
        done.set()
        raise ValueError("of the user's")

    session.run_async(None, FEED, callback, None)
    assert done.wait(10)
    for _ in range(100):
        if caplog.records:
            break
        time.sleep(0.01)
    assert "callback of run_async failed" in caplog.text


def test_only_nodes_that_fetched_outputs_need_run(model: onnx.ModelProto) -> None:
    session, options = InferenceSession(model), RunOptions()
    wrong = {**FEED, "i": np.array([7])}  # z cannot be computed
    with pytest.raises(errors.InvalidArgument, match="index 7"):
        session.run(["y"], wrong)
    options.only_execute_path_to_fetches = True
    np.testing.assert_array_equal(session.run(["y"], wrong, options)[0], X + X)
    np.testing.assert_array_equal(session.run(["y", "y"], wrong, options)[1], X + X)
    with pytest.raises(errors.InvalidArgument, match="index 7"):
        session.run(["z"], wrong, options)
    with pytest.raises(errors.InvalidArgument, match="Invalid output name: w"):
        session.run(["w"], wrong, options)
    assert [o.shape for o in session.run(["z", "y"], FEED, options)] == [(1,), (5,)]
    assert len(session._partial_sessions) == 2  # made once each


def by_way_of_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("again", [copy.deepcopy, copy.copy, by_way_of_pickle])
def test_sessions_and_options_are_copied(
    again: Any, model: onnx.ModelProto, tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    options = SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("sardonyx.use_pack", "0")
    options.add_free_dimension_override_by_name("n", 5)
    for given in (path, path.read_bytes(), model):
        session = again(InferenceSession(given, options, disabled_optimizers={"ConstantFolding"}))
        np.testing.assert_array_equal(session.run(None, FEED)[0], X + X)
        assert session.get_session_options().intra_op_num_threads == 1
        assert session.get_inputs()[0].shape == [5]
    other = again(options)
    other.intra_op_num_threads = 2
    other.add_session_config_entry("sardonyx.use_pack", "1")
    assert options.intra_op_num_threads == 1
    assert options.get_session_config_entry("sardonyx.use_pack") == "0"


def test_options_with_buffers_and_runs_are_copied() -> None:
    options = SessionOptions()
    options.add_external_initializers_from_files_in_memory(["w"], [b"abcd"], [4])
    options.set_provider_selection_policy(sardonyx.OrtExecutionProviderDevicePolicy.PREFER_NPU)
    found = by_way_of_pickle(options)
    assert bytes(found._files["w"]) == b"abcd"
    assert found.has_providers()
    run = RunOptions()
    run.terminate = True
    run.logid = "me"
    run.add_run_config_entry("gpu_graph_id", "1")
    for other in (by_way_of_pickle(run), copy.deepcopy(run)):
        assert (other.terminate, other.logid) == (True, "me")
        assert other.get_run_config_entry("gpu_graph_id") == "1"


def test_a_forked_child_runs(model: onnx.ModelProto) -> None:
    session, done = InferenceSession(model), threading.Event()
    session.run_async(None, FEED, lambda *a: done.set(), None)
    assert done.wait(10)
    child = os.fork()
    if child == 0:
        ok, here = session.run(None, FEED)[0][1] == 2, threading.Event()
        session.run_async(None, FEED, lambda *a: here.set(), None)
        binding = session.io_binding()
        binding.bind_cpu_input("x", X)
        binding.bind_cpu_input("i", FEED["i"])
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        os._exit(0 if ok and here.wait(10) else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("by", ["argument", "environment"])
def test_options_that_a_model_carries(
    by: str, model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = {"session_options": {"intra_op_num_threads": 1, "graph_optimization_level": 1, "z": 3}}
    onnx.helper.set_model_props(model, {"ort_config": json.dumps(config)})
    kwargs = {"read_config_from_model": 1} if by == "argument" else {}
    if by == "environment":
        monkeypatch.setenv("ORT_LOAD_CONFIG_FROM_MODEL", "1")
    onnx.save(model, tmp_path / "m.onnx")
    for given in (model, tmp_path / "m.onnx", open(tmp_path / "m.onnx", "rb")):  # noqa: SIM115
        mine = SessionOptions()
        session = InferenceSession(given, mine, **kwargs)
        assert session.get_session_options().intra_op_num_threads == 1
        assert int(session.get_session_options().graph_optimization_level) == 1
        assert mine.intra_op_num_threads == 0
        np.testing.assert_array_equal(session.run(None, FEED)[0], X + X)
    monkeypatch.delenv("ORT_LOAD_CONFIG_FROM_MODEL", raising=False)
    assert InferenceSession(model).get_session_options().intra_op_num_threads == 0


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"session_options": 3}', '{"session_options": {"execution_mode": 9}}']
)
def test_wrong_options_in_a_model(text: str, model: onnx.ModelProto) -> None:
    onnx.helper.set_model_props(model, {"ort_config": text})
    with pytest.raises(errors.InvalidArgument, match="ort_config"):
        InferenceSession(model, read_config_from_model=1)


def test_global_threads_are_those_of_sessions_without_their_own(model: onnx.ModelProto) -> None:
    options = SessionOptions()
    options.use_per_session_threads = False
    try:
        sardonyx.set_global_thread_pool_sizes(3, 1)
        assert InferenceSession(model, options)._settings.n_threads == 3
        with pytest.raises(RuntimeError, match="use_per_session_threads"):
            InferenceSession(model)
        with pytest.raises(errors.InvalidArgument, match="-1"):
            sardonyx.set_global_thread_pool_sizes(-1)
    finally:
        sardonyx.set_global_thread_pool_sizes()


def product(k: int, n: int, count: int) -> onnx.ModelProto:
    lines = "".join(f" h{i + 1} = MatMul(h{i}, w{i})" for i in range(count))
    text = f"""<ir_version: 8, opset_import: ["": 17]>
    g (float[m,{k}] h0) => (float[m,{n}] h{count}) {{ {lines} }}"""
    model = parser.parse_model(text)
    rng = np.random.default_rng(0)
    for i in range(count):
        w = rng.standard_normal((k, n)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(w, f"w{i}"))
    return model


def test_results_do_not_depend_on_threads() -> None:
    x = np.random.default_rng(1).standard_normal((37, 200)).astype(np.float32)
    found = set()
    for threads in (1, 2, 5):
        options = SessionOptions()
        options.intra_op_num_threads = threads
        options.use_deterministic_compute = True
        session = InferenceSession(product(200, 200, 3), options)
        found.add(session.run(None, {"h0": x})[0].tobytes())
    assert len(found) == 1


def test_a_load_is_cancelled_while_weights_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    from sardonyx.weights import layouts

    options, packed = SessionOptions(), []
    real = layouts.prepack

    def pack_and_cancel(want: Any) -> Any:
        packed.append(want)
        canceller = threading.Thread(target=options.set_load_cancellation_flag, args=(True,))
        canceller.start()
        canceller.join()
        return real(want)

    monkeypatch.setattr(layouts, "prepack", pack_and_cancel)
    with pytest.raises(errors.ModelLoadCanceled):
        InferenceSession(product(64, 64, 4), options)
    assert len(packed) == 1
    options.set_load_cancellation_flag(False)
    monkeypatch.setattr(layouts, "prepack", real)
    assert InferenceSession(product(64, 64, 4), options).run(None, {"h0": np.ones((1, 64), "f")})


def test_session_information(model: onnx.ModelProto) -> None:
    session = InferenceSession(model)
    assert [i.name for i in session.get_input_memory_infos()] == ["Cpu"] * 2
    assert [i.name for i in session.get_output_memory_infos()] == ["Cpu"] * 2
    assert [d.ep_name for d in session.get_input_epdevices()] == ["CPUExecutionProvider"] * 2
    assert session.get_tuning_results() == []
    session.set_tuning_results([])
    result = {"ep": "CPUExecutionProvider", "results": {}, "validators": {}}
    session.set_tuning_results([result])
    with pytest.raises(RuntimeError, match="has no tuning"):
        session.set_tuning_results([result], error_on_invalid=True)
    with pytest.raises(KeyError, match="ep"):
        session.set_tuning_results([{"a": 1}])
    session.set_ep_dynamic_options({"ep.dynamic.workload_type": "Default"})
    with pytest.raises(RuntimeError, match="options are empty"):
        session.set_ep_dynamic_options({})
    session.release_captured_graph()
    value = session.create_ortvalue_from_shape_and_type([2], np.float32, "cpu")
    assert value.shape() == [2]


def test_devices_and_how_they_are_chosen(model: onnx.ModelProto) -> None:
    from sardonyx.capi import onnxruntime_pybind11_state as capi

    device, *_ = sardonyx.get_ep_devices()
    assert device.ep_name == "CPUExecutionProvider"
    assert device.device.type is sardonyx.OrtHardwareDeviceType.CPU
    assert capi.get_hardware_devices() == [device.device]
    assert device.memory_info(sardonyx.OrtDeviceMemoryType.DEFAULT) is None
    with pytest.raises(RuntimeError, match="no streams"):
        device.create_sync_stream()
    found = capi.get_hardware_device_ep_incompatibility_details(device.ep_name, device.device)
    assert found["reasons_bitmask"] == 0
    kinds = capi.OrtCompiledModelCompatibility
    found = capi.get_model_compatibility_for_ep_devices([device], "x")
    assert found is kinds.EP_NOT_APPLICABLE
    data = model.SerializeToString()
    assert capi.get_compatibility_info_from_model_bytes(data, device.ep_name) is None
    with pytest.raises(RuntimeError, match="File does"):
        capi.get_compatibility_info_from_model("/no/such/model", device.ep_name)
    options, asked = SessionOptions(), []
    options.set_provider_selection_policy_delegate(lambda *a: (asked.append(a), a[0])[1])
    assert InferenceSession(model, options).get_providers() == [device.ep_name]
    assert asked[0][1]["graph_name"] == "g"
    assert asked[0][3] == 8
    options.set_provider_selection_policy_delegate(lambda *a: [])
    with pytest.raises(errors.InvalidArgument, match="selected 0 devices"):
        InferenceSession(model, options)
    options = SessionOptions()
    options.add_provider_for_devices([device], {"a": "b"})
    assert InferenceSession(model, options).get_provider_options() == {device.ep_name: {"a": "b"}}
    with pytest.raises(errors.InvalidArgument, match="not to one"):
        options.add_provider_for_devices([])
