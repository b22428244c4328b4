"""Nodes that compute scale and zero point of an activation while the model runs.

They serve int8, and opsets before DynamicQuantizeLinear.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sardonyx.graph.dtype import DType
from sardonyx.quantization.base_quantizer import scalar
from sardonyx.quantization.document import NodeDoc, attribute
from sardonyx.quantization.quant_types import INT8, UINT8, dtype_of, limits

if TYPE_CHECKING:
    from sardonyx.quantization.onnx_quantizer import ONNXQuantizer

_RANGE_UINT8, _RANGE_INT8 = "fixed_quantization_range_uint8", "fixed_quantization_range_int8"
_ZERO, _ZERO_POINT = "fixed_zero", "fixed_zero_zp"


def scale_nodes(
    q: ONNXQuantizer, name: str, number: int, dtype: DType
) -> tuple[list[NodeDoc], tuple[str, str]]:
    """Return nodes, and the names of the scale and zero point that they make."""
    if number not in (INT8, UINT8):
        raise ValueError(f"activations are quantized to int8 or uint8 at run time, not {number}")
    extremes = [_reduced(name, op) for op in ("ReduceMin", "ReduceMax")]
    low, high = (node.outputs[0] for node in extremes)
    qmin, qmax = limits(number)
    scale, zero_point = f"{name}_scale", f"{name}_zero_point"
    if number == INT8:
        q.add_constant(_RANGE_INT8, scalar((qmax - qmin) / 2.0, dtype.np))
        q.add_constant(_ZERO_POINT, scalar(0, dtype_of(number).np))
        nodes = [_node("Abs", [side], f"{side.removesuffix(':0')}_Abs") for side in (low, high)]
        sizes = [node.outputs[0] for node in nodes]
        nodes.append(_node("Max", sizes, f"{name}_Abs_Max"))
        largest = nodes[-1].outputs[0]
        nodes.append(NodeDoc("Div", [largest, _RANGE_INT8], [scale], f"{name}scale_Div"))
        return [*extremes, *nodes], (scale, _ZERO_POINT)
    q.add_constant(_RANGE_UINT8, scalar(qmax - qmin, dtype.np))
    q.add_constant(_ZERO, scalar(0, dtype.np))
    span = _node("Sub", [high, low], f"{name}_scale_Sub")
    below = _node("Sub", [_ZERO, low], f"{name}_zero_point_Sub")
    share = _node("Div", [below.outputs[0], scale], f"{name}_zero_point_Div")
    floor = _node("Floor", share.outputs, f"{name}_zero_point_Floor")
    to = {"to": attribute("to", number)}
    return [
        *extremes,
        span,
        NodeDoc("Div", [span.outputs[0], _RANGE_UINT8], [scale], f"{name}_scale_Div"),
        below,
        share,
        floor,
        NodeDoc("Cast", floor.outputs, [zero_point], f"{name}_zero_point_Cast", attrs=to),
    ], (scale, zero_point)


def _reduced(name: str, op: str) -> NodeDoc:
    node = _node(op, [name], f"{name}_{op}")
    node.set("keepdims", 0)
    return node


def _node(op: str, inputs: list[str], name: str) -> NodeDoc:
    return NodeDoc(op, list(inputs), [f"{name}:0"], name)
