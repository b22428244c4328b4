"""Quantized models are those of onnxruntime's tools: nodes, names, and constants to the bit.

Both have the same ranges, from a calibration cache: activations of two runtimes differ in the last
bit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx import quantization as ours
from tests.quantization.models import MODELS, Reader, samples, signature

theirs = pytest.importorskip("onnxruntime.quantization")
pytestmark = pytest.mark.filterwarnings("ignore")

T = ours.QuantType
# Arguments of quantize_static.
STATIC: dict[str, dict[str, Any]] = {
    "default": {},
    "per-channel": {"per_channel": True, "activation_type": T.QUInt8},
    "reduced": {"per_channel": True, "reduce_range": True},
    "uint8 weights": {"activation_type": T.QUInt8, "weight_type": T.QUInt8},
    "int16": {"activation_type": T.QUInt16, "weight_type": T.QInt16},
    "int4": {"weight_type": T.QInt4, "per_channel": True},
    "symmetric": {"extra_options": {"ActivationSymmetric": True, "WeightSymmetric": False}},
    "pairs on weights": {"extra_options": {"AddQDQPairToWeight": True, "DedicatedQDQPair": True}},
    "kept": {"extra_options": {"QDQKeepRemovableActivations": True, "QuantizeBias": False}},
    "restricted": {
        "activation_type": T.QUInt8,
        "extra_options": {"ActivationRestrictedAsymmetric": True, "MinimumRealRange": 0.001},
    },
    "contrib": {"extra_options": {"UseQDQContribOps": True, "ForceQuantizeNoInputCheck": True}},
    "some": {"op_types_to_quantize": ["MatMul", "Conv"], "nodes_to_exclude": ["Conv_0"]},
    "operators": {"quant_format": ours.QuantFormat.QOperator, "activation_type": T.QUInt8},
    "operators per channel": {
        "quant_format": ours.QuantFormat.QOperator,
        "activation_type": T.QUInt8,
        "per_channel": True,
    },
}
DYNAMIC: dict[str, dict[str, Any]] = {
    "default": {},
    "uint8": {"weight_type": T.QUInt8},
    "per-channel": {"per_channel": True, "reduce_range": True},
    "all": {"extra_options": {"MatMulConstBOnly": False}},
}


def _foreign(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments with the enumerations of onnxruntime."""
    kinds = {"QuantType": theirs.QuantType, "QuantFormat": theirs.QuantFormat}
    return {
        k: kinds[type(v).__name__][v.name] if type(v).__name__ in kinds else v
        for k, v in arguments.items()
    }


def _assert_equal(mine: Path, other: Path) -> None:
    (nodes, arrays), (expected, expected_arrays) = signature(mine), signature(other)
    assert nodes == expected
    assert arrays.keys() == expected_arrays.keys()
    for name, array in expected_arrays.items():
        assert (arrays[name].dtype, arrays[name].shape) == (array.dtype, array.shape), name
        np.testing.assert_array_equal(arrays[name], array, err_msg=name)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("row", STATIC)
def test_static(tmp_path: Path, name: str, row: str) -> None:
    source, cache = tmp_path / "model.onnx", tmp_path / "ranges.json"
    onnx.save(MODELS[name](), source)
    feeds, arguments = samples(name), STATIC[row]
    calibrated = {"calibration_cache_path": cache}
    theirs.quantize_static(
        source, tmp_path / "theirs.onnx", Reader(feeds), **_foreign(arguments), **calibrated
    )
    ours.quantize_static(source, tmp_path / "ours.onnx", None, **arguments, **calibrated)
    _assert_equal(tmp_path / "ours.onnx", tmp_path / "theirs.onnx")
    if row != "int16":  # which converts the opset of each in its own way
        _assert_close(source, tmp_path / "ours.onnx", feeds, 0.6 if row == "int4" else 0.25)


def _assert_close(source: Path, quantized: Path, feeds: Any, limit: float) -> None:
    """The quantized model computes about the same."""
    expected = sardonyx.InferenceSession(source).run(None, feeds[0])[0]
    actual = sardonyx.InferenceSession(quantized).run(None, feeds[0])[0]
    assert np.linalg.norm(actual - expected) < limit * np.linalg.norm(expected)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("row", DYNAMIC)
def test_dynamic(tmp_path: Path, name: str, row: str) -> None:
    source, arguments = tmp_path / "model.onnx", DYNAMIC[row]
    onnx.save(MODELS[name](), source)
    theirs.quantize_dynamic(source, tmp_path / "theirs.onnx", **_foreign(arguments))
    ours.quantize_dynamic(source, tmp_path / "ours.onnx", **arguments)
    _assert_equal(tmp_path / "ours.onnx", tmp_path / "theirs.onnx")
    _assert_close(source, tmp_path / "ours.onnx", samples(name), 0.25)


@pytest.mark.parametrize("method", ["MinMax", "Entropy", "Percentile", "Distribution"])
def test_ranges(tmp_path: Path, method: str) -> None:
    source = tmp_path / "model.onnx"
    onnx.save(MODELS["convnet"](), source)
    found = []
    for package in (ours, theirs):
        kind = package.CalibrationMethod[method]
        augmented = tmp_path / f"{len(found)}.onnx"
        calibrator = package.create_calibrator(
            source, augmented_model_path=augmented, calibrate_method=kind
        )
        calibrator.collect_data(Reader(samples("convnet")[:3]))
        calibrator.collect_data(Reader(samples("convnet")[3:]))
        found.append(calibrator.compute_data())
    assert set(found[0].keys()) == set(found[1].keys())
    for name, data in found[1].items():
        np.testing.assert_allclose(
            np.ravel(found[0][name].range_value), np.ravel(data.range_value), rtol=1e-5, atol=1e-6
        )
        if method == "Distribution":
            np.testing.assert_allclose(found[0][name].avg_std, data.avg_std, rtol=1e-3, atol=1e-5)
