"""Quantization without a rival: configurations, errors, calibration, weights, smoothing, tools."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import sardonyx
from sardonyx import quantization as q
from sardonyx.errors import InvalidArgument
from sardonyx.graph.const import ArrayConst
from sardonyx.quantization import qdq_loss_debug, static_quantize_runner
from sardonyx.quantization.calibrate import HistogramCollector
from sardonyx.quantization.document import read_document
from sardonyx.quantization.histogram import entropy, smooth_distribution
from sardonyx.quantization.quantized_weight import QuantizedWeight, WeightScheme
from sardonyx.quantization.smooth_quant import smooth
from tests.quantization.models import MODELS, Reader, convnet, samples, transformer

T = q.QuantType
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def _quantize(tmp_path: Path, model: Any = None, **arguments: Any) -> onnx.ModelProto:
    path = tmp_path / "quantized.onnx"
    feeds = samples("convnet")
    q.quantize_static(convnet() if model is None else model, path, feeds, **arguments)
    return onnx.load(path)


def _initializers(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


@pytest.mark.parametrize("form", ["path", "bytes", "proto"])
def test_inputs(tmp_path: Path, form: str) -> None:
    model = convnet()
    onnx.save(model, tmp_path / "model.onnx")
    forms = {"path": tmp_path / "model.onnx", "bytes": model.SerializeToString(), "proto": model}
    result = _quantize(tmp_path, forms[form])
    assert {"w1_quantized", "w1_scale", "x_zero_point"} <= _initializers(result).keys()
    assert model.graph.node[0].input[1] == "w1"  # what the caller has is as before


def test_names_of_the_module() -> None:
    """Programs import these from the module that onnxruntime defines them in."""
    module = importlib.import_module("sardonyx.quantization.quantize")
    assert module.get_qdq_config is q.get_qdq_config
    assert module.CalibrationDataReader is q.CalibrationDataReader
    assert module.QuantFormat is q.QuantFormat


def test_quantize_by_configuration(tmp_path: Path) -> None:
    config = q.get_qdq_config(
        convnet(),
        samples("convnet"),
        weight_type=T.QInt4,
        nodes_to_exclude=lambda _, node: node.op_type == "Sigmoid",
        calibrate_args={"percentile": 99.0, "symmetric": False},
        calibrate_method=q.CalibrationMethod.Percentile,
    )
    assert config.nodes_to_exclude == ["Sigmoid_9"]
    assert config.extra_options["UseQDQContribOps"]  # opset 13 has no int4
    q.quantize(convnet(), tmp_path / "q.onnx", config)
    assert onnx.load(tmp_path / "q.onnx").opset_import[1].domain == "com.microsoft"
    q.quantize(convnet(), tmp_path / "q.onnx", q.DynamicQuantConfig(per_channel=True))
    assert any(n.op_type == "ConvInteger" for n in onnx.load(tmp_path / "q.onnx").graph.node)
    with pytest.raises(TypeError, match="StaticQuantConfig"):
        q.quantize(convnet(), tmp_path / "q.onnx", object())


def test_float8(tmp_path: Path) -> None:
    types = {"activation_type": T.QFLOAT8E4M3FN, "weight_type": T.QFLOAT8E4M3FN}
    with pytest.raises(ValueError, match="Distribution"):
        _quantize(tmp_path, **types)
    method = q.CalibrationMethod.Distribution
    result = _quantize(tmp_path, calibrate_method=method, **types)
    assert result.opset_import[0].version == 19
    tensors = {t.name: t for t in result.graph.initializer}
    assert tensors["w1_quantized"].data_type == onnx.TensorProto.FLOAT8E4M3FN
    sardonyx.InferenceSession(result).run(None, samples("convnet")[0])


def test_blocks(tmp_path: Path) -> None:
    options = {"BlockSize": 4}
    path, feeds = tmp_path / "q.onnx", samples("transformer")
    q.quantize_static(
        transformer(), path, feeds, op_types_to_quantize=["MatMul"], extra_options=options
    )
    arrays = _initializers(onnx.load(path))
    assert arrays["wo_scale"].shape == arrays["wo_zero_point"].shape == (4, 8)
    weight = {t.name: t for t in transformer().graph.initializer}["wo"]
    real = arrays["wo_quantized"] * np.repeat(arrays["wo_scale"], 4, 0)
    error = np.abs(real - numpy_helper.to_array(weight)) / np.repeat(arrays["wo_scale"], 4, 0)
    assert error.max() <= 0.5001
    sardonyx.InferenceSession(path).run(None, feeds[0])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"nothing": [{}]}, "not present"),
        ({"x": {}}, "not in a list"),
        ({"x": [{"scale": 1.0}]}, "Must provide both"),
        ({"x": [{"scale": 1.0, "zero_point": 0, "rmin": 0.0}]}, "invalid with 'scale'"),
        ({"x": [{"reduce_range": True}]}, "only supported for initializers"),
        ({"x": [{"axis": 0}]}, "not an initializer"),
        ({"w1": [{"axis": 9}]}, "out-of-bounds"),
        ({"w1": [{"axis": 0}, {}]}, "Incorrect number"),
        ({"w1": [{"convert": {}}]}, "Cannot use 'convert'"),
        ({"x": [{"convert": {}}]}, "must specify a 'quant_type'"),
        ({"x": [{"convert": {"quant_type": T.QInt8}}]}, "must differ"),
    ],
)
def test_wrong_overrides(tmp_path: Path, overrides: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _quantize(tmp_path, extra_options={"TensorQuantOverrides": overrides})


def test_overrides(tmp_path: Path) -> None:
    overrides = {
        "x": [{"quant_type": T.QUInt8, "rmin": -8.0, "rmax": 8.0}],
        "w1": [{"axis": 0, "symmetric": True}],
        "p": [
            {"quant_type": T.QUInt8, "convert": {"quant_type": T.QInt16, "recv_nodes": {"Add_4"}}}
        ],
    }
    model = _quantize(tmp_path, extra_options={"TensorQuantOverrides": overrides})
    arrays = _initializers(model)
    assert arrays["x_scale"] == np.float32(16 / 255)
    assert arrays["w1_scale"].shape == (4,)
    assert arrays["p_zero_point_convert"].dtype == np.int16
    add = next(n for n in model.graph.node if n.name == "Add_4")
    assert add.input[0] == "p_convert_DequantizeLinear_Output"
    sardonyx.InferenceSession(model).run(None, samples("convnet")[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"activation_type": T.QInt8, "weight_type": T.QUInt8}, "data format"),
        ({"activation_type": T.QInt16, "quant_format": q.QuantFormat.QOperator}, "16-bit"),
    ],
)
def test_wrong_types(tmp_path: Path, arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _quantize(tmp_path, **arguments)


@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")  # numpy's, before the error
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_samples_that_are_not_finite(tmp_path: Path, value: float) -> None:
    sample = {"x": np.full_like(samples("convnet")[0]["x"], value)}
    with pytest.raises(InvalidArgument, match="a range is not finite"):
        q.quantize_static(convnet(), tmp_path / "q.onnx", [sample])
    assert not (tmp_path / "q.onnx").exists()


def test_calibration_cache(tmp_path: Path) -> None:
    cache = tmp_path / "cache.json"
    _quantize(tmp_path, calibration_cache_path=cache)
    target = tmp_path / "again.onnx"
    q.quantize_static(convnet(), target, calibration_cache_path=cache)
    assert target.read_bytes() == (tmp_path / "quantized.onnx").read_bytes()
    method = q.CalibrationMethod.Entropy
    with pytest.raises(ValueError, match="matching calibrate_method"):
        q.quantize_static(convnet(), target, calibrate_method=method, calibration_cache_path=cache)
    for text in (json.dumps({"some": "file"}), "{"):
        cache.write_text(text)
        with pytest.raises(InvalidArgument, match="not a calibration cache"):
            q.load_tensors_data(cache)
    with pytest.raises(ValueError, match="Either calibration_data_reader"):
        q.quantize_static(convnet(), target)


@pytest.mark.parametrize("method", ["percentile", "entropy", "distribution"])
@pytest.mark.parametrize("symmetric", [False, True])
def test_histograms_do_not_depend_on_batches(method: str, symmetric: bool) -> None:
    data = np.random.default_rng(0).normal(0, 2, (8, 50)).astype(np.float32)
    results = []
    for batches in ([data], list(data)):
        collector = HistogramCollector(method, symmetric, 512, 128, 99.0, "same")
        collector.collect({"x": batches})
        collector.collect({"x": [3 * data]})
        results.append(collector.compute_collection_result()["x"])
    if method == "distribution":
        assert results[0].avg_std == results[1].avg_std
    else:
        assert results[0][:2] == results[1][:2]


def test_intermediate_ranges_are_merged() -> None:
    options = {"max_intermediate_outputs": 2}
    found = []
    for extra in ({}, options):
        calibrator = q.create_calibrator(convnet(), augmented_model_path=None, extra_options=extra)
        calibrator.collect_data(Reader(samples("convnet")))
        found.append(calibrator.compute_data()["y"].range_value)
    assert found[0] == found[1]
    with pytest.raises(ValueError, match="No data"):
        q.create_calibrator(convnet(), augmented_model_path=None).collect_data([])


def test_divergence() -> None:
    assert entropy([0.5, 0.5], [0.5, 0.5]) == 0
    assert entropy([1, 3], [1, 1], base=2) == pytest.approx(0.18872, abs=1e-4)
    assert smooth_distribution(np.zeros(4)) is None
    smoothed = smooth_distribution(np.array([0, 4]))
    assert smoothed is not None
    assert smoothed.sum() == pytest.approx(4)


class _Counted(ArrayConst):
    """A weight that counts how often it is read."""

    __slots__ = ("n_reads",)

    def __init__(self, array: np.ndarray) -> None:
        super().__init__(array)
        self.n_reads = 0

    def view(self) -> Any:
        self.n_reads += 1
        return super().view()


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_weights_are_read_once(tmp_path: Path, axis: int | None) -> None:
    from sardonyx.quantization.document import save_document

    array = np.random.default_rng(0).normal(0, 1, (300, 200)).astype(np.float32)
    const = _Counted(array)
    weight = QuantizedWeight(const, WeightScheme(onnx.TensorProto.INT8, True, axis))
    weight.add_bias(ArrayConst(np.full(() if axis is None else array.shape[axis], 1e6, "f")), 1e-8)
    document = read_document(convnet())
    document.graph.initializers |= {"q": weight.tensor, "s": weight.scale, "z": weight.zero_point}
    assert const.n_reads == 0
    save_document(document, tmp_path / "m.onnx")
    assert const.n_reads == 1
    arrays = _initializers(onnx.load(tmp_path / "m.onnx"))
    assert (arrays["s"] * 1e-8 * 2**31 > 1e6).all()  # raised for the bias
    assert arrays["z"].dtype == np.int8


def test_smoothing_keeps_the_function() -> None:
    feeds = samples("transformer")
    expected = sardonyx.InferenceSession(transformer()).run(None, feeds[0])
    for folds in (False, True):
        document = read_document(transformer())
        names = smooth(document, feeds, 0.5, folds)
        assert names == ([] if folds else ["n1_smooth_mul"]) + ["c_smooth_mul"]
        from sardonyx.quantization.document.session import open_session

        actual = open_session(document).run(None, feeds[0])
        for a, b in zip(actual, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_smoothing_helps_with_outliers(tmp_path: Path) -> None:
    model, feeds = transformer(), samples("transformer")
    gain = next(t for t in model.graph.initializer if t.name == "g1")
    array = np.array(numpy_helper.to_array(gain))
    array[3] *= 100
    gain.CopyFrom(numpy_helper.from_array(array, "g1"))
    expected = sardonyx.InferenceSession(model).run(["y"], feeds[0])[0]
    errors = []
    for is_smooth in (False, True):
        path = tmp_path / "q.onnx"
        options = {"SmoothQuant": is_smooth}
        ops = ["MatMul"]
        q.quantize_static(model, path, feeds, op_types_to_quantize=ops, extra_options=options)
        actual = sardonyx.InferenceSession(path).run(["y"], feeds[0])[0]
        errors.append(np.linalg.norm(actual - expected))
    assert errors[1] < errors[0]


def test_pre_processing(tmp_path: Path) -> None:
    path = tmp_path / "prepared.onnx"
    q.quant_pre_process(convnet(9 + 4), path)
    model = onnx.load(path)
    assert model.metadata_props[0].key == "onnx.quant.pre_process"
    assert {v.name for v in model.graph.value_info} >= {"f"}
    expected = sardonyx.InferenceSession(convnet()).run(None, samples("convnet")[0])[0]
    actual = sardonyx.InferenceSession(path).run(None, samples("convnet")[0])[0]
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(InvalidArgument, match="no argument nonsense"):
        q.quant_pre_process(convnet(), path, nonsense=1)


def test_loss_debug(tmp_path: Path) -> None:
    paths = {name: tmp_path / f"{name}.onnx" for name in ("f", "q", "fa", "qa")}
    onnx.save(convnet(), paths["f"])
    feeds = samples("convnet")
    q.quantize_static(paths["f"], paths["q"], feeds, per_channel=True)
    found = []
    for source, target in (("f", "fa"), ("q", "qa")):
        qdq_loss_debug.modify_model_output_intermediate_tensors(paths[source], paths[target])
        found.append(qdq_loss_debug.collect_activations(paths[target], feeds))
    match = qdq_loss_debug.create_activation_matching(found[1], found[0])
    errors = qdq_loss_debug.compute_activation_error(match)
    # Before its pair, r has the negative values that its Relu removed.
    assert min(e["qdq_err"] for name, e in errors.items() if name not in "rl") > 20
    assert min(e["xmodel_err"] for e in errors.values()) > 15
    weights = qdq_loss_debug.create_weight_matching(paths["f"], paths["q"])
    assert {"w1", "w3", "b1"} <= weights.keys()
    assert min(qdq_loss_debug.compute_weight_error(weights).values()) > 30


def test_command_line(tmp_path: Path) -> None:
    source, target = tmp_path / "model.onnx", tmp_path / "quantized.onnx"
    onnx.save(convnet(), source)
    for i, feeds in enumerate(samples("convnet")):
        folder = tmp_path / f"test_data_set_{i}"
        folder.mkdir()
        tensor = numpy_helper.from_array(feeds["x"])
        (folder / "input_0.pb").write_bytes(tensor.SerializeToString())
    arguments = ["-i", str(source), "-o", str(target), "--per_channel", "--disable_quantize_bias"]
    static_quantize_runner.main(arguments)
    arrays = _initializers(onnx.load(target))
    assert arrays["w1_scale"].shape == (4,)
    assert "b1" in arrays


def test_quantizer_classes() -> None:
    calibrator = q.create_calibrator(transformer(), augmented_model_path=None)
    calibrator.collect_data(samples("transformer"))
    ranges = calibrator.compute_data()
    types = T.QInt8, T.QInt8
    quantizer = q.QDQQuantizer(transformer(), False, False, *types, ranges, [], [], ["MatMul"], {})
    model = quantizer.quantize_model()
    assert isinstance(model, onnx.ModelProto)
    assert quantizer.model.get_initializer("wq_quantized") is not None
    onnx.checker.check_model(model)


@pytest.mark.parametrize("name", MODELS)
def test_subgraphs_and_models_stay_valid(tmp_path: Path, name: str) -> None:
    path = tmp_path / "q.onnx"
    q.quantize_dynamic(MODELS[name](), path, use_external_data_format=True)
    onnx.checker.check_model(path)


def test_names_of_copied_biases(tmp_path: Path) -> None:
    """A bias of two nodes is copied under a name that no value has."""
    text = """
        <ir_version: 8, opset_import: ["": 13]>
        g (float[n, 4] x) => (float[n, 4] y) {
            b0 = Gemm(x, w, b)
            y = Gemm(b0, w, b)
        }"""
    model = onnx.parser.parse_model(text)
    for name, shape in {"w": (4, 4), "b": (4,)}.items():
        array = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    for i, node in enumerate(model.graph.node):
        node.name = f"Gemm_{i}"
    feeds = [{"x": np.random.default_rng(i).normal(size=(3, 4)).astype(np.float32)} for i in (0, 1)]
    q.quantize_static(model, tmp_path / "q.onnx", feeds)
    quantized, original = (
        sardonyx.InferenceSession(m).run(None, feeds[0])[0]
        for m in (tmp_path / "q.onnx", model.SerializeToString())
    )
    assert np.abs(quantized - original).max() < 0.05 * np.abs(original).max()
