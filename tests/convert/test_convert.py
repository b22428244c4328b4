"""Converting models: types, opsets, sizes, weights beside the model, .ort files."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import sardonyx
from sardonyx.convert import KEPT, ConvertOptions, convert, convert_to_bytes
from sardonyx.errors import InvalidArgument, NotImplemented, SardonyxError
from sardonyx.load.graph_text import parse
from sardonyx.load.model import Declared, Model
from sardonyx.models import DIGITS
from tests.pack.packs import external

HALVES: dict[str, Any] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def model_of(text: str, opset: int = 18) -> Model:
    """A model of a graph as text."""
    graph = parse(text)
    inputs, outputs = (
        [Declared(v.name, v.fact, tuple(map(_dim, v.tensor.dims))) for v in values]
        for values in (graph.inputs, graph.outputs)
    )
    return Model(graph, 8, {"": opset, "com.microsoft": 1}, inputs, outputs, [])


def _dim(size: Any) -> int | str:
    return size if isinstance(size, int) else str(size)


def written(text: str, path: Path, **options: Any) -> onnx.ModelProto:
    """Return the converted model, which onnx's checker accepts."""
    convert(model_of(text), path, ConvertOptions(**options))
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    return model


def ops(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


# A graph, the options, and the ops of the result in float16.
GRAPHS: dict[str, tuple[str, dict[str, Any], str]] = {
    "all in half": ("in x: f32[B,4]\na = Relu(x)\ny = Softmax(a)\nout y", {}, "Relu Softmax"),
    "inputs and outputs kept": (
        "in x: f32[B,4]\ny = Relu(x)\nout y", {"keep_io_types": True}, "Cast Relu Cast",
    ),
    "one input kept": (
        "in x: f32[4]\nin z: f32[4]\ny = Add(x, z)\nout y", {"keep_io_types": ["x"]}, "Cast Add",
    ),
    "a kept op": (
        "in x: f32[4]\na = Relu(x)\nb = Exp(a)\ny = Neg(b)\nout y", {"op_block_list": ["Exp"]},
        "Relu Cast Exp Cast Neg",
    ),
    "neighbours that are kept share no Casts": (
        "in x: f32[4]\na = Relu(x)\nb = Exp(a)\nc = Log(b)\ny = Neg(c)\nout y",
        {"op_block_list": ["Exp", "Log"]}, "Relu Cast Exp Log Cast Neg",
    ),
    "readers share a Cast": (
        "in x: f32[4]\na = Relu(x)\nb = Exp(a)\nc = Log(a)\ny = Add(b, c)\nout y",
        {"op_block_list": ["Exp", "Log", "Add"], "keep_io_types": ["y"]},
        "Relu Cast Exp Log Add",
    ),
    "moves between kept ops": (
        "in x: f32[2,3]\na = Exp(x)\nb = Transpose(a, perm=[1, 0])\ny = Log(b)\nout y",
        {"op_block_list": ["Exp", "Log"], "keep_io_types": True}, "Exp Transpose Log",
    ),
    "integers for a kept op": (
        "in x: i64[4]\na = Cast(x, to=1)\ny = Exp(a)\nout y",
        {"op_block_list": ["Exp"], "keep_io_types": True}, "Cast Exp",
    ),
    "integers": ("in x: i64[4]\na = Cast(x, to=1)\ny = Exp(a)\nout y", {}, "Cast Exp"),
    "a Cast that becomes useless": (
        "in x: f16[4]\na = Cast(x, to=1)\nb = Exp(a)\ny = Cast(b, to=10)\nout y", {}, "Exp",
    ),
    "inputs that are float32 for all types": (
        "in x: f32[1,1,2,2]\ny = Resize(x, _, [1.0, 1.0, 2.0, 2.0], _)\nout y", {}, "Resize",
    ),
    "outputs that are float32 for all types": (
        "in x: f32[4]\na, s, z = DynamicQuantizeLinear(x)\ny = DequantizeLinear(a, s, z)\nout y",
        {"op_block_list": []}, "Cast DynamicQuantizeLinear Cast DequantizeLinear",
    ),
    "branches": (
        """in c: bool[]
           in x: f32[2]
           y = If(c) { then_branch: { t = Exp(x) out t } else_branch: { e = Neg(x) out e } }
           out y""", {"op_block_list": ["Exp"]}, "Cast If",
    ),
    "no half of that opset": (
        "in x: f32[4]\ny = Celu(x)\nout y", {}, "Cast Celu Cast",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_casts_are_inserted_between_types(name: str, tmp_path: Path) -> None:
    text, options, expected = GRAPHS[name]
    model = written(text, tmp_path / "half.onnx", dtype="float16", **options)
    assert " ".join(ops(model)) == expected


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("keep", [False, True])
def test_results_equal_float32_up_to_rounding(dtype: str, keep: bool, tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((2, 1, 8, 8), np.float32)
    out, half = tmp_path / "half.onnx", HALVES[dtype]
    (expected,) = sardonyx.InferenceSession(DIGITS).run(None, {"image": x})
    done = convert(DIGITS, out, ConvertOptions(dtype=dtype, keep_io_types=keep))
    session = sardonyx.InferenceSession(out)
    (got,) = session.run(None, {"image": x if keep else x.astype(half)})
    assert got.dtype == (np.float32 if keep else half)
    assert done.half is not None
    assert done.half.n_casts == 2 * keep
    tolerance = float(ml_dtypes.finfo(half).eps) * 4 * np.abs(expected).max()
    np.testing.assert_allclose(got.astype(np.float32), expected, atol=tolerance)
    assert out.stat().st_size < 0.6 * Path(DIGITS).stat().st_size


def test_weights_stay_within_the_limits(tmp_path: Path) -> None:
    text = "in x: f32[6]\ny = Add(x, w)\nout y"
    model = model_of(text.replace("w)", "[1e-9, -1e-9, 0., 1e6, -1e6, 3.])"))
    done = convert(model, tmp_path / "a.onnx", ConvertOptions(dtype="float16"))
    assert done.half is not None
    assert (done.half.rounding.n_raised, done.half.rounding.n_lowered) == (2, 2)
    (tensor,) = onnx.load(tmp_path / "a.onnx").graph.initializer
    least = 2.0**-24
    assert numpy_helper.to_array(tensor).tolist() == [least, -least, 0, 65504, -65504, 3]
    limited = ConvertOptions(dtype="float16", min_positive=1e-3, max_finite=2.0)
    convert(model_of(text.replace("w)", "[1e-9, 1., 0., inf, nan, 3.])")), tmp_path / "b", limited)
    (tensor,) = onnx.load(tmp_path / "b").graph.initializer
    small = float(np.float16(1e-3))
    np.testing.assert_equal(
        numpy_helper.to_array(tensor).tolist(), [small, 1, 0, np.inf, np.nan, 2]
    )


def test_loops_carry_the_type(tmp_path: Path) -> None:
    text = """
        in n: i64[]
        in x: f32[3]
        y, s = Loop(n, _, x) { body: {
            in i: i64[]
            in c: bool[]
            in v: f32[3]
            w = Exp(v)
            z = Add(w, x)
            u = Tanh(z)
            out c, u, w
        } }
        out y, s
    """
    model = written(text, tmp_path / "half.onnx", dtype="float16", op_block_list=["Exp"])
    assert ops(model) == ["Loop"]
    x = np.ones(3, np.float32)
    for session in (sardonyx.InferenceSession, onnxruntime.InferenceSession):
        got = session(str(tmp_path / "half.onnx")).run(None, {"n": np.array(3), "x": x.astype("e")})
        assert [g.dtype for g in got] == [np.float16] * 2
        assert got[1].shape == (3, 3)


@pytest.mark.parametrize(
    ("op", "given", "expected"),
    [("HardSwish", None, 18), ("Relu", 13, 13), ("HardSwish", 17, 17), ("HardSwish", 24, 24)],
)
def test_opsets(op: str, given: int | None, expected: int, tmp_path: Path) -> None:
    model = written(f"in x: f32[2,8]\ny = {op}(x)\nout y", tmp_path / "m.onnx", opset=given)
    assert model.opset_import[0].version == expected


DECOMPOSED = {
    "GroupNormalization": "GroupNormalization(x, [1.0, 2.0, 3.0], [0.0, 1.0, 2.0], num_groups=3)",
    "LayerNormalization": "LayerNormalization(x, [[3.0]], axis=2)",
    "RMSNormalization": "RMSNormalization(x, 2.0)",
    "CastLike": "CastLike(x, 1.0)",
    "Gelu": "Gelu(x)",
    "Gelu of tanh": "Gelu(x, approximate='tanh')",
    "Mish": "Mish(x)",
    "Swish": "Swish(x, alpha=1.5)",
}


@pytest.mark.parametrize("name", DECOMPOSED)
def test_newer_ops_are_decomposed(name: str, tmp_path: Path) -> None:
    model = model_of(f"in x: f32[B,3,8,8]\ny = {DECOMPOSED[name]}\nout y", 24)
    x = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)
    (expected,) = sardonyx.InferenceSession(model).run(None, {"x": x})
    done = convert(model, tmp_path / "m.onnx", ConvertOptions(opset=14))
    assert done.opset == 14
    assert name.split()[0] not in ops(onnx.load(tmp_path / "m.onnx"))
    (got,) = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, {"x": x})
    np.testing.assert_allclose(got, expected, atol=1e-5)


OLDER: dict[str, str] = {
    "axes": "y = ReduceMax(x, [1, -1], keepdims=0)",
    "all axes": "y = ReduceMean(x)",
    "mean": "y = ReduceMean(x, [2])",
    "norm": "y = ReduceL2(x, [0, 1], keepdims=0)",
    "no zeros": "y = Reshape(x, [-1, 2], allowzero=1)",
    "equal parts": "a, b = Split(x, num_outputs=2, axis=2)\ny = Sub(a, b)",
}


@pytest.mark.parametrize("name", OLDER)
@pytest.mark.parametrize("opset", [13, 17, 18])
def test_conversion_to_older_opsets(name: str, opset: int, tmp_path: Path) -> None:
    text = f"in x: f32[2,3,4]\n{OLDER[name]}\nout y"
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    (expected,) = sardonyx.InferenceSession(model_of(text)).run(None, {"x": x})
    model = written(text, tmp_path / "m.onnx", opset=opset)
    assert model.opset_import[0].version == opset
    assert len(model.graph.node) == len(OLDER[name].split("\n"))
    for session in (sardonyx.InferenceSession, onnxruntime.InferenceSession):
        (got,) = session(str(tmp_path / "m.onnx")).run(None, {"x": x})
        np.testing.assert_allclose(got, expected, rtol=1e-6)
    back = convert(tmp_path / "m.onnx", tmp_path / "b.onnx")  # the opset stays
    assert back.opset == opset


FIXED: dict[str, tuple[dict[str, Any], list[list[Any]], list[Any]]] = {
    "by name": ({"dims": {"B": 4}}, [[4, "S"], ["S"]], [4, "S"]),
    "by shape": ({"shapes": {"x": (2, 3)}}, [[2, 3], [3]], [2, 3]),
    "both": ({"dims": {"B": 4}, "shapes": {"z": (5,)}}, [[4, 5], [5]], [4, 5]),
}


@pytest.mark.parametrize("name", FIXED)
def test_fixed_sizes(name: str, tmp_path: Path) -> None:
    options, inputs, output = FIXED[name]
    text = "in x: f32[B,S]\nin z: f32[S]\ny = Add(x, z)\nout y"
    convert(model_of(text), tmp_path / "m.onnx", ConvertOptions())
    convert(tmp_path / "m.onnx", tmp_path / "fixed.onnx", ConvertOptions(**options))
    session = onnxruntime.InferenceSession(tmp_path / "fixed.onnx")
    assert [i.shape for i in session.get_inputs()] == inputs
    assert session.get_outputs()[0].shape == output


def test_external_and_embedded_weights(tmp_path: Path) -> None:
    path = external(tmp_path)
    expected = onnx.load(path).graph.initializer
    kept = convert(path, tmp_path / "a.onnx")
    assert [Path(f).name for f in kept.files] == ["a.onnx", "a.onnx.data"]
    inside = convert(path, tmp_path / "b.onnx", ConvertOptions(external_data=False))
    assert [Path(f).name for f in inside.files] == ["b.onnx"]
    named = convert(tmp_path / "b.onnx", tmp_path / "c.onnx", ConvertOptions(external_data="w"))
    assert [Path(f).name for f in named.files] == ["c.onnx", "w"]
    for name in "abc":
        found = {t.name: numpy_helper.to_array(t)
                 for t in onnx.load(tmp_path / f"{name}.onnx").graph.initializer}  # fmt: skip
        for tensor in expected:
            if tensor.name != "odd":  # which nothing reads
                np.testing.assert_array_equal(found[tensor.name], numpy_helper.to_array(tensor))


def test_ort_files_and_back(tmp_path: Path) -> None:
    convert(DIGITS, tmp_path / "m.ort")
    convert(tmp_path / "m.ort", tmp_path / "back.onnx", ConvertOptions(dtype="float16"))
    x = np.ones((2, 1, 8, 8), np.float32)
    (expected,) = onnxruntime.InferenceSession(DIGITS).run(None, {"image": x})
    (got,) = onnxruntime.InferenceSession(tmp_path / "m.ort").run(None, {"image": x})
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    half = onnxruntime.InferenceSession(tmp_path / "back.onnx")
    (got,) = half.run(None, {"image": x.astype("e")})
    np.testing.assert_allclose(got, expected, rtol=1e-2, atol=1e-2)


REFUSED: dict[str, tuple[dict[str, Any], type[SardonyxError], str]] = {
    "type": ({"dtype": "int8"}, InvalidArgument, "'int8' is not a type: give float16 or bfloat16"),
    "opset": ({"opset": 99}, InvalidArgument, "there is no opset 99; the newest is 28"),
    "old opset": ({"opset": 11}, NotImplemented, "opset 13 or newer, and 11 was asked for"),
    "op": ({"opset": 17}, NotImplemented, "BitwiseNot as it is used here needs opset 18"),
    "dim": ({"dims": {"C": 1}}, InvalidArgument, "no input has a dim C; the symbolic dims are B"),
    "size": ({"dims": {"B": -1}}, InvalidArgument, "the dim B must be .*, got -1"),
    "part of a size": ({"dims": {"B": 2.5}}, InvalidArgument, "the dim B must be .*, got 2.5"),
    "one op": (
        {"dtype": "float16", "op_block_list": "Conv"}, InvalidArgument,
        "op_block_list must be a list of names, got the string 'Conv'",
    ),
    "one output": (
        {"dtype": "float16", "keep_io_types": "y"}, InvalidArgument, "keep_io_types must be a list",
    ),
    "input": ({"shapes": {"w": (1,)}}, InvalidArgument, "there is no input w; the inputs are x, z"),
    "shape": ({"shapes": {"x": (1, 3)}}, InvalidArgument, r"x cannot have the shape \[1, 3\]"),
    "contradiction": (
        {"shapes": {"x": (1, 2), "z": (3,)}}, InvalidArgument, "makes B 3, and it is 1 elsewhere",
    ),
    "limits": (
        {"dtype": "float16", "min_positive": 2.0, "max_finite": 1.0}, InvalidArgument,
        "no number is between",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str, tmp_path: Path) -> None:
    options, error, words = REFUSED[name]
    text = "in x: i32[B,2]\nin z: i32[B]\ny = BitwiseNot(x)\nout y, z"
    with pytest.raises(error, match=words):
        convert(model_of(text), tmp_path / "m.onnx", ConvertOptions(**options))
    assert not list(tmp_path.iterdir())


def test_source_files_are_not_overwritten(tmp_path: Path) -> None:
    path = external(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    for out, data in (("model.onnx", False), ("model.data", False), ("o.onnx", "model.data")):
        with pytest.raises(InvalidArgument, match="is a file of the model itself"):
            convert(path, tmp_path / out, ConvertOptions(external_data=data))
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_branches_not_taken_may_be_invalid(tmp_path: Path) -> None:
    """A Split that does not fit the sizes, in the branch that they do not select."""
    model = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["": 18]>
    g (float[2, 5] x) => (float[2, 1] y) {
        shape = Shape(x)
        size = Gather(shape, one)
        is_four = Equal(size, four)
        y = If (is_four) <then_branch = g1 () => (float[2, 1] a) {
            a, b, c, d = Split<axis=1, num_outputs=4>(x)
        }, else_branch = g2 () => (float[2, 1] e) {
            e, f, g, h, i = Split<axis=1, num_outputs=5>(x)
        }>
    }""")
    for name, number in (("one", 1), ("four", 4)):
        model.graph.initializer.append(numpy_helper.from_array(np.array(number), name))
    onnx.save(model, tmp_path / "m.onnx")
    options = ConvertOptions(dtype="float16", keep_io_types=True)
    convert(tmp_path / "m.onnx", tmp_path / "half.onnx", options)
    x = np.arange(10, dtype=np.float32).reshape(2, 5)
    for runtime in (sardonyx, onnxruntime):
        (y,) = runtime.InferenceSession(tmp_path / "half.onnx").run(None, {"x": x})
        np.testing.assert_array_equal(y, x[:, :1])


def test_unknown_nodes_of_the_block_list_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "sardonyx"):
        options = ConvertOptions(dtype="float16", node_block_list=["misspelt"])
        convert(DIGITS, tmp_path / "m.onnx", options)
    assert "no node has the name misspelt" in caplog.text


def test_models_in_memory_have_a_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sardonyx.convert.MAX_BYTES", 10_000)
    with pytest.raises(InvalidArgument, match="a ModelProto has at most 10000"):
        convert_to_bytes(DIGITS, ConvertOptions(opset=18))


def test_ort_files_hold_their_weights(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="cannot have external data"):
        convert(DIGITS, tmp_path / "m.ort", ConvertOptions(external_data="w"))
    assert not list(tmp_path.iterdir())


def test_blocked_ops_are_those_of_onnxruntime() -> None:
    from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST

    assert set(DEFAULT_OP_BLOCK_LIST) == KEPT
