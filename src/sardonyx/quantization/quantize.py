"""Quantizes models: statically by calibration, or dynamically."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sardonyx.base.records import frozen
from sardonyx.graph.const import Deferred
from sardonyx.quantization.base_quantizer import logger
from sardonyx.quantization.calibrate import create_calibrator
from sardonyx.quantization.config import (
    CALIBRATION_OPTIONS,
    DynamicQuantConfig,
    QuantConfig,
    StaticQuantConfig,
    get_qdq_config,
)
from sardonyx.quantization.data_reader import CalibrationDataReader, feeds_of
from sardonyx.quantization.document import ModelDoc, read_document, save_document
from sardonyx.quantization.document.session import KEPT_BYTES
from sardonyx.quantization.onnx_quantizer import ONNXQuantizer
from sardonyx.quantization.opset import converted, needed_opset
from sardonyx.quantization.qdq_quantizer import QDQQuantizer
from sardonyx.quantization.qdq_rules import op_types
from sardonyx.quantization.qop_rules import rules
from sardonyx.quantization.quant_types import QuantFormat, QuantizationMode, QuantType
from sardonyx.quantization.tensors_data import (
    CalibrationMethod,
    TensorsData,
    load_tensors_data,
    read_cache,
    save_tensors_data,
)
from sardonyx.quantization.weight_only.configs import WeightOnlyQuantConfig
from sardonyx.save.tensor import stored_bytes

PRE_PROCESSED: Final = ("onnx.quant.pre_process", "onnxruntime.quant")  # metadata of models


def check_static_quant_arguments(
    quant_format: QuantFormat, activation_type: QuantType, weight_type: QuantType
) -> None:
    """Raise ValueError for a combination of types that no kernel has."""
    types = f"activation_type={activation_type}, weight_type={weight_type}"
    unsupported = "ONNXRuntime quantization doesn't support data format: " + types
    if (activation_type, weight_type) == (QuantType.QInt8, QuantType.QUInt8):
        raise ValueError(unsupported)
    float8 = QuantType.QFLOAT8E4M3FN
    if (activation_type == float8) != (weight_type == float8):
        raise ValueError(f"{unsupported}: both or neither are float 8")
    wide = (QuantType.QInt16, QuantType.QUInt16)
    if (activation_type in wide or weight_type in wide) and quant_format != QuantFormat.QDQ:
        raise ValueError("Only QuantFormat.QDQ supports 16-bit quantization types.")


def quantize_static(  # noqa: PLR0913 - onnxruntime's arguments
    model_input: Any,
    model_output: str | os.PathLike[str],
    calibration_data_reader: Any = None,
    quant_format: QuantFormat = QuantFormat.QDQ,
    op_types_to_quantize: Sequence[str] | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    activation_type: QuantType = QuantType.QInt8,
    weight_type: QuantType = QuantType.QInt8,
    nodes_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
    use_external_data_format: bool = False,
    calibrate_method: CalibrationMethod = CalibrationMethod.MinMax,
    calibration_providers: Sequence[Any] | None = None,
    extra_options: Mapping[str, Any] | None = None,
    calibration_cache_path: str | os.PathLike[str] | None = None,
) -> None:
    """Quantize a model by calibration data, and save it.

    `model_input` is a path, bytes or an onnx.ModelProto. Samples come from a reader or any iterable
    of feeds, or their results from the file at `calibration_cache_path`, if it exists; otherwise it
    is written. docs/quantization.md lists the extra options.
    """
    options = dict(extra_options or {})
    types = weight_type, activation_type
    if QuantType.QFLOAT8E4M3FN in types and calibrate_method != CalibrationMethod.Distribution:
        raise ValueError(
            "Only Distribution calibration method is supported for float quantization."
        )
    document = _read(model_input)
    op_names = list(op_types_to_quantize or _all_op_types())
    reader, excluded = calibration_data_reader, list(nodes_to_exclude or [])
    if options.get("SmoothQuant", False):
        reader = _Kept(reader)
        excluded += _smooth(document, reader, options)
        document = _stored(document)
    overrides, block_size = options.get("TensorQuantOverrides"), int(options.get("BlockSize") or 0)
    document = converted(document, needed_opset(document.opset, *types, overrides, block_size))
    how = _Calibration(calibrate_method, calibration_providers, options, calibration_cache_path)
    ranges = how.ranges(document, reader, op_names)
    check_static_quant_arguments(quant_format, activation_type, weight_type)
    chosen = *types, ranges, nodes_to_quantize, excluded, op_names, options
    quantizer: ONNXQuantizer | QDQQuantizer
    if quant_format is QuantFormat.QOperator:
        mode = QuantizationMode.QLinearOps
        quantizer = ONNXQuantizer(document, per_channel, reduce_range, mode, True, *chosen)
    else:
        quantizer = QDQQuantizer(document, per_channel, reduce_range, *chosen)
    quantizer.quantize_document()
    save_document(document, model_output, external=use_external_data_format)


def quantize_dynamic(  # noqa: PLR0913 - onnxruntime's arguments
    model_input: Any,
    model_output: str | os.PathLike[str],
    op_types_to_quantize: Sequence[str] | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    weight_type: QuantType = QuantType.QInt8,
    nodes_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
    use_external_data_format: bool = False,
    extra_options: Mapping[str, Any] | None = None,
) -> None:
    """Quantize the weights of a model, and its activations while it runs; save it."""
    options = {"MatMulConstBOnly": True, **(extra_options or {})}
    document = _read(model_input)
    document = converted(document, needed_opset(document.opset, weight_type))
    quantizer = ONNXQuantizer(
        document,
        per_channel,
        reduce_range,
        QuantizationMode.IntegerOps,
        False,
        weight_type,
        QuantType.QUInt8,
        None,
        nodes_to_quantize,
        nodes_to_exclude,
        op_types_to_quantize or list(rules(QuantizationMode.IntegerOps)),
        options,
    )
    quantizer.quantize_document()
    save_document(document, model_output, external=use_external_data_format)


def quantize(model_input: Any, model_output: str | os.PathLike[str], quant_config: Any) -> None:
    """Quantize a model by a `StaticQuantConfig`, `DynamicQuantConfig` or weight-only config.

    The latter is one of `matmul_nbits`, whose `MatMulNBitsQuantizer` it is given to.
    """
    if isinstance(quant_config, QuantConfig):
        names = ["weight_type", "op_types_to_quantize", "nodes_to_quantize", "nodes_to_exclude"]
        names += ["per_channel", "reduce_range", "use_external_data_format", "extra_options"]
        if isinstance(quant_config, StaticQuantConfig):
            names += ["calibration_data_reader", "calibrate_method", "quant_format"]
            names += ["activation_type", "calibration_providers"]
        chosen = {name: getattr(quant_config, name) for name in names}
        if isinstance(quant_config, StaticQuantConfig):
            return quantize_static(model_input, model_output, **chosen)
        if isinstance(quant_config, DynamicQuantConfig):
            return quantize_dynamic(model_input, model_output, **chosen)
    if isinstance(quant_config, WeightOnlyQuantConfig):
        return _quantize_weights(model_input, model_output, quant_config)
    raise TypeError(
        "Invalid quantization config type, it must be either StaticQuantConfig, "
        "DynamicQuantConfig, or WeightOnlyQuantConfig."
    )


def _quantize_weights(
    model_input: Any, model_output: str | os.PathLike[str], config: WeightOnlyQuantConfig
) -> None:
    """Quantize the weights of a model to n bits; save it with external data."""
    from sardonyx.quantization.matmul_nbits import MatMulNBitsQuantizer  # loads the compiler

    quantizer = MatMulNBitsQuantizer(model_input, algo_config=config)
    quantizer.process()
    quantizer.model.save_model_to_file(model_output, use_external_data_format=True)


def _all_op_types() -> list[str]:
    """Return the ops that either format quantizes."""
    return list(dict.fromkeys([*rules(QuantizationMode.QLinearOps), *op_types()]))


class _Kept:
    """The samples of a reader, which are read once and used several times."""

    def __init__(self, reader: Any) -> None:
        if reader is None:
            raise ValueError(
                "SmoothQuant requires a non-None calibration_data_reader: a calibration cache has "
                "no values of channels"
            )
        self._feeds = [dict(feeds) for feeds in feeds_of(reader)]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._feeds)


def _smooth(document: ModelDoc, samples: _Kept, options: Mapping[str, Any]) -> list[str]:
    """Smooth a document; return the names of the nodes that were added."""
    from sardonyx.quantization.smooth_quant import smooth  # few models are smoothed

    alpha = float(options.get("SmoothQuantAlpha", 0.5))
    return smooth(document, samples, alpha, bool(options.get("SmoothQuantFolding", True)))


def _stored(document: ModelDoc) -> ModelDoc:
    """Return a document whose many computed weights are in a file, which sessions map."""
    computed = (c for c in document.graph.initializers.values() if isinstance(c, Deferred))
    if sum(map(stored_bytes, computed)) <= KEPT_BYTES:
        return document
    with tempfile.TemporaryDirectory() as folder:  # mapped files last without their names
        path = os.path.join(folder, "smoothed.onnx")
        save_document(document, path, external=True)
        return read_document(path)


def _read(model: Any) -> ModelDoc:
    document = model.copy() if isinstance(model, ModelDoc) else read_document(model)
    if document.metadata.get(PRE_PROCESSED[0]) != PRE_PROCESSED[1]:
        logger.info("models that quant_pre_process has optimized quantize better")
    return document


@frozen
class _Calibration:
    """How ranges are found, and the file that keeps them."""

    method: CalibrationMethod
    providers: Sequence[Any] | None
    options: Mapping[str, Any]
    cache_path: str | os.PathLike[str] | None

    def ranges(self, document: ModelDoc, reader: Any, op_names: Sequence[str]) -> TensorsData:
        """Return the ranges of the cache if there is one, else those of the samples."""
        path, is_smooth = self.cache_path, bool(self.options.get("SmoothQuant", False))
        if path is not None and os.path.exists(path):
            cached = _cached(path, self.method, is_smooth)
            if cached is not None:
                return cached
        if reader is None:
            raise ValueError(
                "Either calibration_data_reader or an existing calibration_cache_path must be "
                "provided."
            )
        chosen = {
            name: self.options[option]
            for name, option in CALIBRATION_OPTIONS.items()
            if option in self.options
        }
        calibrator = create_calibrator(
            document,
            op_names,
            augmented_model_path=None,
            calibrate_method=self.method,
            providers=self.providers,
            extra_options=chosen,
        )
        self._collect(calibrator, reader)
        found: TensorsData = calibrator.compute_data()
        if path is not None:
            save_tensors_data(found, path, smooth_quant=is_smooth)
        return found

    def _collect(self, calibrator: Any, reader: Any) -> None:
        """Run the samples, all at once or so many per call."""
        stride = self.options.get("CalibStridedMinMax")
        if not stride:
            calibrator.collect_data(reader)
            return
        count = len(reader)
        if count % stride:
            raise ValueError(
                f"Total data size ({count}) is not divisible by stride size ({stride})."
            )
        for start in range(0, count, stride):
            reader.set_range(start_index=start, end_index=start + stride)
            calibrator.collect_data(reader)


def _cached(
    path: str | os.PathLike[str], method: CalibrationMethod, is_smooth: bool
) -> TensorsData | None:
    """Return the ranges of a cache; None if they are of another transformation of the model."""
    if not os.path.isfile(path):
        raise ValueError(f"calibration_cache_path is not a file: {path}")
    if bool(read_cache(path).get("smooth_quant", False)) != is_smooth:
        logger.warning(
            "the calibration cache %s has smooth_quant=%s, unlike this run: it is made anew",
            path,
            not is_smooth,
        )
        return None
    found = load_tensors_data(path)
    if found.calibration_method != method:
        raise ValueError(
            f"Calibration cache at {path} was produced with {found.calibration_method}, but "
            f"quantize_static was called with calibrate_method={method}. Delete the cache or pass "
            "a matching calibrate_method."
        )
    return found


__all__ = [
    "CalibrationDataReader",
    "CalibrationMethod",
    "DynamicQuantConfig",
    "QuantConfig",
    "QuantFormat",
    "QuantType",
    "QuantizationMode",
    "StaticQuantConfig",
    "check_static_quant_arguments",
    "get_qdq_config",
    "quantize",
    "quantize_dynamic",
    "quantize_static",
]
