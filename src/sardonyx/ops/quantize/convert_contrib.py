"""QuantizeLinear and DequantizeLinear of com.microsoft: like the ONNX ops, without blocks.

Without an axis the scale is per tensor; with one, per element of the axis.
"""

from __future__ import annotations

from typing import Any, Final

from sardonyx.errors import ShapeError
from sardonyx.graph.dtype import F16, F32, I8, I16, I32, U8, U16, by_name
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Infer, Op, Reference, contrib_op, optional
from sardonyx.ops.arrays import Array
from sardonyx.ops.builder import Builder
from sardonyx.ops.decomposition import Outputs
from sardonyx.ops.inference import axis_of
from sardonyx.ops.quantize import convert

_REAL: Final = frozenset((F32, F16))
_QUANTIZED: Final = frozenset((I8, U8, I16, U16, by_name("i4"), by_name("u4")))
_AXIS: Final = 1  # the default for several scales, as in onnxruntime

quantize: Final = contrib_op(
    "QuantizeLinear",
    "x:T1 y_scale:T1 y_zero_point:T2?",
    "y:T2",
    attrs={"axis": optional("int")},
    types={"T1": _REAL, "T2": _QUANTIZED},
    unranked=True,
)
dequantize: Final = contrib_op(
    "DequantizeLinear",
    "x:T1 x_scale:T2 x_zero_point:T1?",
    "y:T2",
    attrs={"axis": optional("int")},
    types={"T1": _QUANTIZED | {I32}, "T2": _REAL},
    unranked=True,
)


def standard_attrs(op: Op, axis: int | None) -> dict[str, Any]:
    """Return the attributes of the ONNX op of the same name."""
    standard_op = convert.quantize if op.name == "QuantizeLinear" else convert.dequantize
    return {**standard_op.defaults, "axis": _AXIS if axis is None else axis}


def _delegate(op: Op, standard_infer: Infer, standard_reference: Reference) -> None:
    """Define an op's rules by those of the ONNX op."""

    def infer(g: Scope, x: Fact, scale: Fact, zero: Fact | None, *, axis: int | None) -> Any:
        # The axis of a scale per tensor has no meaning, and onnxruntime does not check it.
        is_single = scale.shape is not None and convert.is_single(scale)
        if axis is not None and x.shape is not None and x.rank and not is_single:
            axis_of(axis, x.rank)
        if x.shape is not None and scale.shape is not None and scale.rank > 1:
            raise ShapeError(f"the scale must be one number or a vector, got {scale}")
        return standard_infer(g, x, scale, zero, **standard_attrs(op, axis))

    def reference(x: Array, scale: Array, zero: Array | None = None, *, axis: int | None) -> Any:
        return standard_reference(x, scale, zero, **standard_attrs(op, axis))

    op.infer(infer)
    op.reference(reference)


_delegate(quantize, convert.infer_quantize, convert.run_quantize)
_delegate(dequantize, convert.infer_dequantize, convert.run_dequantize)


@quantize.decompose
@dequantize.decompose
def _(b: Builder, node: Node) -> Outputs:
    """QuantizeLinear and DequantizeLinear of com.microsoft."""
    attrs = standard_attrs(node.op, node.attrs["axis"])
    return (b.node(node.op.name, *node.inputs, **attrs).outputs[0],)


OPS: Final = (quantize, dequantize)
