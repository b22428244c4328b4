"""QuantizeLinear and DequantizeLinear of com.microsoft: the standard ones before they had blocks.

Without an axis there is one scale; with one, a scale for each place along it.
"""

from __future__ import annotations

from typing import Any, Final

from sardonyx.errors import ShapeError
from sardonyx.graph.dtype import F16, F32, I8, I16, I32, U8, U16, by_name
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import MICROSOFT, Op, optional
from sardonyx.ops.arrays import Array
from sardonyx.ops.inference import axis_of
from sardonyx.ops.quantize import convert

_REAL: Final = frozenset((F32, F16))
_STEPS: Final = frozenset((I8, U8, I16, U16, by_name("i4"), by_name("u4")))
_AXIS: Final = 1  # where none is given and scales are several, as onnxruntime reads them

quantize: Final = Op(
    "QuantizeLinear",
    1,
    "x:T1 y_scale:T1 y_zero_point:T2?",
    "y:T2",
    domain=MICROSOFT,
    attrs={"axis": optional("int")},
    types={"T1": _REAL, "T2": _STEPS},
    unranked=True,
)
dequantize: Final = Op(
    "DequantizeLinear",
    1,
    "x:T1 x_scale:T2 x_zero_point:T1?",
    "y:T2",
    domain=MICROSOFT,
    attrs={"axis": optional("int")},
    types={"T1": _STEPS | {I32}, "T2": _REAL},
    unranked=True,
)


def standard(op: Op, axis: int | None) -> dict[str, Any]:
    """The attributes of the standard op of the same name."""
    known = convert.quantize if op.name == "QuantizeLinear" else convert.dequantize
    return {**known.defaults, "axis": _AXIS if axis is None else axis}


def _standard(op: Op, known: Op) -> None:
    """The rules of an op by those of the standard one."""

    def infer(g: Scope, x: Fact, scale: Fact, zero: Fact | None, *, axis: int | None) -> Fact:
        if axis is not None and x.shape is not None and x.rank:
            axis_of(axis, x.rank)
        if x.shape is not None and scale.shape is not None and scale.rank > 1:
            raise ShapeError(f"the scale is one number or a vector, not {scale}")
        rule = known.infer_rule
        assert rule is not None
        made: Fact = rule(g, x, scale, zero, **standard(op, axis))
        return made

    def reference(x: Array, scale: Array, zero: Array | None = None, *, axis: int | None) -> Array:
        rule = known.reference_rule
        assert rule is not None
        made: Array = rule(x, scale, zero, **standard(op, axis))
        return made

    op.infer(infer)
    op.reference(reference)


_standard(quantize, convert.quantize)
_standard(dequantize, convert.dequantize)

OPS: Final = (quantize, dequantize)
