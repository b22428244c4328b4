"""How ops are expressed by ops on integers: one rule per family of ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from sardonyx.graph.const import ArrayConst, Const, Deferred
from sardonyx.quantization.arithmetic import quantized
from sardonyx.quantization.base_quantizer import MICROSOFT, logger
from sardonyx.quantization.document import NodeDoc
from sardonyx.quantization.onnx_quantizer import SUFFIX, ONNXQuantizer
from sardonyx.quantization.quant_types import (
    FLOAT8,
    FLOAT8E4M3FN,
    INT8,
    UINT8,
    QuantizationMode,
    dtype_of,
)
from sardonyx.quantization.quantized_value import QuantizedInputs, QuantizedValue

Rule = Callable[[ONNXQuantizer, NodeDoc], None]


def _keep(q: ONNXQuantizer, node: NodeDoc) -> None:
    """Ops that stay in floats."""
    q.keep(node)


def _quant_name(node: NodeDoc) -> str:
    return f"{node.name}_quant" if node.name else ""


def _replaced(
    node: NodeDoc, op_type: str, inputs: list[str], outputs: list[str], domain: str = MICROSOFT
) -> NodeDoc:
    """Return a node with the attributes of another."""
    return NodeDoc(op_type, inputs, outputs, _quant_name(node), domain, dict(node.attrs))


def _finish(
    q: ONNXQuantizer,
    node: NodeDoc,
    nodes: list[NodeDoc],
    made: NodeDoc,
    params: tuple[str, str],
) -> None:
    """Add the nodes, the last of which makes the output of `node` as integers."""
    q.new_nodes.extend([*nodes, made])
    q.record(QuantizedValue(node.outputs[0], made.outputs[0], *params))


def _unary(q: ONNXQuantizer, node: NodeDoc, params: tuple[str, str] | None) -> None:
    """An op of one input as QLinear op of com.microsoft."""
    inputs = q.quantize_activation(node, [0])
    if params is None or inputs is None:
        return q.keep(node)
    output = [node.outputs[0] + SUFFIX]
    made = _replaced(node, f"QLinear{node.op_type}", [*inputs.triples(), *params], output)
    if node.op_type == "Softmax":
        made.set("opset", q.opset_version)  # the meaning of its axis
    return _finish(q, node, inputs.nodes, made, params)


def _activation(q: ONNXQuantizer, node: NodeDoc) -> None:
    _unary(q, node, q.scale_names(node.outputs[0]))


def _sigmoid(q: ONNXQuantizer, node: NodeDoc) -> None:
    if q.extra_options.get("extra.Sigmoid.nnapi", False):
        _unary(q, node, q.fixed_scale_names(node.outputs[0], 1 / 256.0, 0))
    else:
        _activation(q, node)


def _softmax(q: ONNXQuantizer, node: NodeDoc) -> None:
    zero = 0 if q.activation_qType == UINT8 else -128
    _unary(q, node, q.fixed_scale_names(node.outputs[0], 1 / 256.0, zero))


def _clip(q: ONNXQuantizer, node: NodeDoc) -> None:
    """Relu and Clip are left out: the range of the op before them is that of their output."""
    value = q.quantized_value_map.get(node.inputs[0])
    is_implied = q.has_one_reader(node.inputs[0]) and q.follows_from_range(node)
    if value is None or q.is_activation_symmetric or not is_implied:
        return q.keep(node)
    q.quantized_value_map[node.outputs[0]] = value
    return None


def _binary(q: ONNXQuantizer, node: NodeDoc) -> None:
    params = q.scale_names(node.outputs[0])
    inputs = q.quantize_activation(node, [0, 1])
    if params is None or inputs is None:
        return q.keep(node)
    output = [node.outputs[0] + SUFFIX]
    made = _replaced(node, f"QLinear{node.op_type}", [*inputs.triples(), *params], output)
    return _finish(q, node, inputs.nodes, made, params)


def _concat(q: ONNXQuantizer, node: NodeDoc) -> None:
    params = q.scale_names(node.outputs[0])
    inputs = q.quantize_activation(node, range(len(node.inputs)))
    if params is None or inputs is None:
        return q.keep(node)
    output = [node.outputs[0] + SUFFIX]
    made = _replaced(node, "QLinearConcat", [*params, *inputs.triples()], output)
    return _finish(q, node, inputs.nodes, made, params)


def _where(q: ONNXQuantizer, node: NodeDoc) -> None:
    params = inputs = None
    if q.force_quantize_no_input_check:
        params = q.scale_names(node.outputs[0])
        inputs = q.quantize_activation(node, [1, 2])
    if params is None or inputs is None:
        return q.keep(node)
    names = [node.inputs[0], *inputs.triples(), *params]
    made = _replaced(node, "QLinearWhere", names, [node.outputs[0] + SUFFIX])
    return _finish(q, node, inputs.nodes, made, params)


def _operands(
    q: ONNXQuantizer, node: NodeDoc, axis: int, number: int | None = None
) -> QuantizedInputs | None:
    """Quantize activation and weight of a node; a constant weight per channel if that is wanted."""
    activation = q.quantize_activation(node, [0])
    if activation is None:
        return None
    if q.is_per_channel() and q.is_input_a_initializer(node.inputs[1]):
        kind = q.weight_qType if number is None else number
        activation.append(q.quantize_initializer(node.inputs[1], kind, True, axis))
        return activation
    return activation.joined(q.quantize_weight(node, [1], reduce_range=q.reduce_range))


def _conv(q: ONNXQuantizer, node: NodeDoc) -> None:
    params = q.scale_names(node.outputs[0])
    inputs = _operands(q, node, 0, INT8)
    if params is None or inputs is None:
        return q.keep(node)
    names = [*inputs.triples(), *params]
    bias = node.input(2)
    if bias:
        if q.weight_qType == FLOAT8E4M3FN:
            raise RuntimeError(
                "Quantization to FLOAT8E4M3FN for operator Conv is not supported: exclude it"
            )
        if not q.is_input_a_initializer(bias):
            return q.keep(node)
        names.append(q.quantize_bias_static(bias, inputs))
    made = _replaced(node, "QLinearConv", names, [node.outputs[0] + SUFFIX], "")
    return _finish(q, node, inputs.nodes, made, params)


def _is_product_quantized(q: ONNXQuantizer, node: NodeDoc) -> bool:
    """Return whether the options and the types of its inputs allow a matrix product in integers."""
    if not q.should_quantize_node(node):
        return False
    if not any(q.is_float_tensor(node.inputs[i]) for i in (1, 0)):
        logger.info("the node %s has no inputs in floats", node.name)
        return False
    return not q.q_matmul_const_b_only or q.find_initializer_in_path(node.inputs[1])


def _gemm(q: ONNXQuantizer, node: NodeDoc) -> None:
    params = q.scale_names(node.outputs[0])
    inputs = _operands(q, node, 0 if node.attr("transB", 0) else 1)
    bias = node.input(2)
    if params is None or inputs is None or (bias and not q.is_input_a_initializer(bias)):
        return q.keep(node)
    quantized_bias = ""
    if bias:
        alpha, beta = (float(node.attr(name, 1.0)) for name in ("alpha", "beta"))
        quantized_bias = q.quantize_bias_static(bias, inputs, alpha, beta)
    names = [*inputs.triples(), quantized_bias, *params]
    made = _replaced(node, "QGemm", names, [node.outputs[0] + SUFFIX])
    made.attrs.pop("beta", None)
    return _finish(q, node, inputs.nodes, made, params)


def _both(q: ONNXQuantizer, node: NodeDoc, axis: int | None) -> QuantizedInputs | None:
    """Quantize activation and weight; the range of a weight may be reduced."""
    activation = q.quantize_activation(node, [0])
    if activation is None:
        return None
    return activation.joined(q.quantize_weight(node, [1], reduce_range=True, axis=axis))


def _matmul(q: ONNXQuantizer, node: NodeDoc) -> None:
    inputs = _both(q, node, -1)
    params = q.scale_names(node.outputs[0])
    if params is None or inputs is None:
        return q.keep(node)
    domain = MICROSOFT if q.weight_qType in FLOAT8 else ""
    names = [*inputs.triples(), *params]
    made = _replaced(node, "QLinearMatMul", names, [node.outputs[0] + SUFFIX], domain)
    made.attrs.clear()
    return _finish(q, node, inputs.nodes, made, params)


def _integer_product(q: ONNXQuantizer, node: NodeDoc, inputs: QuantizedInputs, output: str) -> None:
    """Add an integer product and the nodes that scale its result to `output`."""
    name, label = _quant_name(node), f"{node.outputs[0]}_output_quantized"
    operands = inputs.names + inputs.zero_points
    product = _replaced(node, f"{node.op_type}Integer", operands, [label], "")
    number = q.get_tensor_type(node.outputs[0], mandatory=True)
    cast = NodeDoc("Cast", [label], [f"{label}_cast_output"], f"{label}_cast")
    cast.set("to", number or 1)
    nodes = [*inputs.nodes, product, cast]
    scales = f"{name}_scales_mul" if name else f"{inputs.scales[0]}_{inputs.scales[1]}_mul"
    if not any(n.name == scales for n in q.new_nodes):
        nodes.append(NodeDoc("Mul", list(inputs.scales), [f"{scales}:0"], scales))
    label = f"{name}_output_scale_mul" if name else ""
    nodes.append(NodeDoc("Mul", [cast.outputs[0], f"{scales}:0"], [output], label))
    q.new_nodes.extend(nodes)


def _matmul_integer(q: ONNXQuantizer, node: NodeDoc) -> None:
    inputs = _both(q, node, -1)
    if inputs is None:
        return q.keep(node)
    return _integer_product(q, node, inputs, node.outputs[0])


def _conv_integer(q: ONNXQuantizer, node: NodeDoc) -> None:
    weight = q.graph.constant(node.inputs[1])
    bias, output = node.input(2), node.outputs[0]
    if bias and weight is None:
        return q.keep(node)
    activation = q.quantize_activation(node, [0])
    weights = q.quantize_weight(node, [1], reduce_range=q.reduce_range)
    inputs = None if activation is None else activation.joined(weights)
    if inputs is None:
        return q.keep(node)
    if not bias or weight is None:
        return _integer_product(q, node, inputs, output)
    _integer_product(q, node, inputs, f"{output}quant_scaled_output")
    shape = np.ones(len(weight.shape), np.int64)
    shape[1] = -1
    names = f"{output}_bias_reshape_shape", f"{output}_bias_reshape_output"
    q.add_constant(names[0], ArrayConst(shape))
    q.new_nodes.append(NodeDoc("Reshape", [bias, names[0]], [names[1]]))
    scaled = [f"{output}quant_scaled_output", names[1]]
    q.new_nodes.append(NodeDoc("Add", scaled, [output], f"{output}_bias_add"))
    return None


def _attention(q: ONNXQuantizer, node: NodeDoc) -> None:
    inputs = None if "qkv_hidden_sizes" in node.attrs else _both(q, node, -1)
    if inputs is None:
        return q.keep(node)
    names = [
        *inputs.names, node.inputs[2], *inputs.scales, node.input(3), *inputs.zero_points,
        node.input(4),
    ]  # fmt: skip
    q.new_nodes.extend([*inputs.nodes, _replaced(node, "QAttention", names, list(node.outputs))])
    return None


def _embedding(q: ONNXQuantizer, node: NodeDoc) -> None:
    inputs = None if len(node.outputs) > 2 else q.quantize_activation(node, range(2, 7))
    if inputs is None:
        return q.keep(node)
    names = [*node.inputs[:2], *inputs.names, node.input(7), *inputs.scales, *inputs.zero_points]
    made = _replaced(node, "QEmbedLayerNormalization", names, list(node.outputs))
    q.new_nodes.extend([*inputs.nodes, made])
    return None


def _gather(q: ONNXQuantizer, node: NodeDoc) -> None:
    inputs = q.quantize_activation(node, [0])
    if inputs is None:
        return q.keep(node)
    return _in_place(q, node, inputs)


def _in_place(q: ONNXQuantizer, node: NodeDoc, inputs: QuantizedInputs) -> None:
    """Run the op itself on the integers of its first input."""
    name, output = node.outputs[0], node.outputs[0] + SUFFIX
    node.inputs[0], node.outputs[0] = inputs.names[0], output
    q.new_nodes.extend([*inputs.nodes, node])
    q.record(QuantizedValue(name, output, inputs.scales[0], inputs.zero_points[0]))


def _moves(q: ONNXQuantizer, node: NodeDoc) -> None:
    """Ops that move or select elements: the output has the scale of the input."""
    if q.force_quantize_no_input_check:
        inputs = None
        if q.is_float_tensor(node.inputs[0]):
            inputs = q.quantize_activation(node, [0])
        return q.keep(node) if inputs is None else _in_place(q, node, inputs)
    value = q.find_quantized_value(node.inputs[0])
    if value is None:
        return q.keep(node)
    parts = [value.q_name], [value.zp_name], [value.scale_name]
    return _in_place(q, node, QuantizedInputs(*parts, []))


def _resize(q: ONNXQuantizer, node: NodeDoc) -> None:
    (_moves if q.opset_version >= 11 else _keep)(q, node)


def _max_pool(q: ONNXQuantizer, node: NodeDoc) -> None:
    is_supported = q.opset_version >= 12 and q.activation_qType not in FLOAT8
    (_moves if is_supported else _keep)(q, node)


def _arg_max(q: ONNXQuantizer, node: NodeDoc) -> None:
    value = q.find_quantized_value(node.inputs[0])
    if value is not None:
        node.inputs[0] = value.q_name
    q.keep(node)


def _split(q: ONNXQuantizer, node: NodeDoc) -> None:
    inputs = q.quantize_activation(node, [0])
    if inputs is None:
        return q.keep(node)
    outputs = [f"{name}quantized" for name in node.outputs]
    names = [*inputs.names, *node.inputs[1:]]
    q.new_nodes.extend([*inputs.nodes, _replaced(node, node.op_type, names, outputs, "")])
    for name, output in zip(node.outputs, outputs, strict=True):
        q.record(QuantizedValue(name, output, inputs.scales[0], inputs.zero_points[0]))
    return None


def _global_pool(q: ONNXQuantizer, node: NodeDoc) -> None:
    value = q.quantized_value_map.get(node.inputs[0])
    if value is None:
        return q.keep(node)
    source = value.scale_name, value.zp_name
    params = q.scale_names(node.outputs[0]) or source
    names = [value.q_name, *source, *params]
    made = _replaced(node, f"QLinear{node.op_type}", names, [node.outputs[0] + SUFFIX])
    made.set("channels_last", 0)
    return _finish(q, node, [], made, params)


def _pad(q: ONNXQuantizer, node: NodeDoc) -> None:
    value = q.quantized_value_map.get(node.inputs[0])
    if value is None or q.opset_version < 11:
        return q.keep(node)
    if node.attr("mode", b"constant") == b"constant":
        constant = node.input(2)
        params = [q.graph.constant(n) for n in (value.scale_name, value.zp_name)]
        if constant and None in params:
            return q.keep(node)
        padding = value.zp_name  # what 0 is quantized to
        if constant:
            padding = _quantized_padding(q, constant, value)
        node.inputs[2:3] = [padding]
    output = QuantizedInputs([value.q_name], [value.zp_name], [value.scale_name], [])
    return _in_place(q, node, output)


def _quantized_padding(q: ONNXQuantizer, name: str, value: QuantizedValue) -> str:
    """Return the name of a padding value as an integer."""
    const = q.graph.constant(name)
    if const is None:
        q.new_nodes.extend(q.quantize_with(name, value.scale_name, value.zp_name))
        return name + SUFFIX
    scale, zero = (q.graph.initializers[n] for n in (value.scale_name, value.zp_name))

    def padding() -> np.ndarray:
        params = scale.read().reshape(()), zero.read().reshape(())
        return quantized(q.activation_qType, const.read(), *params)

    new = f"{name}{SUFFIX}"
    while new in q.graph.initializers:
        new += SUFFIX
    q.add_constant(new, Deferred(dtype_of(q.activation_qType), const.shape, padding))
    return new


def _lstm(q: ONNXQuantizer, node: NodeDoc) -> None:
    """DynamicQuantizeLSTM: its weights are int8, and transposed."""
    if not all(q.is_valid_quantize_weight(name) for name in node.inputs[1:3]):
        return q.keep(node)
    consts = [q.graph.constant(name) for name in node.inputs[1:3]]
    if any(const is None or len(const.shape) != 3 for const in consts):
        return q.keep(node)
    values = [_lstm_weight(q, n, c) for n, c in zip(node.inputs[1:3], consts, strict=True) if c]
    optional = [node.input(i) for i in range(3, 8)]
    params = [name for value in values for name in (value.scale_name, value.zp_name)]
    names = [node.inputs[0], *(value.q_name for value in values), *optional, *params]
    made = _replaced(node, "DynamicQuantizeLSTM", names, list(node.outputs))
    made.attrs.pop("layout", None)
    for name in node.inputs[:1]:
        q.dequantize(name)
    q.new_nodes.append(made)
    return None


def _lstm_weight(q: ONNXQuantizer, name: str, const: Const) -> QuantizedValue:
    """Add a weight [directions, gates, inputs] as [directions, inputs, gates] in int8."""
    if name in q.quantized_value_map:
        return q.quantized_value_map[name]
    directions, gates, inputs = const.shape
    rows = (directions * gates, inputs) if q.is_per_channel() else const.shape
    flat = Deferred(const.dtype, rows, lambda: const.view().reshape(rows))
    value = q.add_weight(name, flat, INT8, True, 0)
    weight = q.weights[name]

    def transposed() -> np.ndarray:
        whole = weight.quantize().reshape(const.shape)
        return np.ascontiguousarray(whole.transpose(0, 2, 1))

    dtype = dtype_of(weight.scheme.number)
    initializers = q.graph.initializers
    initializers[value.q_name] = Deferred(dtype, (directions, inputs, gates), transposed)
    if q.is_per_channel():
        for part in (value.scale_name, value.zp_name):
            initializers[part] = _reshaped(initializers[part], (directions, gates))
    return value


def _reshaped(const: Const, shape: tuple[int, ...]) -> Const:
    return Deferred(const.dtype, shape, lambda: const.read().reshape(shape))


_COMMON: Final[dict[str, Rule]] = {
    "Gather": _gather,
    "Transpose": _moves,
    "EmbedLayerNormalization": _embedding,
}
_INTEGER: Final[dict[str, Rule]] = {
    "Conv": _conv_integer,
    "MatMul": _matmul_integer,
    "Attention": _attention,
    "LSTM": _lstm,
    **_COMMON,
}
_QLINEAR: Final[dict[str, Rule]] = {
    "ArgMax": _arg_max,
    "Conv": _conv,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Add": _binary,
    "Mul": _binary,
    "Relu": _clip,
    "Clip": _clip,
    "LeakyRelu": _activation,
    "Sigmoid": _sigmoid,
    "MaxPool": _max_pool,
    "GlobalAveragePool": _global_pool,
    "Split": _split,
    "Pad": _pad,
    "Reshape": _moves,
    "Squeeze": _moves,
    "Unsqueeze": _moves,
    "Flatten": _moves,
    "Resize": _resize,
    "AveragePool": _activation,
    "Concat": _concat,
    "Softmax": _softmax,
    "Where": _where,
    **_COMMON,
}
_PRODUCTS: Final = (_matmul, _matmul_integer, _gemm)
# Ops whose first input is not an activation in floats.
_BY_OPTIONS: Final = (_attention, _embedding, _where)


def rule_of(q: ONNXQuantizer, node: NodeDoc) -> Rule:
    """Return the rule for a node: `_keep` for one that is not quantized."""
    rule = rules(q.mode).get(node.op_type)
    if rule is None:
        return _keep
    if rule is _where:
        is_wanted = True
    elif rule in _PRODUCTS:
        is_wanted = _is_product_quantized(q, node)
    elif rule in _BY_OPTIONS:
        is_wanted = q.should_quantize_node(node)
    elif rule is _gather:
        is_wanted = q.should_quantize_node(node) and q.is_valid_quantize_weight(node.inputs[0])
    else:
        is_wanted = q.should_quantize_node(node) and q.is_float_tensor(node.inputs[0])
    return rule if is_wanted else _keep


def rules(mode: QuantizationMode) -> dict[str, Rule]:
    """Return the rules of a mode, by op."""
    return _INTEGER if mode == QuantizationMode.IntegerOps else _QLINEAR
