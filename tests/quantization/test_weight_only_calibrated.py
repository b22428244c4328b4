"""GPTQ, AWQ, and the streams of activations that they are calibrated by."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.errors import InvalidArgument
from sardonyx.graph.graph import input_of
from sardonyx.quantization import matmul_nbits as tools
from sardonyx.quantization.weight_only.gptq import Rounding, compensated, curvature, error
from sardonyx.quantization.weight_only.grid import (
    Format,
    padded_blocks,
    range_grid,
    searched_grid,
)
from sardonyx.quantization.weight_only.streams import ActivationStream

WIDTH = 64


def activations(rows: int, size: int, seed: int = 0) -> Any:
    """Return correlated rows, with some channels much larger than others."""
    rng = np.random.default_rng(seed)
    mixing = rng.normal(size=(size // 4, size)) * np.exp(rng.normal(size=size))
    noise = 0.1 * rng.normal(size=(rows, size))
    return (rng.normal(size=(rows, size // 4)) @ mixing + noise).astype(np.float32)


def network() -> onnx.ModelProto:
    """Return two residual layers, normalized, of inputs [batch, length, WIDTH]."""
    rng, nodes, tensors = np.random.default_rng(0), [], []

    def const(name: str, array: Any) -> str:
        tensors.append(numpy_helper.from_array(np.asarray(array, np.float32), name))
        return name

    def node(op: str, inputs: list[str], out: str, **attrs: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [out], f"{out}_node", **attrs))
        return out

    x = "x"
    for i in range(2):
        scale = const(f"scale{i}", np.exp(rng.normal(size=WIDTH)))
        bias = const(f"bias{i}", 0.1 * rng.normal(size=WIDTH))
        y = node("LayerNormalization", [x, scale, bias], f"norm{i}")
        up = const(f"up{i}", rng.normal(size=(WIDTH, 2 * WIDTH)) / 8)
        down = const(f"down{i}", rng.normal(size=(2 * WIDTH, WIDTH)) / 12)
        inner = node("Relu", [node("MatMul", [y, up], f"wide{i}")], f"relu{i}")
        x = node("Add", [x, node("MatMul", [inner, down], f"narrow{i}")], f"sum{i}")
    dims = ["batch", "length", WIDTH]
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, dims)],
        tensors,
    )
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


def samples(count: int = 6, seed: int = 0) -> list[dict[str, Any]]:
    """Return samples of two lengths."""
    lengths = [16 + 8 * (i % 2) for i in range(count)]
    return [{"x": activations(n, WIDTH, seed)[None]} for n in lengths]


def run(model: Any, data: list[dict[str, Any]]) -> Any:
    session = sardonyx.InferenceSession(model)
    return np.concatenate([session.run(None, sample)[0][0] for sample in data])


def loss(config: Any, tmp_path: Any, **arguments: Any) -> float:
    """Return the relative error of the quantized network, on data that it is not calibrated by."""
    quantizer = tools.MatMulNBitsQuantizer(network(), algo_config=config, **arguments)
    quantizer.process()
    quantizer.model.save_model_to_file(tmp_path / "q.onnx")
    data = samples(4, seed=0)
    exact = run(network().SerializeToString(), data)
    return float(np.linalg.norm(run(tmp_path / "q.onnx", data) - exact) / np.linalg.norm(exact))


@pytest.mark.parametrize("bits", [3, 4])
@pytest.mark.parametrize("is_symmetric", [False, True])
def test_calibrated_weights_lose_less(bits, is_symmetric, tmp_path):
    """GPTQ loses at most half of what rounding does; AWQ and both together lose less as well."""
    given = {"bits": bits, "block_size": 32, "is_symmetric": is_symmetric}
    rounded = loss(None, tmp_path, **given)
    assert loss(tools.GPTQWeightOnlyQuantConfig(samples()), tmp_path, **given) < 0.5 * rounded
    swept = tools.GPTQWeightOnlyQuantConfig(samples(), sweeps=3)
    assert loss(swept, tmp_path, **given) < 0.5 * rounded
    both = tools.GPTQWeightOnlyQuantConfig(samples(), awq=True)
    assert loss(both, tmp_path, **given) < 0.5 * rounded
    assert loss(tools.AWQWeightOnlyQuantConfig(samples()), tmp_path, **given) < 0.9 * rounded


@pytest.mark.parametrize("method", ["awq_lite", "awq_clip"])
def test_nvidia_awq_is_qdq(method, tmp_path):
    """Weights are dequantized by DequantizeLinear; norms are divided by awq_lite only."""
    config = tools.NVAWQWeightOnlyQuantConfig(
        calibration_method=method, calibration_data_reader=samples()
    )
    assert loss(config, tmp_path, block_size=32) < 0.2
    model = onnx.load(tmp_path / "q.onnx")
    assert sum(node.op_type == "DequantizeLinear" for node in model.graph.node) == 4
    norm = next(node for node in model.graph.node if node.op_type == "LayerNormalization")
    assert norm.input[1:] == (
        ["scale0_divided", "bias0_divided"] if method == "awq_lite" else ["scale0", "bias0"]
    )


class Reader:
    """A CalibrationDataReader, as onnxruntime's programs write it."""

    def __init__(self) -> None:
        self._left = iter(samples())

    def get_next(self) -> Any:
        return next(self._left, None)

    def rewind(self) -> None:
        self._left = iter(samples())


def test_data_readers(tmp_path):
    """Samples may come from an object with get_next."""
    reader = Reader()
    assert reader.get_next() is not None
    config = tools.GPTQWeightOnlyQuantConfig(reader, actorder=False, mse=False, block_size=16)
    assert loss(config, tmp_path, block_size=32) < 0.2


@pytest.mark.parametrize("rows", [128, 100])
def test_compensation(rows):
    """Each step lowers the error |X W - X Q|: search, compensation, descent."""
    x = activations(400, rows)
    hessian = (x.T @ x).astype(np.float64)
    weight = np.random.default_rng(1).normal(size=(rows, 50)).astype(np.float32)
    form = Format(3, 32, is_symmetric=False)
    plain = range_grid(padded_blocks(weight, form), form)
    searched = searched_grid(weight, form, np.einsum("ii->i", hessian))
    losses = [
        error(weight, g.values(g.codes(weight, form), form), hessian) for g in (plain, searched)
    ]
    for sweeps in (0, 4):
        rounding = Rounding(sweeps=sweeps, block=48)
        codes, grid = compensated(weight, form, curvature(hessian.copy(), rounding), rounding)
        losses.append(error(weight, grid.values(codes, form), hessian))
        assert codes.max() <= 7
    assert losses == sorted(losses, reverse=True)
    assert losses[2] < 0.4 * losses[0]


def test_dead_channels():
    """Channels that are always 0 do not make the Hessian singular."""
    x = activations(50, 64)
    x[:, 5] = 0
    hessian = (x.T @ x).astype(np.float64)
    weight = np.random.default_rng(1).normal(size=(64, 8)).astype(np.float32)
    form, rounding = Format(4, 16, is_symmetric=True), Rounding()
    for known in (hessian, np.zeros_like(hessian)):
        codes, grid = compensated(weight, form, curvature(known.copy(), rounding), rounding)
        assert np.isfinite(grid.values(codes, form)).all()


def test_stream_runs_each_node_once():
    """A stream computes values of samples of several sizes, and keeps what is still needed."""
    model = tools.load_for_quantization(network())
    values = {v.name: v for node in model.graph.nodes for v in node.outputs}
    data = samples(3)
    stream = ActivationStream(model, data)
    assert len(stream) == 3
    first = stream.advance(values["norm0"])
    assert [a.shape for a in first] == [(1, 16, WIDTH), (1, 24, WIDTH), (1, 16, WIDTH)]
    assert stream.advance(values["norm0"])[0] is first[0]
    last = stream.advance(values["relu1"])
    narrow = input_of(next(n for n in model.graph.nodes if n.name == "narrow1_node"), 0)
    assert narrow is values["relu1"]
    assert {v.name for v in stream._values[0]} == {"relu1", "sum0"}  # a residual, and what is next
    expected = np.maximum(run(_cut("wide1"), data[:1]), 0)
    np.testing.assert_allclose(last[0][0], expected, rtol=1e-5, atol=1e-5)


def _cut(name: str) -> bytes:
    """Return the network with another output."""
    model = network()
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    return bytes(model.SerializeToString())


def test_shapes_and_bodies(tmp_path):
    """Shape arithmetic crosses cuts; a MatMul in a branch, which no sample reaches, is rounded."""
    text = """
    <ir_version: 10, opset_import: ["" : 21]>
    g (float[batch, length, 64] x, bool c) => (float[batch, length, 8, 8] y)
    <float[64, 64] w, float[64, 64] v, int64[2] heads = {8, 8}, int64[2] two = {0, 2}>
    {
        s = Shape<start = 0, end = 2> (x)
        h = MatMul (x, w)
        full = Concat<axis = 0> (s, heads)
        r = Relu (h)
        z = If (c) <
            then_branch = a () => (float[n, m, 64] t) { t = MatMul (r, v) },
            else_branch = b () => (float[n, m, 64] e) { e = Identity (r) }
        >
        u = MatMul (z, v)
        y = Reshape (u, full)
    }"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    tensors = [
        numpy_helper.from_array(rng.normal(size=(64, 64)).astype(np.float32) / 8, name)
        for name in ("w", "v")
    ]
    kept = [t for t in model.graph.initializer if t.name not in ("w", "v")]
    del model.graph.initializer[:]
    model.graph.initializer.extend([*kept, *tensors])
    for name in ("w", "v"):
        for value in [i for i in model.graph.input if i.name == name]:
            model.graph.input.remove(value)
    data = [{**sample, "c": np.array(True)} for sample in samples()]
    config = tools.GPTQWeightOnlyQuantConfig(data)
    quantizer = tools.MatMulNBitsQuantizer(model, block_size=32, algo_config=config)
    quantizer.process()
    quantizer.model.save_model_to_file(tmp_path / "q.onnx")
    nodes = list(quantizer.model.graph_model.graph.all_nodes())
    assert sum(node.op.name == "MatMulNBits" for node in nodes) == 3
    exact = sardonyx.InferenceSession(model.SerializeToString()).run(None, data[0])[0]
    found = sardonyx.InferenceSession(tmp_path / "q.onnx").run(None, data[0])[0]
    assert np.linalg.norm(found - exact) < 0.25 * np.linalg.norm(exact)


@pytest.mark.parametrize("is_shared", [False, True])
def test_consecutive_matmuls(tmp_path, is_shared):
    x, y = (
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["rows", WIDTH]) for n in ("x", "y")
    )
    names = ("a", "a") if is_shared else ("a", "b")
    rng = np.random.default_rng(0)
    tensors = [
        numpy_helper.from_array(rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 8, name)
        for name in dict.fromkeys(names)
    ]
    nodes = [
        helper.make_node("MatMul", ["x", names[0]], ["h"], "first"),
        helper.make_node("MatMul", ["h", names[1]], ["y"], "second"),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    data = [{"x": activations(64, WIDTH)}]
    exact = run(model, data)
    for config in (tools.GPTQWeightOnlyQuantConfig(data), tools.AWQWeightOnlyQuantConfig(data)):
        quantizer = tools.MatMulNBitsQuantizer(model, block_size=32, algo_config=config)
        quantizer.process()
        quantizer.model.save_model_to_file(tmp_path / "q.onnx")
        for quantized in (quantizer.model.graph_model, tmp_path / "q.onnx"):
            found = run(quantized, data)
            assert np.linalg.norm(found - exact) < 0.2 * np.linalg.norm(exact)


ERRORS = (
    (None, "calibration_data_reader is missing"),
    ([], "there are no calibration samples"),
    ([{"z": np.ones(3)}], "calibration sample 0 has no array for the input x"),
    ([{"x": np.ones((1, 4, 3), np.float32)}], r"sample 0 has \[1, 4, 3\] for the input x"),
    ([{"x": np.full((1, 4, WIDTH), np.nan, np.float32)}], "are not finite"),
)


@pytest.mark.parametrize(("data", "text"), ERRORS)
def test_errors(data, text):
    config = tools.GPTQWeightOnlyQuantConfig(data)
    quantizer = tools.MatMulNBitsQuantizer(network(), block_size=32, algo_config=config)
    with pytest.raises(InvalidArgument, match=text):
        quantizer.process()


def test_gptq_blocks_have_rows():
    config = tools.GPTQWeightOnlyQuantConfig(samples(), block_size=0)
    with pytest.raises(InvalidArgument, match="at least 1, got 0"):
        tools.MatMulNBitsQuantizer(network(), algo_config=config).process()
