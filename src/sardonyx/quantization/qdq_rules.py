"""Which tensors of a node are quantized in QDQ format: one rule per family of ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from sardonyx.base.shared_store import Array
from sardonyx.quantization.base_quantizer import logger
from sardonyx.quantization.document import NodeDoc
from sardonyx.quantization.qdq_quantizer import QDQQuantizer
from sardonyx.quantization.quant_types import FLOAT8, FLOATS

Rule = Callable[[QDQQuantizer, NodeDoc], None]


def _makes_quantized(q: QDQQuantizer, node: NodeDoc) -> bool:
    """Return whether the options have outputs of this op quantized."""
    return node.op_type not in q.op_types_to_exclude_output_quantization


def _quantize_outputs(q: QDQQuantizer, node: NodeDoc) -> None:
    if _makes_quantized(q, node):
        for name in node.outputs:
            q.quantize_activation_tensor(name)


def _any(q: QDQQuantizer, node: NodeDoc) -> None:
    """All inputs and outputs."""
    for name in node.inputs:
        q.quantize_activation_tensor(name)
    _quantize_outputs(q, node)


def _quantize_weight(q: QDQQuantizer, node: NodeDoc, axis: int, op_type: str | None = None) -> None:
    """Mark the second input as a weight."""
    is_per_channel, axis_of_weight = q.is_tensor_per_channel(node.inputs[1], axis, op_type)
    if is_per_channel and axis_of_weight is not None:
        q.quantize_weight_tensor_per_channel(node.inputs[1], axis_of_weight)
    else:
        q.quantize_weight_tensor(node.inputs[1])


def _conv(q: QDQQuantizer, node: NodeDoc) -> None:
    q.quantize_activation_tensor(node.inputs[0])
    if _makes_quantized(q, node):
        q.quantize_activation_tensor(node.outputs[0])
    _quantize_weight(q, node, 0 if node.op_type == "Conv" else 1)
    if node.input(2):
        q.quantize_bias_tensor(node, node.inputs[2])


def _gemm(q: QDQQuantizer, node: NodeDoc) -> None:
    q.quantize_activation_tensor(node.inputs[0])
    if _makes_quantized(q, node):
        q.quantize_activation_tensor(node.outputs[0])
    _quantize_weight(q, node, 0 if node.attr("transB", 0) else 1)
    bias = node.input(2)
    if not bias:
        return
    if not q.is_input_a_initializer(bias):
        logger.warning(
            "the bias of the Gemm node '%s' is not constant, and stays in floats", node.name
        )
        return
    q.quantize_bias_tensor(node, bias, float(node.attr("beta", 1.0)))


def _matmul(q: QDQQuantizer, node: NodeDoc) -> None:
    names = [*node.inputs, *(node.outputs if _makes_quantized(q, node) else ())]
    for name in names:
        if not q.is_input_a_initializer(name):
            q.quantize_activation_tensor(name)
            continue
        is_per_channel, axis = q.is_tensor_per_channel(name, 1, node.op_type)
        if is_per_channel and axis is not None:
            q.quantize_weight_tensor_per_channel(name, axis)
        else:
            q.quantize_weight_tensor(name)


def _removable(q: QDQQuantizer, node: NodeDoc) -> None:
    """Relu and Clip: removed if the output's quantization range clips to the same bounds."""
    source, output = node.inputs[0], node.outputs[0]
    if not q.is_tensor_quantized(source):
        return
    may_remove = not q.is_activation_symmetric and not q.qdq_keep_removable_activations
    if (
        may_remove
        and q.follows_from_range(node)
        and q.try_replacing_upstream_output(source, output)
    ):
        q.remove_node(node)
    else:
        q.quantize_activation_tensor(source)
    if _makes_quantized(q, node):
        q.quantize_activation_tensor(output)


def _shares_input_scale(q: QDQQuantizer, node: NodeDoc) -> None:
    """Ops that move or select elements: the first output has the scale of the first input."""
    source = node.inputs[0]
    if q.force_quantize_no_input_check:
        q.quantize_activation_tensor(source)
    elif not q.is_tensor_quantized(source):
        return
    if _makes_quantized(q, node):
        q.quantize_output_same_as_input(node.outputs[0], source, node.name)


def _resize(q: QDQQuantizer, node: NodeDoc) -> None:
    if q.opset_version >= 11:
        _shares_input_scale(q, node)


def _max_pool(q: QDQQuantizer, node: NodeDoc) -> None:
    if q.opset_version >= 12 and q.activation_qType not in FLOAT8:
        _shares_input_scale(q, node)


def _split(q: QDQQuantizer, node: NodeDoc) -> None:
    if not q.is_tensor_quantized(node.inputs[0]):
        q.quantize_activation_tensor(node.inputs[0])
    if _makes_quantized(q, node):
        for name in node.outputs:
            q.quantize_output_same_as_input(name, node.inputs[0], node.name)


def _gather(q: QDQQuantizer, node: NodeDoc) -> None:
    source = node.inputs[0]
    if q.is_valid_quantize_weight(source) or q.force_quantize_no_input_check:
        q.quantize_activation_tensor(source)
    elif not q.is_tensor_quantized(source):
        return
    q.quantize_output_same_as_input(node.outputs[0], source, node.name)


def _where(q: QDQQuantizer, node: NodeDoc) -> None:
    values = node.inputs[1:3]
    if q.force_quantize_no_input_check:
        for name in values:
            if not q.is_tensor_quantized(name):
                q.quantize_activation_tensor(name)
    elif not all(q.is_tensor_quantized(name) for name in values):
        return
    _quantize_outputs(q, node)


def _normalization(q: QDQQuantizer, node: NodeDoc) -> None:
    q.quantize_activation_tensor(node.inputs[0])
    if q.is_input_a_initializer(node.inputs[1]):
        _quantize_weight(q, node, 1, node.op_type)
    else:
        q.quantize_activation_tensor(node.inputs[1])
    if node.input(2):
        q.quantize_bias_tensor(node, node.inputs[2])
    _quantize_outputs(q, node)


def _pad(q: QDQQuantizer, node: NodeDoc) -> None:
    for name in filter(None, node.inputs):
        q.quantize_activation_tensor(name)
    if not _makes_quantized(q, node):
        return
    if _keeps_range(q, node):
        q.quantize_output_same_as_input(node.outputs[0], node.inputs[0], node.name)
    else:
        q.quantize_activation_tensor(node.outputs[0])


def _keeps_range(q: QDQQuantizer, node: NodeDoc) -> bool:
    """Return whether a Pad adds only values that the input's range includes."""
    mode = node.attr("mode", b"constant")
    if mode in (b"reflect", b"edge", b"wrap"):
        return True
    value = _padding(q, node) if mode == b"constant" else None
    if value is None or value.size != 1 or q.dtype_number(node.inputs[0]) not in FLOATS:
        return False
    return value.dtype in (np.float32, np.float16) and float(value.reshape(())) == 0


def _padding(q: QDQQuantizer, node: NodeDoc) -> Array | None:
    """Return the value that a Pad adds; None if it is not constant."""
    if q.opset_version < 11:
        return np.array(node.attr("value", 0.0), np.float32)
    name = node.input(2)
    if not name:
        return np.zeros((), np.float32)
    constant = q.graph.constant(name)
    if constant is not None:
        return constant.read()
    producer = next((n for n in q.graph.nodes if name in n.outputs), None)
    if producer is None or producer.op_type != "Constant" or "value" not in producer.attrs:
        return None
    decode = q.document.decode_tensor
    return None if decode is None else decode(producer.attr("value")).read()


_RULES: Final[dict[str, Rule]] = {
    "Conv": _conv,
    "ConvTranspose": _conv,
    "Gemm": _gemm,
    "Clip": _removable,
    "Relu": _removable,
    "Reshape": _shares_input_scale,
    "Transpose": _shares_input_scale,
    "Squeeze": _shares_input_scale,
    "Unsqueeze": _shares_input_scale,
    "Flatten": _shares_input_scale,
    "Resize": _resize,
    "MaxPool": _max_pool,
    "AveragePool": _shares_input_scale,
    "Slice": _shares_input_scale,
    "Pad": _pad,
    "MatMul": _matmul,
    "Split": _split,
    "Gather": _gather,
    "GatherElements": _gather,
    "Where": _where,
    "InstanceNormalization": _normalization,
    "LayerNormalization": _normalization,
    "BatchNormalization": _normalization,
    "TopK": _shares_input_scale,
    "CumSum": _any,
}


def rule_of(op_type: str) -> Rule:
    """Return the rule of an op; ops without one have all their tensors quantized."""
    return _RULES.get(op_type, _any)


def op_types() -> list[str]:
    """Return the ops with a rule."""
    return list(_RULES)
