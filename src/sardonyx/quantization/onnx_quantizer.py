"""Quantization by ops on integers (QOperator), with scales from calibration or at run time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from sardonyx.base.records import replace
from sardonyx.errors import InvalidGraph
from sardonyx.graph.const import ArrayConst, Const, Deferred
from sardonyx.quantization.base_quantizer import (
    MICROSOFT,
    PRODUCER,
    ActivationParams,
    BaseQuantizer,
    logger,
    scalar,
)
from sardonyx.quantization.document import GraphDoc, NodeDoc, attribute
from sardonyx.quantization.dynamic_scale import scale_nodes
from sardonyx.quantization.gemm_to_matmul import replace_gemm_with_matmul
from sardonyx.quantization.quant_types import (
    FLOAT8E4M3FN,
    FLOATS,
    INT8,
    UINT8,
    QuantizationMode,
    QuantType,
    dtype_of,
)
from sardonyx.quantization.quantized_value import QuantizedInputs, QuantizedValue
from sardonyx.quantization.quantized_weight import QuantizedWeight, quantized_bias

SUFFIX: Final = "_quantized"
_QDQ: Final = ("QuantizeLinear", "DequantizeLinear")


class ONNXQuantizer(BaseQuantizer):
    """Replaces ops on floats by ops on integers."""

    def __init__(  # noqa: PLR0913 - onnxruntime's arguments
        self,
        model: Any,
        per_channel: bool,
        reduce_range: bool,
        mode: QuantizationMode,
        static: bool,
        weight_qType: QuantType | int,
        activation_qType: QuantType | int,
        tensors_range: Any,
        nodes_to_quantize: Sequence[str] | None,
        nodes_to_exclude: Sequence[str] | None,
        op_types_to_quantize: Sequence[str],
        extra_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            model, per_channel, reduce_range, weight_qType, activation_qType, tensors_range,
            nodes_to_quantize, nodes_to_exclude, op_types_to_quantize, extra_options,
        )  # fmt: skip
        if not isinstance(mode, QuantizationMode):
            raise ValueError(f"unsupported quantization mode {mode}")  # noqa: TRY004 - as there
        if not static:
            self.types.update(replace_gemm_with_matmul(self.document, self.types))
        self.mode = mode
        self.static = static
        self.fuse_dynamic_quant = self.opset_version > 10
        self.q_matmul_const_b_only = bool(self.extra_options.get("MatMulConstBOnly", False))
        self.new_nodes: list[NodeDoc] = []
        self.graph_scope = "/"
        self.tensor_names = {v.name for v in (*self.graph.inputs, *self.graph.outputs)}
        for node in self.graph.nodes:
            self.tensor_names.update(node.outputs)
        self.quantization_params = self._activation_params()
        self.quantized_value_map: dict[str, QuantizedValue] = {}
        self.weights: dict[str, QuantizedWeight] = {}
        self._biases: dict[tuple[str, str, str, float, float], str] = {}  # names of quantized ones
        self._recorded: list[str] = []  # by the rule of the node at hand
        # Values that exist as floats and are never dequantized again.
        self.generated_value_names = {
            v.name for v in self.graph.inputs if v.name not in self.graph.initializers
        }

    def _activation_params(self) -> dict[str, ActivationParams]:
        self.adjust_tensor_ranges()
        found = {}
        for name, data in (self.tensors_range or {}).items():
            override = self.tensor_quant_overrides.get_per_tensor_overrides(name, {}) or {}
            found[name] = self.activation_params(data, override)
        return found

    def quantize_document(self) -> None:
        """Replace the nodes."""
        self._quantize_nodes()
        self._finish()

    def _quantize_nodes(self) -> None:
        from sardonyx.quantization.qop_rules import rule_of

        if any(node.op_type in _QDQ for node in self.graph.nodes):
            logger.warning(
                "Please check if the model is already quantized. A model of quantization-aware "
                "training needs no quantization: it runs as it is"
            )
        for node in self.graph.nodes:
            if self.enable_subgraph_quantization:
                self._quantize_bodies(node)
            before = len(self.new_nodes)
            rule_of(self, node)(self, node)
            for added in self.new_nodes[before:]:
                self.generated_value_names.update(added.outputs)
            self._forget_unmade()
        for output in self.graph.outputs:
            self.dequantize(output.name)
        self.graph.set_nodes(self.new_nodes)
        # What is dequantized is no longer stored in floats.
        for name in {n for node in self.new_nodes for n in node.outputs}:
            if name in self.graph.initializers:
                self.graph.remove_initializer(name)

    def _forget_unmade(self) -> None:
        """Forget the integers that a rule wanted of a node which it then kept in floats."""
        for name in self._recorded:
            value = self.quantized_value_map[name]
            is_made = value.q_name in self.generated_value_names
            if not is_made and value.q_name not in self.graph.initializers:
                del self.quantized_value_map[name]
        self._recorded.clear()

    def _finish(self) -> None:
        missing = self.graph.drop_unused_initializers() - {""}
        sparse = missing if self.graph.rest else set()
        if missing - sparse:
            raise InvalidGraph(f"nothing makes the values {sorted(missing)} of the quantized model")
        self.document.producer = PRODUCER
        families = self.graph.family()
        if any(node.domain == MICROSOFT for graph in families for node in graph.nodes):
            self.document.opsets.setdefault(MICROSOFT, 1)
        self.graph.sort()

    def _quantize_bodies(self, node: NodeDoc) -> None:
        """Quantize the bodies of a node; their weights may be initializers outside."""
        name = node.name or f"{node.op_type}_node_count_{len(self.new_nodes)}"
        for attr in node.attrs.values():
            for body in attr.graphs:
                self._quantize_body(body, f"{name}:{attr.name}")

    def _quantize_body(self, body: GraphDoc, key: str) -> None:
        inner = ONNXQuantizer(
            replace(self.document, graph=body),
            self.per_channel,
            self.reduce_range,
            self.mode,
            self.static,
            self.weight_qType,
            self.activation_qType,
            self.tensors_range,
            self.nodes_to_quantize,
            self.nodes_to_exclude,
            self.op_types_to_quantize,
            {**self.extra_options, "TensorQuantOverrides": {}},
        )
        inner.parent = self
        inner.graph_scope = f"{self.graph_scope}{key}/"
        inner._quantize_nodes()

    # Questions of rules.

    def find_initializer_in_path(self, initializer_name: str) -> bool:
        """Return whether a value is an initializer of this graph or of one around it."""
        if self.is_input_a_initializer(initializer_name):
            return True
        return self.parent is not None and bool(
            self.parent.find_initializer_in_path(initializer_name)
        )

    def get_tensor_type(self, tensor_name: str, mandatory: bool = False) -> int | None:
        """Return the number of a value's element type; if unknown, that of `DefaultTensorType`."""
        number = self.dtype_number(tensor_name)
        if number is None and self.enable_subgraph_quantization and self.parent is not None:
            found: int | None = self.parent.get_tensor_type(tensor_name)
            number = found
        if number is None and mandatory:
            if "DefaultTensorType" in self.extra_options:
                return int(self.extra_options["DefaultTensorType"])
            raise RuntimeError(
                f"Unable to find data type for weight_name={tensor_name!r}: no type is inferred, "
                "perhaps after a node of another domain. The extra option DefaultTensorType gives "
                "one, usually onnx.TensorProto.FLOAT."
            )
        return number

    def is_float_tensor(self, tensor_name: str) -> bool:
        """Return whether a value can be quantized."""
        if self.is_input_a_initializer(tensor_name):
            return self.is_valid_quantize_weight(tensor_name)
        if tensor_name in self.types:
            return self.dtype_number(tensor_name) in FLOATS
        if self.enable_subgraph_quantization and self.parent is not None:
            return bool(self.parent.is_float_tensor(tensor_name))
        logger.warning(
            "the type of tensor %r cannot be inferred, and it is not quantized", tensor_name
        )
        return False

    def find_quantized_value(self, input_name: str) -> QuantizedValue | None:
        """Return the quantized form of a value, of this graph or of one around it."""
        if input_name in self.quantized_value_map:
            return self.quantized_value_map[input_name]
        if self.parent is None:
            return None
        found: QuantizedValue | None = self.parent.find_quantized_value(input_name)
        return found

    def scale_names(self, name: str) -> tuple[str, str] | None:
        """Add scale and zero point of a calibrated activation; return their names."""
        params = self.quantization_params.get(name)
        if params is None:
            return None
        return self._add_params(name, params)

    def fixed_scale_names(self, name: str, scale: float, zero_point: int) -> tuple[str, str] | None:
        """Add a scale and zero point that follow from the op, if the activation is calibrated."""
        params = self.quantization_params.get(name)
        if params is None:
            return None
        number = self.activation_qType
        zero = np.array(zero_point, dtype_of(number).np)
        fixed = ActivationParams(np.array(scale, params.scale.dtype), zero, number)
        return self._add_params(name, fixed)

    def _add_params(self, name: str, params: ActivationParams) -> tuple[str, str]:
        names = f"{name}_scale", f"{name}_zero_point"
        self.add_params(names, ArrayConst(params.scale), ArrayConst(params.zero_point))
        return names

    # What rules do.

    def keep(self, node: NodeDoc) -> None:
        """Keep a node, with its inputs dequantized."""
        for name in node.inputs:
            self.dequantize(name)
        for body in node.bodies():
            for name in sorted(body.captures() & self.quantized_value_map.keys()):
                self.dequantize(name)
        self.new_nodes.append(node)

    def record(self, value: QuantizedValue) -> None:
        """Note that a value is available as integers."""
        self.quantized_value_map[value.original_name] = value
        self._recorded.append(value.original_name)

    def quantize_activation(self, node: NodeDoc, indices: Sequence[int]) -> QuantizedInputs | None:
        """Quantize inputs with the type of activations; None if one has no scale."""
        return self._quantize_inputs(node, indices, self.activation_qType)

    def quantize_weight(
        self,
        node: NodeDoc,
        indices: Sequence[int],
        reduce_range: bool = False,
        axis: int | None = None,
    ) -> QuantizedInputs | None:
        """Quantize inputs with the type of weights, per channel if `axis` is given and wanted."""
        return self._quantize_inputs(node, indices, self.weight_qType, reduce_range, axis)

    def _quantize_inputs(
        self,
        node: NodeDoc,
        indices: Sequence[int],
        number: int,
        reduce_range: bool = False,
        axis: int | None = None,
    ) -> QuantizedInputs | None:
        found = QuantizedInputs([], [], [], [])
        for index in indices:
            name = node.input(index)
            if not name:
                found.append(QuantizedValue("", "", "", ""))
            elif self.is_input_a_initializer(name):
                channels = axis if self.per_channel else None
                found.append(self.quantize_initializer(name, number, reduce_range, channels))
            elif name in self.quantized_value_map:
                found.append(self.quantized_value_map[name])
            elif self._has_tensor(name):
                nodes = self._quantize_value(name, number)
                if nodes is None:
                    return None
                found.nodes.extend(nodes)
                found.append(self.quantized_value_map[name])
            elif self.parent is not None:
                one = [index], number, reduce_range, axis
                outer = self.parent._quantize_inputs(node, *one)
                if outer is None:
                    return None
                self.parent.add_new_nodes(outer.nodes)
                outer.nodes = []
                found = found.joined(outer) or found
            else:
                raise ValueError(
                    f"Invalid tensor name to quantize: {name} @graph scope{self.graph_scope}"
                )
        return found

    def add_new_nodes(self, nodes: Sequence[NodeDoc]) -> None:
        """Add nodes of this graph that a body needs."""
        self.new_nodes.extend(nodes)
        for node in nodes:
            self.generated_value_names.update(node.outputs)

    def _has_tensor(self, name: str) -> bool:
        known = self.types, self.tensor_names, self.generated_value_names
        return any(name in group for group in known)

    def _quantize_value(
        self, name: str, number: int, given: tuple[str, str] | None = None
    ) -> list[NodeDoc] | None:
        """Return nodes that quantize a value, and record it; None if it has no scale."""
        output, label = name + SUFFIX, f"{name}_QuantizeLinear"
        names = given or self.scale_names(name)
        nodes: list[NodeDoc] = []
        if names is None:
            if self.static:
                return None
            names = f"{name}_scale", f"{name}_zero_point"
            if self.fuse_dynamic_quant and self.activation_qType == UINT8:
                nodes.append(NodeDoc("DynamicQuantizeLinear", [name], [output, *names], label))
                if self.get_tensor_type(name) == FLOATS[1]:
                    nodes = _in_float32(nodes[0])
                self.record(QuantizedValue(name, output, *names))
                return nodes
            initial = self.get_tensor_type(name, mandatory=True)
            assert initial is not None
            nodes, names = scale_nodes(self, name, self.activation_qType, dtype_of(initial))
        nodes.append(NodeDoc("QuantizeLinear", [name, *names], [output], label))
        self.record(QuantizedValue(name, output, *names))
        return nodes

    def quantize_with(self, name: str, scale_name: str, zp_name: str) -> list[NodeDoc]:
        """Return nodes that quantize a value by a given scale and zero point."""
        return self._quantize_value(name, self.activation_qType, (scale_name, zp_name)) or []

    def quantize_initializer(
        self, name: str, number: int, reduce_range: bool = False, axis: int | None = None
    ) -> QuantizedValue:
        """Quantize an initializer, as a whole or per channel: once for each axis in use."""
        const = self.graph.initializers[name]
        rank = len(const.shape)
        if axis == -1 and rank == 1:
            axis = None  # a vector has no columns
        known = self.quantized_value_map.get(name)
        if known is not None:
            kind = self.weights[name].scheme.number if name in self.weights else 0
            is_of_type = kind == number or (kind and number != self.activation_qType)
            wanted = axis if axis is None else axis % rank
            if is_of_type and (known.axis is None or known.axis % rank == wanted):
                return known
            label = f"{name}_{number}_{'' if wanted is None else wanted}"
            found = self.quantized_value_map.get(label)
            return found or self.add_weight(name, const, number, reduce_range, axis, label)
        if const.dtype.onnx not in FLOATS:
            raise ValueError(f"Only float type is supported. Weights {name} is {const.dtype.name}")
        return self.add_weight(name, const, number, reduce_range, axis)

    def add_weight(
        self,
        name: str,
        const: Const,
        number: int,
        reduce_range: bool,
        axis: int | None,
        label: str | None = None,
    ) -> QuantizedValue:
        """Add the quantized tensor of a constant, and record it under its name or a label."""
        weight = self._weight(name, const, number, reduce_range, axis)
        label = label or name
        q_name, zp_name, scale_name = self.add_quantized(label, weight)
        self.weights[label] = weight
        value = QuantizedValue(label, q_name, scale_name, zp_name, axis)
        self.record(value)
        return value

    def _weight(
        self, name: str, const: Const, number: int, reduce_range: bool, axis: int | None
    ) -> QuantizedWeight:
        overrides = self.tensor_quant_overrides
        rank = len(const.shape)
        if axis is None:
            channels = [overrides.get_per_tensor_overrides(name, {}) or {}]
        else:
            if not -rank <= axis < rank:
                raise ValueError(
                    f"Weight {name} has a per-channel axis with value {axis} that is out-of-bounds "
                    f"for rank {rank}"
                )
            axis %= rank
            channels = overrides.get_per_channel_overrides(name, [{"axis": axis}]) or [{}]
            if channels[0].get("axis", axis) % rank != axis:
                raise ValueError(
                    f"Tensor quantization overrides for {name} specify an unexpected axis. "
                    f"Expected {axis}, but got {channels[0]['axis']}."
                )
        first = channels[0]
        if "quant_type" in first:
            number = first["quant_type"].tensor_type
        symmetric = self.is_activation_symmetric
        if number == self.weight_qType or axis is not None:
            symmetric = self.is_weight_symmetric(number)
        scheme = self.weight_scheme(
            number,
            symmetric=bool(first.get("symmetric", symmetric)),
            axis=axis,
            reduce_range=bool(first.get("reduce_range", self.reduce_range and reduce_range)),
            channels=tuple(channels) if any(channels) else (),
        )
        return QuantizedWeight(const, scheme)

    def quantize_bias_static(
        self, bias_name: str, inputs: QuantizedInputs, alpha: float = 1.0, beta: float = 1.0
    ) -> str:
        """Quantize a bias to int32 for a product of inputs, times alpha; return its name.

        A bias of several nodes is quantized by the scales of each.
        """
        key = bias_name, inputs.scales[0], inputs.scales[1], alpha, beta
        if key in self._biases:
            return self._biases[key]
        bias = self.graph.initializers[bias_name]
        is_first = all(bias_name != known[0] for known in self._biases)
        is_first = is_first and bias_name not in self.quantized_value_map
        label = bias_name if is_first else f"{bias_name}_{len(self._biases)}"
        name = self._biases[key] = label + SUFFIX
        axis = None
        if self.weight_qType == FLOAT8E4M3FN:
            self.add_constant(name, Deferred(dtype_of(1), bias.shape, lambda: bias.read() * beta))
        else:
            input_scale, weight_scale = (self._constant(n) for n in inputs.scales[:2])
            weight = self.weights.get(inputs.scales[1].removesuffix("_scale"))
            is_known = weight is not None and not isinstance(input_scale, Deferred)
            if weight is not None and is_known and weight.scheme.number == INT8 and beta:
                weight.add_bias(bias, abs(float(input_scale.read()) * alpha / beta))
            values, scale = quantized_bias(label, bias, input_scale, weight_scale, alpha, beta)
            self.add_constant(name, values)
            self.add_constant(f"{name}_scale", scale)
            zero = np.zeros((scale.count,) if scale.count > 1 else (), np.int32)
            self.add_constant(f"{name}_zero_point", ArrayConst(zero))
            axis = len(values.shape) - 1 if scale.count > 1 else None
        if (alpha, beta) == (1.0, 1.0):
            self.record(QuantizedValue(label, name, f"{name}_scale", f"{name}_zero_point", axis))
        return name

    def _constant(self, name: str) -> Const:
        """Return an initializer of this graph, or of one around it."""
        if name not in self.graph.initializers and self.parent is not None:
            found: Const = self.parent._constant(name)
            return found
        return self.graph.initializers[name]

    def dequantize(self, name: str) -> None:
        """Add a node that makes a quantized value available as floats, unless it is."""
        if name in self.generated_value_names or name not in self.quantized_value_map:
            return
        value = self.quantized_value_map[name]
        label = f"{name}_DequantizeLinear"
        if any(node.name == label for node in (*self.graph.nodes, *self.new_nodes)):
            return
        axis = {} if value.axis is None else {"axis": attribute("axis", value.axis)}
        inputs = [value.q_name, value.scale_name, value.zp_name]
        self.new_nodes.append(NodeDoc("DequantizeLinear", inputs, [name], label, attrs=axis))


def _in_float32(node: NodeDoc) -> list[NodeDoc]:
    """Return a DynamicQuantizeLinear of float16 as nodes of ONNX, which has float32 only."""
    (name,), scale = node.inputs, node.outputs[1]
    before = NodeDoc("Cast", [name], [f"{name}_float32"], f"{name}_Cast")
    after = NodeDoc("Cast", [f"{scale}_float32"], [scale], f"{scale}_Cast")
    before.set("to", FLOATS[0])
    after.set("to", FLOATS[1])
    node.inputs, node.outputs[1] = list(before.outputs), after.inputs[0]
    return [before, node, after]


__all__ = ["ONNXQuantizer", "QuantizedInputs", "QuantizedValue", "scalar"]
