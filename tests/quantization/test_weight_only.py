"""MatMulNBitsQuantizer and MatMulBnb4Quantizer: what they make, and errors."""

from __future__ import annotations

import sys
import types
from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.errors import InvalidArgument
from sardonyx.quantization import matmul_nbits as tools
from sardonyx.quantization import quantize
from sardonyx.quantization.matmul_bnb4 import MatMulBnb4Quantizer
from sardonyx.quantization.quant_types import QuantFormat
from sardonyx.quantization.weight_only import rounding, stored
from sardonyx.quantization.weight_only.grid import Format

QDQ = QuantFormat.QDQ


def matmul_model(*shape: int, x: Any = ("rows", None), dtype: Any = np.float32) -> onnx.ModelProto:
    """Return y = x W, with a W of some shape."""
    weight = np.random.default_rng(0).normal(size=shape).astype(dtype)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    dims = [shape[-2] if d is None else d for d in x]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "product")],
        "g",
        [helper.make_tensor_value_info("x", kind, dims)],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


def saved(quantizer: Any, path: Any, external: bool = False) -> onnx.ModelProto:
    """Return what a quantizer writes."""
    quantizer.process()
    quantizer.model.save_model_to_file(path, external)
    return onnx.load(path)


@pytest.mark.parametrize("form", ["path", "proto"])
def test_quantize_by_configuration(tmp_path: Any, form: str) -> None:
    model, out = matmul_model(64, 16), tmp_path / "q.onnx"
    onnx.save(model, tmp_path / "float.onnx")
    config = tools.RTNWeightOnlyQuantConfig()
    quantize(tmp_path / "float.onnx" if form == "path" else model, out, config)
    found = onnx.load(out)
    assert found.graph.node[0].op_type == "MatMulNBits"
    expected = saved(tools.MatMulNBitsQuantizer(model, algo_config=config), tmp_path / "same.onnx")
    found_arrays, expected_arrays = (
        [numpy_helper.to_array(t) for t in m.graph.initializer] for m in (found, expected)
    )
    for a, b in zip(found_arrays, expected_arrays, strict=True):
        np.testing.assert_array_equal(a, b)


def test_edited_models_are_saved_again(tmp_path: Any) -> None:
    quantizer = tools.MatMulNBitsQuantizer(matmul_model(256, 64), block_size=32)
    quantizer.process()
    quantizer.model.model.graph.name = "edited"
    feed = {"x": np.ones((2, 256), np.float32)}
    results = []
    for name in ("a.onnx", "a.onnx", "b.onnx"):
        quantizer.model.save_model_to_file(tmp_path / name, use_external_data_format=True)
        assert (tmp_path / f"{name}.data").exists()
        assert onnx.load(tmp_path / name, load_external_data=False).graph.name == "edited"
        results.append(sardonyx.InferenceSession(tmp_path / name).run(None, feed)[0])
    np.testing.assert_array_equal(results[0], results[2])
    assert any(t.raw_data for t in quantizer.model.model.graph.initializer)


def ops(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def outputs(path: Any, feed: dict[str, Any]) -> tuple[Any, Any]:
    """Return the first output here, and with onnxruntime."""
    ours = sardonyx.InferenceSession(path).run(None, feed)[0]
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")  # not int8
    theirs = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return ours, theirs.run(None, feed)[0]


CONFIGS = (
    # config, arguments, ops, relative error of the product
    (None, {}, {"MatMulNBits": 1}, 0.12),
    (None, {"is_symmetric": True, "accuracy_level": 1}, {"MatMulNBits": 1}, 0.12),
    (None, {"bits": 8, "block_size": 16}, {"MatMulNBits": 1}, 0.006),
    (None, {"bits": 2, "block_size": 16}, {"MatMulNBits": 1}, 0.5),
    (None, {"bits": 3, "block_size": 16}, {"MatMulNBits": 1}, 0.22),
    (None, {"bits": 3, "is_symmetric": True}, {"MatMulNBits": 1}, 0.3),
    (None, {"quant_format": QDQ}, {"DequantizeLinear": 1, "MatMul": 1}, 0.12),
    (None, {"quant_format": QDQ, "is_symmetric": True}, {"DequantizeLinear": 1}, 0.12),
    (None, {"quant_format": QDQ, "bits": 8}, {"DequantizeLinear": 1}, 0.006),
    (None, {"quant_format": QDQ, "channel_wised_quantize": True}, {"DequantizeLinear": 1}, 0.15),
    (tools.RTNWeightOnlyQuantConfig, {}, {"MatMulNBits": 1}, 0.12),
    (tools.RTNWeightOnlyQuantConfig, {"is_symmetric": True}, {"MatMulNBits": 1}, 0.12),
    (tools.RTNWeightOnlyQuantConfig, {"bits": 3}, {"MatMulNBits": 1}, 0.25),
    (tools.KQuantWeightOnlyQuantConfig, {}, {"MatMulNBits": 1}, 0.11),
    (tools.HQQWeightOnlyQuantConfig, {}, {"MatMulNBits": 1}, 0.13),
)


@pytest.mark.parametrize(("config", "arguments", "expected", "limit"), CONFIGS)
def test_weights_are_quantized(config, arguments, expected, limit, tmp_path):
    """Each configuration makes its ops, with results near those of the model."""
    model, x = matmul_model(200, 24), np.random.default_rng(1).normal(size=(5, 200))
    made = None if config is None else config()
    arguments = {"block_size": 32, **arguments}
    quantizer = tools.MatMulNBitsQuantizer(model, algo_config=made, **arguments)
    found = ops(saved(quantizer, tmp_path / "q.onnx"))
    assert {op: found[op] for op in expected} == expected
    feed = {"x": x.astype(np.float32)}
    exact = feed["x"] @ numpy_helper.to_array(model.graph.initializer[0])
    ours, theirs = outputs(tmp_path / "q.onnx", feed)
    assert np.linalg.norm(ours - exact) < limit * np.linalg.norm(exact)
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("quant_format", list(QuantFormat))
@pytest.mark.parametrize(("shape", "x"), [((1, 32, 8), ("n", 32)), ((1, 1, 32, 8), (2, 3, 32))])
def test_leading_dims_are_restored(shape, x, quant_format, dtype, tmp_path):
    """A weight [1, K, N] makes results of rank 3, also with a matrix of activations."""
    model = matmul_model(*shape, x=x, dtype=dtype)
    quantizer = tools.MatMulNBitsQuantizer(model, block_size=16, quant_format=quant_format)
    saved(quantizer, tmp_path / "q.onnx")
    feed = {"x": np.ones([3 if d == "n" else d for d in x], dtype)}
    weight = numpy_helper.to_array(model.graph.initializer[0])
    ours = sardonyx.InferenceSession(tmp_path / "q.onnx").run(None, feed)[0]
    assert ours.shape == (feed["x"] @ weight).shape


@pytest.mark.parametrize("is_symmetric", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_tables_of_gather(is_symmetric, axis, tmp_path):
    """Gather becomes GatherBlockQuantized, with blocks along the axis that is asked for."""
    table = np.random.default_rng(0).normal(size=(40, 48)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Gather", ["t", "i"], ["y"], "rows")],
        "g",
        [helper.make_tensor_value_info("i", TensorProto.INT64, [3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 48])],
        [numpy_helper.from_array(table, "t")],
    )
    model = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 19)])
    quantizer = tools.MatMulNBitsQuantizer(
        model, block_size=16, is_symmetric=is_symmetric, op_types_to_quantize=("MatMul", "Gather"),
        quant_axes=(("Gather", axis),),
    )  # fmt: skip
    assert ops(saved(quantizer, tmp_path / "q.onnx"))["GatherBlockQuantized"] == 1
    feed = {"i": np.array([39, 0, 7])}
    ours, theirs = outputs(tmp_path / "q.onnx", feed)
    np.testing.assert_array_equal(ours, theirs)
    assert np.abs(ours - table[feed["i"]]).max() < 0.35


def test_nodes_are_chosen(tmp_path):
    """Excluded nodes stay; nodes of one weight share its codes; a node may have its own bits."""
    model = matmul_model(32, 32)
    for i in range(3):
        model.graph.node.append(helper.make_node("MatMul", ["x", "w"], [f"y{i}"], f"more{i}"))
        model.graph.output.append(helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, None))
    config = tools.RTNWeightOnlyQuantConfig(customized_weight_config={"more2": {"bits": 8}})
    quantizer = tools.MatMulNBitsQuantizer(
        model, block_size=16, nodes_to_exclude=["more1"], algo_config=config
    )
    made = saved(quantizer, tmp_path / "q.onnx")
    assert ops(made) == {"MatMulNBits": 3, "MatMul": 1}
    assert {n.name for n in made.graph.node} == {"product_Q4", "more0_Q4", "more1", "more2_Q8"}
    assert len({t.name for t in made.graph.initializer if t.data_type == TensorProto.UINT8}) == 4


def test_weights_are_quantized_once_as_they_are_written(tmp_path, monkeypatch):
    """With external data each weight is read once, while the file is written."""
    calls = []
    by_columns = rounding.by_columns
    monkeypatch.setattr(
        rounding, "by_columns", lambda w, f, round_: calls.append(1) or by_columns(w, f, round_)
    )
    model = matmul_model(256, 512)
    model.graph.node.append(helper.make_node("MatMul", ["x", "v"], ["z"], "other"))
    other = np.random.default_rng(2).normal(size=(256, 512)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(other, "v"))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    quantizer = tools.MatMulNBitsQuantizer(str(path), block_size=32)
    quantizer.process()
    assert not calls
    quantizer.model.save_model_to_file(tmp_path / "q.onnx", True)
    assert len(calls) == 2
    assert (tmp_path / "q.onnx.data").stat().st_size < 2 * 256 * 512 * 0.8
    assert stored.LazyArrays._last is not None
    assert ops(quantizer.model.model) == {"MatMulNBits": 2}  # the proto, made when it is read
    quantizer.model.model.graph.node[0].name = "edited"
    quantizer.model.save_model_to_file(tmp_path / "e.onnx")
    assert onnx.load(tmp_path / "e.onnx").graph.node[0].name == "edited"
    assert quantizer.model.get_initializer("w_scales") is not None
    assert quantizer.model.get_initializer("missing") is None


@pytest.mark.parametrize("quant_type", [MatMulBnb4Quantizer.FP4, MatMulBnb4Quantizer.NF4])
def test_bnb4(quant_type, tmp_path):
    """Codes of bitsandbytes."""
    model = matmul_model(64, 24)
    quantizer = MatMulBnb4Quantizer(model, quant_type, 64)
    assert ops(saved(quantizer, tmp_path / "q.onnx")) == {"MatMulBnb4": 1}
    x = np.random.default_rng(1).normal(size=(3, 64)).astype(np.float32)
    ours, theirs = outputs(tmp_path / "q.onnx", {"x": x})
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    exact = x @ numpy_helper.to_array(model.graph.initializer[0])
    assert np.linalg.norm(ours - exact) < 0.25 * np.linalg.norm(exact)
    kept = MatMulBnb4Quantizer(model, quant_type, 64, nodes_to_exclude=["product"])
    assert ops(saved(kept, tmp_path / "k.onnx")) == {"MatMul": 1}


@pytest.fixture
def compressor(monkeypatch):
    """onnxruntime's RTN and k-quant; onnx_ir, which they import, is not installed."""
    if "onnx_ir" not in sys.modules:
        monkeypatch.setitem(sys.modules, "onnx_ir", types.ModuleType("onnx_ir"))
    from onnxruntime.quantization.neural_compressor import weight_only

    return weight_only


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("rows", "columns", "block"), [(256, 40, 32), (200, 33, 64), (64, 7, 128)])
def test_codes_are_those_of_onnxruntime(rows, columns, block, bits, compressor):
    """RTN and k-quant are equal bit for bit, constant blocks included."""
    weight = np.random.default_rng(0).normal(size=(rows, columns)).astype(np.float32)
    weight[:block, 0] = 0
    weight[:, 1] = 0.25
    padded = compressor.pad_tensor(weight, block, -(-rows // block)).T
    with np.errstate(all="ignore"):
        cases = (
            (rounding.rtn, False, compressor.quant_tensor(padded, bits, block, "asym", "uint")),
            (rounding.rtn, True, compressor.quant_tensor(padded, bits, block, "sym", "uint")),
            (rounding.k_quant, False, compressor.quant_tensor_k_quant_cpu(padded, bits, block)),
        )
    for round_, is_symmetric, (codes, scale, zero) in cases:
        found = rounding.by_columns(weight, Format(bits, block, is_symmetric), round_)
        np.testing.assert_array_equal(found.codes.reshape(-1, block), codes.astype(np.uint8))
        np.testing.assert_array_equal(found.scale.reshape(-1), scale.astype(np.float32)[:, 0])
        assert found.zero is None or np.array_equal(found.zero.reshape(-1), zero[:, 0])


ERRORS = (
    (lambda: tools.MatMulNBitsQuantizer(matmul_model(32, 8), bits=5), AssertionError, "got 5"),
    (lambda: tools.MatMulNBitsQuantizer(matmul_model(32, 8), block_size=24).process(),
     InvalidArgument, "block_size is 24"),
    (lambda: tools.DefaultWeightOnlyQuantConfig(channel_wised_quantize=True),
     NotImplementedError, "QDQ"),
    (lambda: tools.HQQWeightOnlyQuantConfig(quant_format=QDQ), InvalidArgument, "HQQ makes"),
    (lambda: tools.NVAWQWeightOnlyQuantConfig("folder"), InvalidArgument, "is not downloaded"),
    (lambda: tools.NVAWQWeightOnlyQuantConfig("f", "cnn", "c", "best", []), InvalidArgument,
     "awq_lite or awq_clip"),
    (lambda: MatMulBnb4Quantizer(matmul_model(32, 8), 2, 64), AssertionError, "got 2"),
    (lambda: MatMulBnb4Quantizer(matmul_model(32, 8), 1, 60), InvalidArgument, "is 60"),
    (lambda: Format(6, 32, True), InvalidArgument, "got 6"),
)  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")  # numpy's, before the error
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite(tmp_path: Any, value: float) -> None:
    model = matmul_model(64, 16)
    weight = numpy_helper.to_array(model.graph.initializer[0]).copy()
    weight[3, 5] = value
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w"))
    for config in (None, tools.RTNWeightOnlyQuantConfig(), tools.KQuantWeightOnlyQuantConfig()):
        with pytest.raises(InvalidArgument, match="NaN or infinity"):
            saved(tools.MatMulNBitsQuantizer(model, algo_config=config), tmp_path / "q.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("call", "error", "text"), ERRORS)
def test_errors(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_tables_have_4_bits():
    table = numpy_helper.from_array(np.ones((32, 32), np.float32), "t")
    graph = helper.make_graph(
        [helper.make_node("Gather", ["t", "i"], ["y"], "rows")],
        "g",
        [helper.make_tensor_value_info("i", TensorProto.INT64, [3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 32])],
        [table],
    )
    model = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 19)])
    quantizer = tools.MatMulNBitsQuantizer(model, bits=8, op_types_to_quantize=("Gather",))
    with pytest.raises(InvalidArgument, match="to 4 bits as GatherBlockQuantized only"):
        quantizer.process()


@pytest.mark.parametrize("method", ["default", "rtn", "k_quant", "hqq", "gptq", "awq"])
def test_command(method, tmp_path):
    """The options of onnxruntime's command, and samples of calibrated methods."""
    onnx.save(matmul_model(64, 16), tmp_path / "m.onnx")
    np.savez(tmp_path / "s.npz", x=np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32))
    paths = ["--input_model", f"{tmp_path}/m.onnx", "--output_model", f"{tmp_path}/q.onnx"]
    more = ["--samples", f"{tmp_path}/s.npz"] if method in ("gptq", "awq") else []
    tools.main([*paths, "--quant_method", method, "--block_size", "16", *more])
    assert ops(onnx.load(tmp_path / "q.onnx")) == {"MatMulNBits": 1}
    with pytest.raises(SystemExit, match="exists already"):
        tools.main(paths)
    if more:
        with pytest.raises(SystemExit, match="needs --samples"):
            tools.main([*paths[:3], f"{tmp_path}/r.onnx", "--quant_method", method])
