"""Configurations of `quantize`, and one for a whole model in QDQ format."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sardonyx.graph.const import SourceConst
from sardonyx.quantization.document import ModelDoc, document_bytes, read_document
from sardonyx.quantization.document.write import MAX_BYTES, document_message
from sardonyx.quantization.quant_types import QuantFormat, QuantType
from sardonyx.quantization.tensor_quant_overrides import TensorQuantOverridesHelper
from sardonyx.quantization.tensors_data import CalibrationMethod

_NOT_QUANTIZED: Final = {"Cast", "DequantizeLinear", "QuantizeLinear"}
_16_BITS: Final = {QuantType.QInt16, QuantType.QUInt16}
_4_BITS: Final = {QuantType.QInt4, QuantType.QUInt4}
# The extra option that sets each option of a calibrator.
CALIBRATION_OPTIONS: Final = {
    "symmetric": "CalibTensorRangeSymmetric",
    "moving_average": "CalibMovingAverage",
    "averaging_constant": "CalibMovingAverageConstant",
    "max_intermediate_outputs": "CalibMaxIntermediateOutputs",
    "percentile": "CalibPercentile",
}


class QuantConfig:
    """What static and dynamic quantization have in common."""

    def __init__(  # noqa: PLR0913 - onnxruntime's arguments
        self,
        activation_type: QuantType = QuantType.QUInt8,
        weight_type: QuantType = QuantType.QInt8,
        op_types_to_quantize: Sequence[str] | None = None,
        nodes_to_quantize: Sequence[str] | None = None,
        nodes_to_exclude: Sequence[str] | None = None,
        per_channel: bool = False,
        reduce_range: bool = False,
        use_external_data_format: bool = False,
    ) -> None:
        """Ops and nodes are given by name; without `..._to_quantize`, all are quantized."""
        self.activation_type = activation_type
        self.weight_type = weight_type
        self.op_types_to_quantize = list(op_types_to_quantize or [])
        self.nodes_to_quantize = list(nodes_to_quantize or [])
        self.nodes_to_exclude = list(nodes_to_exclude or [])
        self.per_channel = per_channel
        self.reduce_range = reduce_range
        self.use_external_data_format = use_external_data_format


class StaticQuantConfig(QuantConfig):
    """The arguments of `quantize_static`."""

    def __init__(  # noqa: PLR0913 - onnxruntime's arguments
        self,
        calibration_data_reader: Any,
        calibrate_method: CalibrationMethod = CalibrationMethod.MinMax,
        quant_format: QuantFormat = QuantFormat.QDQ,
        activation_type: QuantType = QuantType.QInt8,
        weight_type: QuantType = QuantType.QInt8,
        op_types_to_quantize: Sequence[str] | None = None,
        nodes_to_quantize: Sequence[str] | None = None,
        nodes_to_exclude: Sequence[str] | None = None,
        per_channel: bool = False,
        reduce_range: bool = False,
        use_external_data_format: bool = False,
        calibration_providers: Sequence[Any] | None = None,
        extra_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            activation_type, weight_type, op_types_to_quantize, nodes_to_quantize,
            nodes_to_exclude, per_channel, reduce_range, use_external_data_format,
        )  # fmt: skip
        self.calibration_data_reader = calibration_data_reader
        self.calibrate_method = calibrate_method
        self.quant_format = quant_format
        self.calibration_providers = calibration_providers
        self.extra_options = dict(extra_options or {})


class DynamicQuantConfig(QuantConfig):
    """The arguments of `quantize_dynamic`."""

    def __init__(  # noqa: PLR0913 - onnxruntime's arguments
        self,
        weight_type: QuantType = QuantType.QInt8,
        op_types_to_quantize: Sequence[str] | None = None,
        nodes_to_quantize: Sequence[str] | None = None,
        nodes_to_exclude: Sequence[str] | None = None,
        per_channel: bool = False,
        reduce_range: bool = False,
        use_external_data_format: bool = False,
        extra_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            QuantType.QUInt8, weight_type, op_types_to_quantize, nodes_to_quantize,
            nodes_to_exclude, per_channel, reduce_range, use_external_data_format,
        )  # fmt: skip
        self.extra_options = dict(extra_options or {})


def get_qdq_config(  # noqa: PLR0913 - onnxruntime's arguments
    model_input: Any,
    calibration_data_reader: Any,
    calibrate_method: CalibrationMethod = CalibrationMethod.MinMax,
    calibrate_args: Mapping[str, Any] | None = None,
    activation_type: QuantType = QuantType.QUInt8,
    weight_type: QuantType = QuantType.QInt8,
    activation_symmetric: bool = False,
    weight_symmetric: bool | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    keep_removable_activations: bool = False,
    min_real_range: float | None = None,
    tensor_quant_overrides: Mapping[str, list[dict[str, Any]]] | None = None,
    calibration_providers: Sequence[Any] | None = None,
    op_types_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | Callable[[Any, Any], bool] | None = None,
    extra_options: Mapping[str, Any] | None = None,
) -> StaticQuantConfig:
    """Return a configuration that quantizes all ops of a model in QDQ format.

    `nodes_to_exclude` has names, or is a function of an onnx.ModelProto and an onnx.NodeProto that
    returns whether the node stays as it is.
    """
    document = read_document(model_input)
    overrides = TensorQuantOverridesHelper(copy.deepcopy(dict(tensor_quant_overrides or {})))
    excluded = _excluded(document, nodes_to_exclude)
    op_types = {n.op_type for n in document.graph.nodes if n.name not in excluded}
    options: dict[str, Any] = {
        "MinimumRealRange": min_real_range,
        "QDQKeepRemovableActivations": keep_removable_activations,
        "ActivationSymmetric": activation_symmetric,
        "WeightSymmetric": weight_symmetric,
        "ForceQuantizeNoInputCheck": True,
        "TensorQuantOverrides": overrides.get_dict(),
    }
    given = calibrate_args or {}
    options.update({new: given[old] for old, new in CALIBRATION_OPTIONS.items() if old in given})
    if _needs_contrib_pairs(document.opset, {activation_type, weight_type}, overrides):
        options["UseQDQContribOps"] = True
    options.update(extra_options or {})
    return StaticQuantConfig(
        calibration_data_reader,
        calibrate_method,
        QuantFormat.QDQ,
        activation_type,
        weight_type,
        list(op_types_to_quantize or op_types - _NOT_QUANTIZED),
        nodes_to_exclude=excluded,
        per_channel=per_channel,
        reduce_range=reduce_range,
        use_external_data_format=_is_large(document),
        calibration_providers=calibration_providers,
        extra_options=options,
    )


def _needs_contrib_pairs(
    opset: int, types: set[QuantType], overrides: TensorQuantOverridesHelper
) -> bool:
    """Return whether an opset lacks a 4-bit type, and no 16-bit type will raise it."""
    types = types | overrides.get_quant_types()
    return opset < 21 and bool(types & _4_BITS) and not types & _16_BITS


def _excluded(document: ModelDoc, chosen: Any) -> list[str]:
    if not callable(chosen):
        return list(chosen or ())
    from onnx import ModelProto

    model = ModelProto.FromString(document_bytes(document))
    return [node.name for node in model.graph.node if chosen(model, node)]


def _is_large(document: ModelDoc) -> bool:
    """Return whether the model has external data, or needs it."""
    consts = document.graph.initializers.values()
    files = {id(c.source.file) for c in consts if isinstance(c, SourceConst) and c.source.file}
    return bool(files) or document_message(document, None).size > MAX_BYTES
