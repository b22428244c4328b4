"""What both quantizers share: options, types of values, and the choice of nodes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.base.shared_store import Array
from sardonyx.errors import InvalidArgument
from sardonyx.graph.const import ArrayConst, Const
from sardonyx.quantization.arithmetic import (
    float8_scale,
    is_snapped,
    scale_and_zero_point,
    snapped_zero_point,
)
from sardonyx.quantization.document import ModelDoc, NodeDoc, read_document
from sardonyx.quantization.document.types import ValueType, value_types
from sardonyx.quantization.quant_types import (
    FLOAT8E4M3FN,
    FLOATS,
    SIGNED,
    QuantType,
    dtype_of,
    type_number,
    typed_limits,
)
from sardonyx.quantization.quantized_weight import QuantizedWeight, WeightScheme
from sardonyx.quantization.tensor_quant_overrides import TensorQuantOverridesHelper
from sardonyx.quantization.tensors_data import TensorData

logger = logging.getLogger("sardonyx.quantization")
PRODUCER: Final = ("onnx.quantize", "0.1.0")  # as onnxruntime's tools name themselves
MICROSOFT: Final = "com.microsoft"
_QDQ: Final = ("QuantizeLinear", "DequantizeLinear")


@frozen
class ActivationParams:
    """Scale and zero point of an activation, and the number of its type."""

    scale: Array
    zero_point: Array
    number: int


class BaseQuantizer:
    """A document that is being quantized, and the options."""

    def __init__(  # noqa: PLR0913 - onnxruntime's arguments
        self,
        model: Any,
        per_channel: bool,
        reduce_range: bool,
        weight_qType: QuantType | int,
        activation_qType: QuantType | int,
        tensors_range: Any,
        nodes_to_quantize: Sequence[str] | None,
        nodes_to_exclude: Sequence[str] | None,
        op_types_to_quantize: Sequence[str],
        extra_options: Mapping[str, Any] | None = None,
    ) -> None:
        """`model` is a document, which is changed, or anything that a session can load."""
        is_read = isinstance(model, ModelDoc)
        self.document: ModelDoc = model if is_read else read_document(model)
        self.graph = self.document.graph
        # Of models that are read here, only ONNX's ops are inferred, as onnxruntime's tools do.
        self.types: dict[str, ValueType] = value_types(self.document, standard_only=not is_read)
        self.captured = self.graph.body_reads()
        self.opset_version = self.document.opset
        self.per_channel = per_channel
        self.reduce_range = reduce_range
        self.extra_options: dict[str, Any] = dict(extra_options or {})
        self.activation_qType = type_number(activation_qType)
        self.weight_qType = type_number(weight_qType)
        self.tensors_range = _ranges(tensors_range)
        self.nodes_to_quantize = nodes_to_quantize
        self.nodes_to_exclude = nodes_to_exclude
        self.op_types_to_quantize = op_types_to_quantize
        self.parent: Any = None  # the quantizer of the graph around a body
        self._model: Any = None
        self._set_up(activation_qType)

    def _set_up(self, activation: QuantType | int) -> None:
        """Set what follows from the options, at the end of the constructor."""
        option = self.extra_options.get
        self.enable_subgraph_quantization = bool(option("EnableSubgraph", False))
        self.force_quantize_no_input_check = bool(option("ForceQuantizeNoInputCheck", False))
        self.is_activation_symmetric = bool(option("ActivationSymmetric", False))
        self.is_activation_restricted_asymmetric = bool(
            option("ActivationRestrictedAsymmetric", False)
        )
        self.min_real_range: float | None = option("MinimumRealRange")
        self._weight_symmetric: bool | None = option("WeightSymmetric")
        overrides = TensorQuantOverridesHelper(option("TensorQuantOverrides") or {})
        is_valid, reason = overrides.is_valid(
            self.graph.initializers, self.types.keys(), activation
        )
        if not is_valid:
            raise ValueError(reason)
        self.tensor_quant_overrides = overrides

    @property
    def model(self) -> Any:
        """The model as an `ONNXModel`; quantized after `quantize_model`."""
        if self._model is None:
            from sardonyx.quantization.onnx_model import ONNXModel

            self._model = ONNXModel.of(self.document)
        return self._model

    def quantize_model(self) -> Any:
        """Quantize the model and return it as an onnx.ModelProto."""
        self.quantize_document()
        self._model = None
        return self.model.model

    def quantize_document(self) -> None:
        """Quantize the document."""
        raise NotImplementedError("a quantizer quantizes its document")

    def is_weight_symmetric(self, weight_quant_type: int) -> bool:
        """Return whether weights of a type are quantized symmetrically."""
        return (
            weight_quant_type in SIGNED
            if self._weight_symmetric is None
            else self._weight_symmetric
        )

    def is_input_a_initializer(self, input_name: str) -> bool:
        """Return whether a value is an initializer of this graph."""
        return input_name in self.graph.initializers

    def has_one_reader(self, name: str) -> bool:
        """Return whether one node of this graph reads a value, and nothing else does."""
        is_seen = name in self.captured or self.graph.is_output(name)
        return not is_seen and len(self.graph.readers(name)) == 1

    def follows_from_range(self, node: NodeDoc) -> bool:
        """Return whether a Relu or Clip does what the range of its output does, which includes 0.

        Bounds that are computed are taken to include 0 as well.
        """
        bounds = [node.attr("min", 0.0), node.attr("max", 0.0)]
        for i, name in enumerate(node.inputs[1:3]):
            const = self.graph.constant(name)
            if const is not None and const.count == 1:
                bounds[i] = float(const.read().reshape(()))
        return bool(bounds[0] <= 0 <= bounds[1])

    def is_per_channel(self) -> bool:
        """Return whether weights are quantized per channel where the op supports it."""
        return self.per_channel

    def is_valid_quantize_weight(self, weight_name: str) -> bool:
        """Return whether a value is an initializer that can be quantized."""
        weight = self.graph.constant(weight_name)
        if weight is not None:
            return weight.dtype.onnx in FLOATS
        if not self.enable_subgraph_quantization or self.parent is None:
            return False
        return bool(self.parent.is_valid_quantize_weight(weight_name))

    def should_quantize_node(self, node: NodeDoc) -> bool:
        """Return whether the options select a node."""
        if self.nodes_to_quantize and node.name not in self.nodes_to_quantize:
            return False
        if node.op_type not in self.op_types_to_quantize or node.op_type in _QDQ:
            return False
        return not self.nodes_to_exclude or node.name not in self.nodes_to_exclude

    def dtype_number(self, name: str) -> int | None:
        """Return the number of the element type of a value of this graph; None if unknown."""
        weight = self.graph.constant(name)
        if weight is not None:
            return weight.dtype.onnx
        kind = self.types.get(name)
        return None if kind is None else kind.dtype.onnx

    def add_constant(self, name: str, const: Const) -> None:
        """Add an initializer, unless there is one of this name."""
        self.graph.initializers.setdefault(name, const)

    def add_params(self, names: Sequence[str], scale: Const, zero_point: Const) -> None:
        """Add constants for a scale and a zero point, of these names."""
        for name, const in ((names[1], zero_point), (names[0], scale)):
            self.add_constant(name, const)
            self.graph.typed.add(name)  # programs read them from the fields of their types

    def activation_params(self, data: TensorData, override: dict[str, Any]) -> ActivationParams:
        """Return scale and zero point for what calibration found, with a tensor's overrides."""
        number = self.activation_qType
        if "quant_type" in override:
            number = override["quant_type"].tensor_type
        if "scale" in override and "zero_point" in override:
            dtype = _float_type(override["scale"], data)
            scale = np.array(override["scale"], dtype)
            zero = np.asarray(override["zero_point"]).astype(dtype_of(number).np)
        elif number == FLOAT8E4M3FN:
            zero, scale = float8_scale(number, data.avg_std[1])
        else:
            zero, scale = self._integer_params(number, data, override)
        if scale.size != 1:
            raise InvalidArgument(
                f"an activation has {scale.size} scales: it was calibrated per channel, and "
                "activations are quantized as a whole"
            )
        return ActivationParams(scale.reshape(()), zero.reshape(()), number)

    def _integer_params(
        self, number: int, data: TensorData, override: dict[str, Any]
    ) -> tuple[Array, Array]:
        dtype = _float_type(None, data)
        limits = [
            override.get(k, getattr(data, a)) for k, a in (("rmin", "lowest"), ("rmax", "highest"))
        ]
        rmin, rmax = (np.asarray(v, dtype) for v in limits)
        symmetric = bool(override.get("symmetric", self.is_activation_symmetric))
        qmin, qmax = typed_limits(number, bool(override.get("reduce_range", False)), symmetric)
        if is_snapped(number, self.is_activation_restricted_asymmetric, symmetric):
            return snapped_zero_point(rmin, rmax, int(qmin), int(qmax), self.min_real_range)
        return scale_and_zero_point(rmin, rmax, qmin, qmax, symmetric, self.min_real_range)

    def adjust_tensor_ranges(self) -> None:
        """Give inputs of Relu and Clip the range of their output, and Softmax 0 to 1."""
        ranges = self.tensors_range
        if ranges is None:
            return
        for node in self.graph.nodes:
            if not self.should_quantize_node(node):
                continue
            if node.op_type in ("Clip", "Relu"):
                source, output = node.inputs[0], node.outputs[0]
                if source in ranges and output in ranges and self.has_one_reader(source):
                    ranges[source] = ranges[output]
            elif node.op_type == "Softmax" and self.activation_qType != FLOAT8E4M3FN:
                kind = np.float16 if self.dtype_number(node.outputs[0]) == FLOATS[1] else np.float32
                ranges[node.outputs[0]] = TensorData(lowest=kind(0.0), highest=kind(1.0))

    def weight_scheme(self, number: int, **options: Any) -> WeightScheme:
        """Return how a weight is quantized, with the options for all weights."""
        return WeightScheme(number=number, min_real_range=self.min_real_range, **options)

    def add_quantized(
        self, name: str, weight: QuantizedWeight, tensor_name: str | None = None
    ) -> tuple[str, str, str]:
        """Add a quantized weight's tensors; return the names of tensor, zero point and scale.

        A large tensor comes first: its scales are computed while it is written.
        """
        names = tensor_name or f"{name}_quantized", f"{name}_zero_point", f"{name}_scale"
        if not weight.source.is_small:
            self.add_constant(names[0], weight.tensor)
        self.add_params(names[:0:-1], weight.scale, weight.zero_point)
        self.add_constant(names[0], weight.tensor)
        return names


def _float_type(scale: Any, data: TensorData) -> Any:
    """Return the type of scales: that of the calibrated values, else of a given scale."""
    for value in (getattr(data, "lowest", None), scale):
        dtype = getattr(value, "dtype", None)
        if dtype in (np.float16, np.float32):
            return dtype
    return np.dtype(np.float32)


def _ranges(tensors_range: Any) -> dict[str, TensorData] | None:
    """Return the ranges as a dict that can be changed."""
    if tensors_range is None:
        return None
    wrong = {type(v) for v in tensors_range.values() if not isinstance(v, TensorData)}
    if wrong:
        raise TypeError(f"tensors_range contains unexpected types {wrong}, not TensorData.")
    return dict(tensors_range.items())


def scalar(array: Any, dtype: Any) -> ArrayConst:
    """Return a constant of rank 0."""
    return ArrayConst(np.asarray(array, dtype).reshape(()))
