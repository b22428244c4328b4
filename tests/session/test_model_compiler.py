"""ModelCompiler: the optimized model as a file, bytes or a stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper, parser

import sardonyx
from sardonyx import (
    GraphOptimizationLevel,
    ModelCompiler,
    OrtCompileApiFlags,
    OrtExternalInitializerInfo,
    SessionOptions,
)

W = np.arange(64, dtype=np.float32).reshape(8, 8)
X = np.ones((2, 8), np.float32)
ALL = GraphOptimizationLevel.ORT_ENABLE_ALL


@pytest.fixture
def path(tmp_path: Path) -> Path:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[n,8] x) => (float[n,8] y) { a = MatMul(x, w) b = Add(a, c) y = Identity(b) }"""
    model = parser.parse_model(text)
    for name, value in (("w", W), ("c", W[0])):
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    onnx.save(model, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def check(model: Any) -> onnx.ModelProto:
    """Both runtimes load it and give the same."""
    given = str(model) if isinstance(model, Path) else model
    for module in (sardonyx, onnxruntime):
        (y,) = module.InferenceSession(given).run(None, {"x": X})
        np.testing.assert_allclose(y, X @ W + W[0])
    return onnx.load(given) if isinstance(given, str) else onnx.load_from_string(given)


def test_to_a_file_bytes_and_a_stream(path: Path) -> None:
    compiler = ModelCompiler(SessionOptions(), path, graph_optimization_level=ALL)
    compiler.compile_to_file()
    made = check(path.with_name("m_ctx.onnx"))
    assert [n.op_type for n in made.graph.node] == ["Gemm"]
    compiler.compile_to_file(path.with_name("other.onnx"))
    pieces: list[bytes] = []
    compiler.compile_to_stream(pieces.append)
    assert (
        b"".join(pieces) == compiler.compile_to_bytes() == path.with_name("other.onnx").read_bytes()
    )
    check(b"".join(pieces))
    plain = ModelCompiler(SessionOptions(), path.read_bytes())  # optimizes nothing unless told to
    assert len(check(plain.compile_to_bytes()).graph.node) == 3


def test_external_weights(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = ModelCompiler(
        SessionOptions(), path, False, "weights.bin", 100, graph_optimization_level=ALL
    )
    compiler.compile_to_file(path.with_name("out.onnx"))
    assert path.with_name("weights.bin").stat().st_size == W.nbytes
    check(path.with_name("out.onnx"))
    monkeypatch.chdir(path.parent)
    path.with_name("weights.bin").unlink()
    path.with_name("bytes.onnx").write_bytes(compiler.compile_to_bytes())
    check(path.with_name("bytes.onnx"))


def test_a_function_says_where_weights_are(path: Path) -> None:
    asked = []

    def locate(name: str, value: sardonyx.OrtValue, info: Any) -> Any:
        asked.append((name, value.shape(), info))
        if value.tensor_size_in_bytes() < 100:
            return None
        path.with_name("mine.bin").write_bytes(b"head" * 4 + value.numpy().tobytes())
        return OrtExternalInitializerInfo("mine.bin", 16, value.tensor_size_in_bytes())

    compiler = ModelCompiler(SessionOptions(), path, get_initializer_location_func=locate)
    compiler.compile_to_file(path.with_name("out.onnx"))
    check(path.with_name("out.onnx"))
    assert sorted(asked) == [("c", [8], None), ("w", [8, 8], None)]
    asked.clear()
    again = ModelCompiler(
        SessionOptions(), path.with_name("out.onnx"), get_initializer_location_func=locate
    )
    again.compile_to_bytes()
    known = {name: info for name, _, info in asked}
    assert known["w"] == OrtExternalInitializerInfo("mine.bin", 16, W.nbytes)
    wrong = ModelCompiler(
        SessionOptions(),
        path,
        get_initializer_location_func=lambda *a: OrtExternalInitializerInfo("x", 0, 3),
    )
    with pytest.raises(sardonyx.SardonyxError, match=r"has .* bytes, and its location is"):
        wrong.compile_to_bytes()


def test_flags(path: Path) -> None:
    def compiler(flags: int) -> ModelCompiler:
        return ModelCompiler(SessionOptions(), path, flags=flags)

    compiler(OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS).compile_to_file()
    with pytest.raises(sardonyx.SardonyxError, match="exists already"):
        compiler(OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS).compile_to_file()
    with pytest.raises(sardonyx.SardonyxError, match="no provider compiles nodes"):
        compiler(OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED).compile_to_file()


def test_compile_errors(path: Path) -> None:
    with pytest.raises(ValueError, match="empty"):
        ModelCompiler(SessionOptions(), b"")
    with pytest.raises(TypeError, match="sess_options"):
        ModelCompiler(None, path)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="excludes"):
        ModelCompiler(
            SessionOptions(), path, False, "w", get_initializer_location_func=lambda *a: None
        )
    with pytest.raises(sardonyx.SardonyxError, match="no path"):
        ModelCompiler(SessionOptions(), path.read_bytes()).compile_to_file()
    with pytest.raises(sardonyx.SardonyxError, match="not an ONNX model"):
        ModelCompiler(SessionOptions(), b"junk").compile_to_bytes()
    options = SessionOptions()
    options.set_load_cancellation_flag(True)
    with pytest.raises(sardonyx.SardonyxError, match="cancelled"):
        ModelCompiler(options, path).compile_to_bytes()
    compiler = ModelCompiler(SessionOptions(), path)
    compiler.set_ep_context_data_write_func(lambda name, data: None)
    compiler.clear_ep_context_data_write_func()
    with pytest.raises(TypeError, match="function"):
        compiler.compile_to_stream("x")  # type: ignore[arg-type]


def test_data_of_providers_that_callbacks_are_shown() -> None:
    data = sardonyx.OrtEpContextData(b"abcdef")
    assert (data.size, data.read(), data.read(2, 3)) == (6, b"abcdef", b"cde")
    with pytest.raises(RuntimeError, match="out of range: the size is 6"):
        data.read(4, 3)
    buffer = sardonyx.OrtEpContextDataBuffer(8)
    assert not buffer.is_allocated
    buffer.allocate(4)
    buffer.write(b"xy", 2)
    assert (buffer.size, buffer.max_size, buffer.is_allocated) == (4, 8, True)
    for wrong in (lambda: buffer.write(b"xyz", 2), lambda: buffer.allocate(2)):
        with pytest.raises(RuntimeError):
            wrong()
