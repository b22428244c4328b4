"""onnxruntime.tools: functions over ModelProtos, command lines, models in the .ort format."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import sardonyx
from sardonyx.as_onnxruntime import environment
from sardonyx.errors import InvalidArgument
from sardonyx.models import DIGITS
from sardonyx.tools import command_lines
from sardonyx.tools import convert_onnx_models_to_ort as to_ort
from sardonyx.tools import onnx_model_utils as utils
from sardonyx.tools.onnxruntime_test import run_model
from sardonyx.tools.proto_files import save_proto

X = np.random.default_rng(0).random((2, 1, 8, 8), np.float32)


def dims(value: onnx.ValueInfoProto) -> list[Any]:
    return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}')


def test_fixed_sizes() -> None:
    model = parsed("(float[B,S,3] x, float[B] z) => (float[B,S,3] y) { y = Relu(x) }")
    utils.make_dim_param_fixed(model.graph, "S", 5)
    assert dims(model.graph.input[0]) == ["B", 5, 3]
    utils.make_input_shape_fixed(model.graph, "x", [2, 5, 3])
    assert [dims(v) for v in (*model.graph.input, *model.graph.output)] == [
        [2, 5, 3],
        [2],
        [2, 5, 3],
    ]
    model = parsed("(float[B,3] x) => (float[C,D] y) { y = Transpose(x) }")
    utils.make_input_shape_fixed(model.graph, "x", [4, 3])
    assert not utils.is_fixed_size_tensor(model.graph.output[0])
    utils.fix_output_shapes(model)
    assert dims(model.graph.output[0]) == [3, 4]


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("w", [1], "Input w was not found in graph inputs. Valid input names are: x"),
        ("x", [1], "Rank mismatch. Existing:2 Replacement:1"),
        ("x", [1, 4], "Can't replace existing fixed size of 3 with 4 for dimension 2"),
    ],
)
def test_wrong_shapes(name: str, shape: list[int], words: str) -> None:
    model = parsed("(float[B,3] x) => (float[B,3] y) { y = Relu(x) }")
    with pytest.raises(ValueError, match=words):
        utils.make_input_shape_fixed(model.graph, name, shape)


def test_edges_between_nodes() -> None:
    model = parsed("(float[2] x) => (float[2] y) { a = Relu(x) b = Exp(a) y = Add(a, b) }")
    producers, consumers = utils.get_producer_consumer_maps(model.graph)
    relu, exp, add = model.graph.node
    assert producers == {exp: {relu}, add: {relu, exp}}
    assert consumers == {relu: {exp, add}, exp: {add}}
    del model.graph.node[0]
    with pytest.raises(ValueError, match="missing inputs of a"):
        utils.get_producer_consumer_maps(model.graph)


def test_levels_and_opsets(tmp_path: Path) -> None:
    assert (
        utils.get_optimization_level("layout") == sardonyx.GraphOptimizationLevel.ORT_ENABLE_LAYOUT
    )
    with pytest.raises(ValueError, match="Invalid optimization level of most: give one of disable"):
        utils.get_optimization_level("most")
    newer = utils.update_onnx_opset(DIGITS, 21, tmp_path / "new.onnx")
    assert utils.get_opsets_imported(newer) == {"ai.onnx": 21}
    assert utils.get_opsets_imported(onnx.load(tmp_path / "new.onnx")) == {"ai.onnx": 21}
    model = utils.ModelProtoWithShapeInfo(DIGITS).model_with_shape_info
    assert len(model.graph.value_info) >= len(model.graph.node) - 1
    utils.optimize_model(DIGITS, tmp_path / "o.onnx", utils.get_optimization_level("all"))
    assert len(onnx.load(tmp_path / "o.onnx").graph.node) < len(model.graph.node)


def test_command_lines(tmp_path: Path) -> None:
    given, out = str(DIGITS), tmp_path / "o.onnx"
    command_lines.make_dynamic_shape_fixed_helper(
        ["--dim_param", "batch", "--dim_value", "4", given, str(out)]
    )
    assert dims(onnx.load(out).graph.output[0]) == [4, 10]
    command_lines.make_dynamic_shape_fixed_helper(
        ["--input_name", "image", "--input_shape", "2,1,8,8", given, str(out)]
    )
    assert dims(onnx.load(out).graph.output[0]) == [2, 10]
    with pytest.raises(SystemExit):
        command_lines.make_dynamic_shape_fixed_helper(["--dim_param", "batch", given, str(out)])
    command_lines.optimize_model_helper(["--opt_level", "extended", given, str(out)])
    command_lines.update_onnx_opset_helper(["--opset", "18", given, str(out)])
    assert utils.get_opsets_imported(onnx.load(out)) == {"ai.onnx": 18}
    model = onnx.load(given)
    tensor = model.graph.initializer[0]
    shape = list(tensor.dims)
    model.graph.input.append(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, shape)
    )
    onnx.save(model, out)
    command_lines.remove_initializer_helper(["--input", str(out), "--output", str(out)])
    assert [i.name for i in onnx.load(out).graph.input] == ["image"]


def test_ort_files(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "inner"
    folder.mkdir(parents=True)
    (folder / "digits.onnx").write_bytes(Path(DIGITS).read_bytes())
    (folder / "digits.optimized.onnx").write_bytes(b"not read")
    out = tmp_path / "out"
    to_ort.main([str(tmp_path / "models"), "--output_dir", str(out), "--save_optimized_onnx_model"])
    found = sorted(str(p.relative_to(out)) for p in out.rglob("*") if p.is_file())
    assert found == [
        "inner/digits.optimized.onnx", "inner/digits.ort",
        "inner/digits.with_runtime_opt.optimized.onnx", "inner/digits.with_runtime_opt.ort",
        "required_operators.config", "required_operators.with_runtime_opt.config",
    ]  # fmt: skip
    config = (out / "required_operators.with_runtime_opt.config").read_text()
    assert "ai.onnx;11;" in config
    assert "Gemm" in config
    (expected,) = onnxruntime.InferenceSession(DIGITS).run(None, {"image": X})
    for name in ("digits.ort", "digits.with_runtime_opt.ort"):
        (got,) = onnxruntime.InferenceSession(out / "inner" / name).run(None, {"image": X})
        np.testing.assert_allclose(got, expected, atol=1e-6)
    with pytest.raises(ValueError, match="No model files were found"):
        to_ort.convert_onnx_models_to_ort(
            out / "inner" / "digits.ort", None, [to_ort.OptimizationStyle.Fixed]
        )
    with pytest.raises(FileNotFoundError):
        to_ort.convert_onnx_models_to_ort(tmp_path / "nowhere")
    with pytest.raises(NotImplementedError, match="libraries of custom ops"):
        to_ort.convert_onnx_models_to_ort(folder, custom_op_library_path=Path("x.so"))


def test_running_a_model(capsys: Any) -> None:
    code, feeds, (y,) = run_model(str(DIGITS), 2, symbolic_dims={"batch": "3"})
    assert (code, feeds["image"].shape, y.shape) == (0, (3, 1, 8, 8), (3, 10))
    assert "iterations: 2" in capsys.readouterr().out


def test_modules_run_as_programs(tmp_path: Path) -> None:
    module = "onnxruntime.tools.make_dynamic_shape_fixed"
    arguments = ["--dim_param", "batch", "--dim_value", "1", str(DIGITS), "o.onnx"]
    root = str(Path(sardonyx.__file__).parents[1])
    path = {"PYTHONPATH": f"{environment()['PYTHONPATH']}:{root}"}
    subprocess.run([sys.executable, "-m", module, *arguments], cwd=tmp_path, env=path, check=True)
    assert dims(onnx.load(tmp_path / "o.onnx").graph.input[0]) == [1, 1, 8, 8]


def test_files_of_protos(tmp_path: Path) -> None:
    model = onnx.load(DIGITS)
    before = model.SerializeToString(deterministic=True)
    save_proto(model, tmp_path / "m.onnx", "w", 512)
    assert model.SerializeToString(deterministic=True) == before
    assert (tmp_path / "w").stat().st_size > 10_000 > (tmp_path / "m.onnx").stat().st_size
    again = onnx.load(tmp_path / "m.onnx")
    for mine, theirs in zip(again.graph.initializer, model.graph.initializer, strict=True):
        assert mine.raw_data == theirs.raw_data
    (expected,) = onnxruntime.InferenceSession(DIGITS).run(None, {"image": X})
    (got,) = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, {"image": X})
    np.testing.assert_array_equal(got, expected)
    for name in ("../w", "m.onnx"):
        with pytest.raises(InvalidArgument, match="is not the name of another file beside"):
            save_proto(model, tmp_path / "m.onnx", name)
    light = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    with pytest.raises(InvalidArgument, match="which are not loaded and would be lost"):
        save_proto(light, tmp_path / "n.onnx", "w")
    assert (tmp_path / "w").stat().st_size > 10_000
