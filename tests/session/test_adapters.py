"""LoRA adapters: files byte-identical to onnxruntime's, and runs with them."""

from __future__ import annotations

import copy
import pickle
import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import parser

import sardonyx
from sardonyx import AdapterFormat, LoraAdapter, OrtValue, RunOptions

TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[n,4] x, float[4,r] a, float[r,2] b, float[2] c) => (float[n,2] y)
<float[4,1] a = {0,0,0,0}, float[1,2] b = {0,0}, float[2] c = {1,2}>
{ h = MatMul(x, a)  u = MatMul(h, b)  y = Add(u, c) }"""
X = np.arange(8, dtype=np.float32).reshape(2, 4)
A = np.arange(12, dtype=np.float32).reshape(4, 3)
B = np.arange(6, dtype=np.float32).reshape(3, 2)
C = np.array([5, 6], np.float32)
C0 = np.array([1, 2], np.float32)  # the default

CASES: list[tuple[str, dict[str, Any], tuple[int, int]]] = [
    ("one", {"a": A}, (1, 2)),
    ("some", {"b": B, "a": A, "name of any length": C}, (5, 7)),
    ("kinds", {"i": np.arange(3), "h": np.ones((1, 3), np.float16), "u": np.ones(5, "u1")}, (3, 0)),
    ("odd", {"xyz": np.ones(3, np.uint8), "w": np.ones((2, 0), np.float32)}, (0, 9)),
    ("no versions", {"a": A}, (0, 0)),
    ("empty", {}, (0, 0)),
    ("double", {"d": np.arange(4.0), "e": np.arange(2.0)}, (-1, 2**31 - 1)),
]  # fmt: skip


def write(module: Any, parameters: dict[str, Any], versions: tuple[int, int], path: Path) -> bytes:
    adapter = module.AdapterFormat()
    adapter.set_adapter_version(versions[0])
    adapter.set_model_version(versions[1])
    adapter.set_parameters(
        {k: module.OrtValue.ortvalue_from_numpy(v) for k, v in parameters.items()}
    )
    adapter.export_adapter(str(path))
    return path.read_bytes()


@pytest.mark.parametrize(
    ("parameters", "versions"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_files_are_onnxruntimes_byte_for_byte(
    parameters: dict[str, Any], versions: tuple[int, int], tmp_path: Path
) -> None:
    ours = write(sardonyx, parameters, versions, tmp_path / "ours")
    assert ours == write(onnxruntime, parameters, versions, tmp_path / "theirs")
    read = AdapterFormat.read_adapter(tmp_path / "theirs")
    assert (read.get_adapter_version(), read.get_model_version()) == versions
    assert read.get_format_version() == 1
    found = read.get_parameters()
    assert list(found) == list(parameters)
    for name, value in parameters.items():
        assert found[name].numpy().dtype == value.dtype
        np.testing.assert_array_equal(found[name].numpy(), value)


def test_raw_types_keep_their_bits(tmp_path: Path) -> None:
    bits = np.arange(6, dtype=np.uint16)
    for module in (sardonyx, onnxruntime):
        adapter = module.AdapterFormat()
        adapter.set_parameters({"w": module.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, 16)})
        adapter.export_adapter(str(tmp_path / module.__name__))
    assert (tmp_path / "sardonyx").read_bytes() == (tmp_path / "onnxruntime").read_bytes()
    value = AdapterFormat.read_adapter(tmp_path / "sardonyx").get_parameters()["w"]
    assert value.data_type() == "tensor(bfloat16)"
    np.testing.assert_array_equal(value.numpy().view(np.uint16), bits)


def loaded(parameters: dict[str, Any], path: Path) -> LoraAdapter:
    write(sardonyx, parameters, (1, 1), path)
    adapter = LoraAdapter()
    adapter.Load(path)
    return adapter


@pytest.fixture
def session() -> sardonyx.InferenceSession:
    return sardonyx.InferenceSession(parser.parse_model(TEXT))


def test_active_adapters_are_fed(session: sardonyx.InferenceSession, tmp_path: Path) -> None:
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], [[1, 2], [1, 2]])
    options = RunOptions()
    options.add_active_adapter(loaded({"a": A, "b": B}, tmp_path / "ab"))
    wanted = X @ A @ B
    np.testing.assert_allclose(session.run(None, {"x": X}, options)[0], wanted + C0)
    options.add_active_adapter(loaded({"c": C}, tmp_path / "c"))  # a second one beside it
    np.testing.assert_allclose(session.run(None, {"x": X}, options)[0], wanted + C)
    np.testing.assert_allclose(session.run(None, {"x": X, "c": C * 2}, options)[0], wanted + C)
    (value,) = session.run_with_ort_values(None, {"x": OrtValue(X)}, options)
    np.testing.assert_allclose(value.numpy(), wanted + C)
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    session.run_with_iobinding(binding, options)
    np.testing.assert_allclose(binding.get_outputs()[0].numpy(), wanted + C)
    done, got = threading.Event(), []
    session.run_async(None, {"x": X}, lambda *a: (got.append(a), done.set()), 3, options)
    assert done.wait(10)
    np.testing.assert_allclose(got[0][0][0], wanted + C)
    for again in (copy.deepcopy(options), pickle.loads(pickle.dumps(options))):
        np.testing.assert_allclose(session.run(None, {"x": X}, again)[0], wanted + C)


def test_results_equal_those_of_onnxruntime(tmp_path: Path) -> None:
    write(sardonyx, {"a": A, "b": B}, (1, 1), tmp_path / "ab")
    adapter = onnxruntime.LoraAdapter()
    adapter.Load(str(tmp_path / "ab"))
    options = onnxruntime.RunOptions()
    options.add_active_adapter(adapter)
    model = parser.parse_model(TEXT).SerializeToString()
    session = onnxruntime.InferenceSession(model)
    for feed in ({"x": X}, {"x": X, "a": A * 2}):  # what is fed gives way to an adapter
        np.testing.assert_allclose(session.run(None, feed, options)[0], X @ A @ B + C0)


def test_adapters_that_do_not_fit(session: sardonyx.InferenceSession, tmp_path: Path) -> None:
    options = RunOptions()
    options.add_active_adapter(loaded({"nope": A}, tmp_path / "n"))
    with pytest.raises(sardonyx.SardonyxError, match="nope, and the model has no such input"):
        session.run(None, {"x": X}, options)
    options = RunOptions()
    for _ in range(2):
        options.add_active_adapter(loaded({"c": C}, tmp_path / "c"))
    with pytest.raises(sardonyx.SardonyxError, match="two active adapters have a parameter c"):
        session.run(None, {"x": X}, options)
    with pytest.raises(TypeError, match="must be a LoraAdapter"):
        options.add_active_adapter("path")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="OrtValues by name"):
        AdapterFormat().set_parameters({"a": A})  # type: ignore[dict-item]
    with pytest.raises(sardonyx.SardonyxError, match="32-bit integer"):
        AdapterFormat().set_model_version(2**31)
    with pytest.raises(sardonyx.SardonyxError, match="no file"):
        LoraAdapter().Load(tmp_path / "missing")


WHOLE: list[bytes] = []


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_hostile_files_are_refused_or_read(tmp_path_factory: Any, data: Any) -> None:
    """Any change leaves a file that is read within its bounds, or refused."""
    path = tmp_path_factory.getbasetemp() / "hostile"
    if not WHOLE:
        WHOLE.append(write(sardonyx, CASES[1][1], (1, 2), path))
    changed = bytearray(WHOLE[0])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed) - 4))
        word = data.draw(st.sampled_from([0, 1, 4, 255, 2**16, 2**31, 2**32 - 1, 2**32 - 1 - at]))
        changed[at : at + 4] = struct.pack("<I", word)
    path.write_bytes(changed[: data.draw(st.integers(0, len(changed)))])
    try:
        for value in AdapterFormat.read_adapter(path).get_parameters().values():
            value.numpy().copy()
    except sardonyx.SardonyxError as error:
        if "is not a valid adapter" not in str(error):
            raise
