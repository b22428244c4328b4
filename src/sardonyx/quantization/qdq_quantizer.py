"""Quantization by pairs of QuantizeLinear and DequantizeLinear around ops on floats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument
from sardonyx.graph.const import ArrayConst, Const, Deferred
from sardonyx.graph.dtype import by_name
from sardonyx.quantization.base_quantizer import (
    MICROSOFT,
    PRODUCER,
    ActivationParams,
    BaseQuantizer,
    logger,
)
from sardonyx.quantization.document import NodeDoc, attribute
from sardonyx.quantization.qdq_plan import PlannedBias, PlannedTensor, ScaleNames, TensorParams
from sardonyx.quantization.quant_types import FLOAT8E4M3FN, FLOATS, SINCE_21, QuantType, dtype_of
from sardonyx.quantization.quantized_weight import QuantizedWeight, quantized_bias

QUANTIZE: Final = "QuantizeLinear"
DEQUANTIZE: Final = "DequantizeLinear"


class QDQQuantizer(BaseQuantizer):
    """Inserts pairs of QuantizeLinear and DequantizeLinear into a model."""

    def _set_up(self, activation: QuantType | int) -> None:
        super()._set_up(activation)
        option = self.extra_options.get
        self.tensors_to_quantize: dict[str, PlannedTensor] = {}
        self.bias_to_quantize: dict[str, PlannedBias] = {}
        self.op_types_to_exclude_output_quantization: Sequence[str] = (
            option("OpTypesToExcludeOutputQuantization") or []
        )
        self.add_qdq_pair_to_weight = bool(option("AddQDQPairToWeight", False))
        self.quantize_bias = bool(option("QuantizeBias", True))
        self.dedicated_qdq_pair = bool(option("DedicatedQDQPair", False))
        self.channel_axes: Mapping[str, int] = option("QDQOpTypePerChannelSupportToAxis") or {}
        self.qdq_keep_removable_activations = bool(option("QDQKeepRemovableActivations", False))
        self.adjusts_weights = not option("QDQDisableWeightAdjustForInt32Bias", False)
        self.block_size = int(option("BlockSize") or 0)
        self.qdq_op_domain = self._domain()
        self.quantization_params = self._activation_params()
        self.weights: dict[str, QuantizedWeight] = {}
        self.quantized: dict[str, ScaleNames] = {}  # tensors that have their pair
        self._receivers: dict[str, list[NodeDoc]] = {}  # quantized nodes by input
        self._dequantized: dict[str, NodeDoc] = {}  # nodes of the given model by output
        self._removed: list[NodeDoc] = []

    def _domain(self) -> str:
        """Return the domain of the pairs: ONNX has types of 16 and 4 bits since opset 21."""
        if self.extra_options.get("UseQDQContribOps", False):
            return MICROSOFT
        types = {t.tensor_type for t in self.tensor_quant_overrides.get_quant_types()}
        types |= {self.activation_qType, self.weight_qType}
        if self.opset_version >= 21 or not types.intersection(SINCE_21):
            return ""
        logger.warning(
            "QuantizeLinear and DequantizeLinear have types of 16 and 4 bits since opset 21, and "
            "the model has opset %d: those of domain %s are used",
            self.opset_version,
            MICROSOFT,
        )
        return MICROSOFT

    def _activation_params(self) -> dict[str, TensorParams]:
        self.adjust_tensor_ranges()
        found = {}
        for name, data in (self.tensors_range or {}).items():
            override = self.tensor_quant_overrides.get_per_tensor_overrides(name, {}) or {}
            converted, receivers = None, None
            if "convert" in override:
                converted = self.activation_params(data, override["convert"])
                receivers = override["convert"].get("recv_nodes")
            original = self.activation_params(data, override)
            found[name] = TensorParams(original, converted, receivers)
        return found

    # Marks, which the rules of ops set.

    def quantize_activation_tensor(self, tensor_name: str) -> None:
        """Mark a tensor for quantization with a scale of its own."""
        self._mark(tensor_name, PlannedTensor())

    def quantize_output_same_as_input(
        self, output_name: str, input_name: str, node_name: str
    ) -> None:
        """Mark an output for quantization with the scale that its node sees for an input."""
        if self._is_quantizable(output_name):
            self.tensors_to_quantize[output_name] = PlannedTensor(provider=(input_name, node_name))

    def quantize_weight_tensor(self, tensor_name: str) -> None:
        """Mark a weight for quantization as a whole."""
        self._mark(tensor_name, PlannedTensor(is_weight=True))

    def quantize_weight_tensor_per_channel(self, tensor_name: str, axis: int) -> None:
        """Mark a weight for quantization per channel."""
        weight = self.graph.constant(tensor_name)
        if weight is None:
            logger.warning("%s is not an initializer, and not quantized per channel", tensor_name)
        elif weight.dtype.onnx in FLOATS:
            self.tensors_to_quantize[tensor_name] = PlannedTensor(is_weight=True, axis=axis)

    def quantize_bias_tensor(self, node: NodeDoc, bias_name: str, beta: float = 1.0) -> None:
        """Mark a bias for quantization to int32; one with overrides is quantized as a weight."""
        if self.tensor_quant_overrides.get(bias_name):
            is_per_channel, axis = self.is_tensor_per_channel(bias_name, 0)
            if is_per_channel and axis is not None:
                self.quantize_weight_tensor_per_channel(bias_name, axis)
            else:
                self.quantize_weight_tensor(bias_name)
            return
        bias = self.graph.constant(bias_name)
        if bias is None:
            logger.warning("Expected bias '%s' to be an initializer", bias_name)
            return
        if bias.dtype.onnx not in FLOATS:
            return
        name = bias_name
        if name in self.bias_to_quantize or (beta != 1.0 and not self.has_one_reader(name)):
            # Its scale follows from other inputs of the node, so each node needs its own.
            name = self._free_name(bias_name)
            self.graph.initializers[name] = bias
            self.graph.replace_node_input(node, bias_name, name)
        self.bias_to_quantize[name] = PlannedBias(node, node.inputs[0], node.inputs[1], beta)

    def is_tensor_quantized(self, tensor_name: str) -> bool:
        """Return whether a tensor is marked."""
        return tensor_name in self.tensors_to_quantize or tensor_name in self.bias_to_quantize

    def is_tensor_per_channel(
        self, tensor_name: str, default_axis: int, op_type: str | None = None
    ) -> tuple[bool, int | None]:
        """Return whether a weight is quantized per channel, and its axis."""
        weight, overrides = self.graph.constant(tensor_name), self.tensor_quant_overrides
        if weight is None or overrides.has_per_tensor_overrides(tensor_name):
            return False, None
        has_channels = overrides.has_per_channel_overrides(tensor_name)
        if not self.per_channel and not has_channels:
            return False, None
        axis = self.channel_axes.get(op_type, default_axis) if op_type else default_axis
        if has_channels:
            axis = overrides[tensor_name][0]["axis"]
        rank = len(weight.shape)
        if not -rank <= axis < rank:
            logger.warning(
                "Axis %d is out of range for weight '%s' of rank %d", axis, tensor_name, rank
            )
            return False, None
        return True, axis % rank

    def try_replacing_upstream_output(self, upstream: str, output: str) -> bool:
        """Make the node of `upstream` make `output` instead, if nothing else reads `upstream`."""
        params, graph = self.quantization_params, self.graph
        if upstream not in params or output not in params:
            return False
        if params[upstream].converted is not None or params[output].converted is not None:
            return False
        is_inner = not graph.is_output(upstream) and not graph.is_input(upstream)
        if not is_inner or not self.has_one_reader(upstream):
            return False
        graph.replace_output(upstream, output)
        self.tensors_to_quantize.pop(upstream, None)
        return True

    def remove_node(self, node: NodeDoc) -> None:
        """Remove a node at the end."""
        self._removed.append(node)

    def _mark(self, name: str, planned: PlannedTensor) -> None:
        if self._is_quantizable(name):
            self.tensors_to_quantize.setdefault(name, planned)

    def _is_quantizable(self, name: str) -> bool:
        number = self.dtype_number(name) if name else None
        if name and number is None:
            logger.warning(
                "the type of tensor %s cannot be inferred, and it is not quantized", name
            )
        return number in FLOATS

    def _free_name(self, name: str) -> str:
        """Return the name with the number after the largest that an initializer has.

        Values that nodes make are passed over as well.
        """
        rests = (n.removeprefix(name) for n in self.graph.initializers if n.startswith(name))
        numbers = [int(r) for r in rests if r.isascii() and r.isdigit()]
        number, graph = max(numbers, default=-1) + 1, self.graph
        taken = {v for node in graph.nodes for v in node.outputs} | {i.name for i in graph.inputs}
        while f"{name}{number}" in taken:
            number += 1
        return f"{name}{number}"

    # The graph, once all ops have set their marks.

    def quantize_document(self) -> None:
        """Insert the pairs."""
        from sardonyx.quantization.qdq_rules import rule_of

        for node in list(self.graph.nodes):
            if self.should_quantize_node(node):
                rule_of(node.op_type)(self, node)
                for name in node.inputs:
                    self._receivers.setdefault(name, []).append(node)
            if node.op_type == DEQUANTIZE:
                self._dequantized.update(dict.fromkeys(node.outputs, node))
        self._plan_weights()
        self._quantize_tensors()
        self._quantize_shared()
        if self.quantize_bias:
            for name, bias in self.bias_to_quantize.items():
                if name not in self.quantized:
                    self._quantize_bias(name, bias)
        self.graph.remove(self._removed)
        if not self.add_qdq_pair_to_weight:
            self.graph.drop_unused_initializers()
        self.document.producer = PRODUCER
        if self.qdq_op_domain == MICROSOFT:
            self.document.opsets[MICROSOFT] = 1
        self.graph.sort()

    def _plan_weights(self) -> None:
        for name, planned in self.tensors_to_quantize.items():
            const = self.graph.constant(name)
            if const is not None:
                self.weights[name] = self._weight(name, planned, const)
        if not self.adjusts_weights:
            return
        for name, bias in self.bias_to_quantize.items():
            params = self.quantization_params.get(bias.input_name)
            weight = self.weights.get(bias.weight_name)
            if params is None or weight is None or bias.input_name not in self.tensors_to_quantize:
                continue
            seen = params.original
            is_converted = params.receivers is None or bias.node.name in params.receivers
            if params.converted is not None and is_converted:
                seen = params.converted
            if bias.beta:
                weight.add_bias(self.graph.initializers[name], float(seen.scale) / abs(bias.beta))

    def _weight(self, name: str, planned: PlannedTensor, const: Const) -> QuantizedWeight:
        overrides = self.tensor_quant_overrides.get(name) or [{}]
        first = overrides[0]
        number = self.weight_qType if planned.is_weight else self.activation_qType
        if "quant_type" in first:
            number = first["quant_type"].tensor_type
        axis = first.get("axis", planned.axis)
        # QLinear ops want one zero point for all channels: those of symmetric types are equal.
        default = self.is_activation_symmetric
        if planned.is_weight:
            default = self.is_weight_symmetric(number)
        block_size = self.block_size if planned.is_weight else 0
        is_symmetric = first.get("symmetric", axis is not None or default)
        if block_size and axis is None:
            axis = 0
        rank = len(const.shape)
        if axis is not None and not -rank <= axis < rank:
            raise ValueError(
                f"Weight {name} has a per-channel axis with value {axis} that is out-of-bounds for "
                f"rank {rank}"
            )
        is_given = self.tensor_quant_overrides.overrides_scale_zp(name)
        scheme = self.weight_scheme(
            number,
            symmetric=bool(is_symmetric),
            axis=None if axis is None else axis % rank,
            block_size=0 if is_given else block_size,
            reduce_range=bool(first.get("reduce_range", self.reduce_range)),
            channels=tuple(overrides) if any(overrides) else (),
        )
        return QuantizedWeight(const, scheme)

    def _quantize_tensors(self) -> None:
        for name, planned in list(self.tensors_to_quantize.items()):
            if planned.provider is not None or name in self.quantized:
                continue
            del self.tensors_to_quantize[name]
            if name in self.weights:
                self._quantize_weight(name, self.weights[name])
            elif name not in self._dequantized:  # else the given model quantizes it already
                self._quantize_activation(name)

    def _quantize_activation(self, name: str) -> None:
        params = self.quantization_params.get(name)
        if params is None:
            raise ValueError(
                f"Quantization parameters are not specified for param {name}. In static mode "
                "quantization params for inputs and outputs of nodes to be quantized are required."
            )
        original = self._add_params(name, params.original)
        if params.converted is None:
            self._add_pair(name, original)
        else:
            converted = self._add_params(name, params.converted, "_convert")
            self._add_conversion(name, original, converted, params.receivers)

    def _quantize_shared(self) -> None:
        """Quantize the tensors that share the scale of another, once that has one."""
        waiting = {n: p for n, p in self.tensors_to_quantize.items() if p.provider is not None}
        while waiting:
            ready = [
                n for n, p in waiting.items() if p.provider and p.provider[0] in self.quantized
            ]
            if not ready:
                # What they share is quantized by the given model, or cannot be.
                ready = [next(iter(waiting))]
            for name in ready:
                source, node_name = waiting.pop(name).provider or ("", "")
                self.tensors_to_quantize.pop(name, None)
                weight = self.weights.get(source)
                if source in self.quantized and (weight is None or weight.scheme.axis is None):
                    self._share(name, self.quantized[source].seen_by(node_name))
                elif name in self.quantization_params:
                    self._quantize_activation(name)

    def _share(self, name: str, shared: tuple[str, str]) -> None:
        if self.is_input_a_initializer(name) or name in self._dequantized:
            raise InvalidArgument(
                f"the scale of {name} is shared, and it is an initializer or quantized already",
                hint="exclude the node that makes it",
            )
        params = self.quantization_params.get(name)
        if params is None or params.converted is None:
            self._add_pair(name, shared)
        else:
            converted = self._add_params(name, params.converted, "_convert")
            self._add_conversion(name, shared, converted, params.receivers)

    def _add_params(self, name: str, params: ActivationParams, suffix: str = "") -> tuple[str, str]:
        """Add the constants of an activation's scale and zero point; return their names."""
        names = f"{name}_scale{suffix}", f"{name}_zero_point{suffix}"
        self.add_params(names, ArrayConst(params.scale), ArrayConst(params.zero_point))
        return names

    def _node(
        self, op: str, ends: tuple[str, str], name: str, params: tuple[str, str], **attrs: Any
    ) -> None:
        """Add a QuantizeLinear or DequantizeLinear."""
        set_ = {k: attribute(k, v) for k, v in attrs.items() if v is not None}
        inputs = [ends[0], *params]
        self.graph.add(NodeDoc(op, inputs, [ends[1]], name, self.qdq_op_domain, set_))

    def _quantize_weight(self, name: str, weight: QuantizedWeight) -> None:
        axis, block = weight.scheme.axis, weight.scheme.block_size or None
        output = f"{name}_DequantizeLinear_Output"
        self.graph.replace_input(name, output)
        params = f"{name}_scale", f"{name}_zero_point"
        if self.add_qdq_pair_to_weight:
            inner = f"{name}_QuantizeLinear_Output"
            self.add_params(params, weight.scale, weight.zero_point)
            ends = name, inner
            self._node(
                QUANTIZE, ends, f"{name}_QuantizeLinear", params, axis=axis, block_size=block
            )
        else:
            inner, _, _ = self.add_quantized(name, weight)
        ends = inner, output
        self._node(
            DEQUANTIZE, ends, f"{name}_DequantizeLinear", params, axis=axis, block_size=block
        )
        self.quantized[name] = ScaleNames(params)

    def _add_pair(self, name: str, params: tuple[str, str]) -> None:
        """Quantize and dequantize an activation, for all readers at once or for each."""
        receivers = self._receivers.get(name, [])
        if self.dedicated_qdq_pair and len(receivers) > 1:
            for i, node in enumerate(receivers, 1):
                output = f"{name}_DequantizeLinear_Output_{i}"
                self._pair(name, name, output, params, f"_{i}")
                self.graph.replace_node_input(node, name, output)
        elif self.graph.is_output(name):
            source = f"{name}_QuantizeLinear_Input"
            self.graph.replace_output(name, source)
            self._pair(name, source, name, params)
        else:
            output = f"{name}_DequantizeLinear_Output"
            self.graph.replace_input(name, output)
            self._pair(name, name, output, params)
        self.quantized[name] = ScaleNames(params)

    def _pair(
        self, name: str, source: str, output: str, params: tuple[str, str], suffix: str = ""
    ) -> None:
        inner = f"{name}_QuantizeLinear_Output{suffix}"
        self._node(QUANTIZE, (source, inner), f"{name}_QuantizeLinear{suffix}", params)
        self._node(DEQUANTIZE, (inner, output), f"{name}_DequantizeLinear{suffix}", params)

    def _add_conversion(
        self,
        name: str,
        original: tuple[str, str],
        converted: tuple[str, str],
        receivers: set[str] | None,
    ) -> None:
        """Quantize an activation to one type and, for some or all readers, to a second.

        The second pair has a DequantizeLinear of its own before it, unless all readers want it:
        then providers can fuse that with the QuantizeLinear to a conversion.
        """
        if self.dedicated_qdq_pair and len(self._receivers.get(name, [])) > 1:
            raise ValueError(
                "Do not currently support converted quant_types in TensorQuantOverrides when the "
                "`dedicated_qdq_pair` extra_option is enabled"
            )
        readers = {node.name for node in self._receivers.get(name, [])}
        wanted = readers if receivers is None else set(receivers)
        is_all, is_output = len(wanted) == len(readers), self.graph.is_output(name)
        graph, source = self.graph, name
        if is_output:
            source = f"{name}_QuantizeLinear_Input"
            graph.replace_output(name, source)
        inner = f"{name}_QuantizeLinear_Output"
        self._node(QUANTIZE, (source, inner), f"{name}_QuantizeLinear", original)
        first = name if is_output and not is_all else f"{name}_DequantizeLinear_Output"
        if first != name and readers - wanted:
            graph.replace_input(name, first, readers - wanted)
        # Readers of the second type are moved before nodes are added that may read the name.
        last = name if is_output and is_all else f"{name}_convert_DequantizeLinear_Output"
        if wanted and last != name:
            graph.replace_input(name, last, wanted)
        self._node(DEQUANTIZE, (inner, first), f"{name}_DequantizeLinear", original)
        between = first if is_all else f"{name}_convert_QuantizeLinear_Input"
        if not is_all:
            clone = f"{name}_convert_clone_DequantizeLinear"
            self._node(DEQUANTIZE, (inner, between), clone, original)
        self._pair(f"{name}_convert", between, last, converted)
        self.quantized[name] = ScaleNames(original, converted, wanted)

    def _quantize_bias(self, name: str, bias: PlannedBias) -> None:
        const = self.graph.initializers[name]
        tensor, node = f"{name}_quantized", f"{name}_DequantizeLinear"
        if self.weight_qType == FLOAT8E4M3FN:
            # Matmuls of float8 take a bias in floats.
            f32: Callable[[], Any] = lambda: const.read().astype(np.float32)  # noqa: E731
            self.add_constant(tensor, Deferred(by_name("f32"), const.shape, f32))
            to = {"to": attribute("to", const.dtype.onnx)}
            added = NodeDoc("Cast", [tensor], [name], node, attrs=to)
        else:
            scales = [self._scale_of(t, bias) for t in (bias.input_name, bias.weight_name)]
            if len(scales[1].shape) > 1:
                return  # scales of blocks of the weight are none of its columns
            values, scale = quantized_bias(name, const, scales[0], scales[1], beta=bias.beta)
            names = tensor, f"{tensor}_scale", f"{tensor}_zero_point"
            count = scale.count
            shape = (count,) if count > 1 else ()
            zero = ArrayConst(np.zeros(shape, dtype_of(6).np))
            for part, value in zip(names, (values, scale, zero), strict=True):
                self.add_constant(part, value)
            axis = {"axis": attribute("axis", len(values.shape) - 1)} if count > 1 else {}
            if bias.beta != 1.0:
                bias.node.set("beta", 1.0)
            added = NodeDoc(DEQUANTIZE, list(names), [name], node, self.qdq_op_domain, axis)
            self.quantized[name] = ScaleNames((names[1], names[2]))
        self.graph.remove_initializer(name)
        self.graph.add(added)

    def _scale_of(self, name: str, bias: PlannedBias) -> Const:
        """Return the scale of a tensor as a node sees it, also if the given model quantizes it."""
        scale = None
        if name in self.quantized:
            scale = self.graph.constant(self.quantized[name].seen_by(bias.node.name)[0])
        elif name in self._dequantized:
            scale = self.graph.constant(self._dequantized[name].inputs[1])
        if scale is None:
            raise ValueError(
                f"Unable to get valid quantization scale for input '{name}' of the node "
                f"'{bias.node.name}' when quantizing its bias to int32."
            )
        return scale
