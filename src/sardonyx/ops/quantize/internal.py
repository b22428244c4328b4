"""Internal ops for DequantizeLinear -> op -> QuantizeLinear: they compute on the 8-bit codes.

A code q represents (q - zero point) * scale. Results are rounded once, at the end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from sardonyx.errors import ShapeError
from sardonyx.graph.dtype import F32, I32, U8, DType, by_onnx
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import internal_op
from sardonyx.ops.arrays import Array
from sardonyx.ops.conv.standard import CONV, conv_shape
from sardonyx.ops.inference import broadcast_shapes, channels_first, channels_last
from sardonyx.ops.matmul.standard import matmul, matmul_shape
from sardonyx.ops.quantize.convert import integer_range, to_quantized
from sardonyx.ops.quantize.matmul_conv import (
    BYTES,
    FLOAT,
    as_int32,
    centred,
    exact_conv,
    exact_type,
    per_column,
)

_TYPES: Final = {"T1": BYTES, "T2": BYTES, "F": FLOAT, "T4": frozenset((F32, I32))}
_OPERANDS: Final = (
    "x:T1 w:T2 x_scale:F? x_zero:T1? w_scale:F? w_zero:T2? bias:T4? y_scale:F? y_zero:T3?"
)
# The result's type (int32 accumulators, float32, or 8-bit codes), and bounds of its real value:
# a fused Relu or Clip.
_RESULT: Final[dict[str, Any]] = {"dtype": F32.onnx, "low": -math.inf, "high": math.inf}


def _requantized(total: Array, params: SimpleNamespace, attrs: Mapping[str, Any]) -> Array:
    """Scale, shift, clamp and round exact accumulators [..., columns] to the result's type."""
    dtype, bias, y_scale = _dtype(attrs), params.bias, params.y_scale
    if bias is not None and bias.dtype == np.int32:
        total = total.astype(np.float64) + bias
    if dtype is I32:
        return as_int32(total)
    with np.errstate(all="ignore"):
        step = np.float32(1) if y_scale is None else y_scale.reshape(())
        scale = _scale(params.x_scale) * _scale(params.w_scale) / step
        y = total.astype(np.float32) * scale
        if bias is not None and bias.dtype == np.float32:
            # A float bias is in real units; the quotient is in units of the output scale.
            y = y + bias / step
        if dtype is F32:
            return np.asarray(np.clip(y, np.float32(attrs["low"]), np.float32(attrs["high"])))
        return _quantize_clamped(y, step, params.y_zero, (dtype, attrs["low"], attrs["high"]))


def _quantize_clamped(
    y: Array, step: Any, zero: Array | None, bounds: tuple[DType, float, float]
) -> Array:
    """Quantize y (real value / step), saturated to the type and to the quantized bounds."""
    dtype, low, high = bounds
    clamped = to_quantized(y, [] if zero is None else [zero.reshape(())], dtype)
    first, last = integer_range(dtype)
    shift = 0.0 if zero is None else float(zero.reshape(()))
    # The bounds of a fused Relu or Clip as codes.
    least, most = (np.rint(np.clip(b / float(step) + shift, first, last)) for b in (low, high))
    return np.clip(clamped, dtype.np.type(least), dtype.np.type(most))


def _scale(value: Array | None) -> Any:
    """Return a scale, per tensor or per column (last axis); 1 where it is absent."""
    return np.float32(1) if value is None else per_column(value)


def _dtype(attrs: Mapping[str, Any]) -> DType:
    dtype = by_onnx(attrs["dtype"])
    assert dtype is not None
    return dtype


qmatmul = internal_op(
    "QMatMul", _OPERANDS, "y:T", attrs={**_RESULT, "trans_w": 0}, types=_TYPES
)  # fmt: skip


@qmatmul.infer
def _(g: Scope, x: Fact, w: Fact, *rest: Fact | None, **attrs: Any) -> Fact:
    right = w.shaped((*w.dims[:-2], w.dims[-1], w.dims[-2])) if attrs["trans_w"] else w
    return Fact(_dtype(attrs), matmul_shape(g, x, right))


@qmatmul.reference
def _(x: Array, w: Array, *rest: Array | None, **attrs: Any) -> Array:
    params = qmatmul.named((x, w, *rest))
    right = np.swapaxes(w, -1, -2) if attrs["trans_w"] else w
    dtype = exact_type(x.shape[-1])
    left = centred(x, per_column(params.x_zero), dtype)
    total = matmul(left, centred(right, per_column(params.w_zero), dtype))
    return _requantized(total, params, attrs)


qconv = internal_op(
    "QConv", _OPERANDS, "y:T", attrs={**CONV, **_RESULT, "channels_last": 0}, types=_TYPES
)


@qconv.infer
def _(g: Scope, x: Fact, w: Fact, *rest: Fact | None, **attrs: Any) -> Fact:
    is_last = attrs["channels_last"]
    shape = conv_shape(g, channels_first(x) if is_last else x, w, None, attrs)
    y = Fact(_dtype(attrs), shape)
    return channels_last(y) if is_last else y


@qconv.reference
def _(x: Array, w: Array, *rest: Array | None, **attrs: Any) -> Array:
    params, is_last = qconv.named((x, w, *rest)), attrs["channels_last"]
    image = np.moveaxis(x, -1, 1) if is_last else x
    total = exact_conv(image, w, params.x_zero, params.w_zero, attrs)
    y = _requantized(np.moveaxis(total, 1, -1), params, attrs)
    return y if is_last else np.moveaxis(y, -1, 1)


qadd = internal_op(
    "QAdd",
    "a:T1 a_scale:F a_zero:T1? b:T2 b_scale:F b_zero:T2? y_scale:F y_zero:T3?",
    "y:T",
    attrs={"dtype": U8.onnx, "low": -math.inf, "high": math.inf},
    types=_TYPES,
)


@qadd.infer
def _(
    g: Scope, a: Fact, a_scale: Fact, a_zero: Fact | None, b: Fact, *rest: Fact | None, **attrs: Any
) -> Fact:
    return Fact(_dtype(attrs), broadcast_shapes(g, a.dims, b.dims))


def _dequantized(x: Array, scale: Array, zero: Array | None) -> Array:
    return centred(x, per_column(zero), np.float32) * scale.reshape(())


@qadd.reference
def _(*arrays: Any, **attrs: Any) -> Array:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = arrays
    with np.errstate(all="ignore"):
        step = y_scale.reshape(())
        y = (_dequantized(a, a_scale, a_zero) + _dequantized(b, b_scale, b_zero)) / step
        return _quantize_clamped(y, step, y_zero, (_dtype(attrs), attrs["low"], attrs["high"]))


qmean = internal_op(
    "QMean",
    "x:T1 x_scale:F x_zero:T1? y_scale:F y_zero:T3?",
    "y:T",
    attrs={"dtype": U8.onnx, "channels_last": 0},
    types=_TYPES,
)


def _spatial(rank: int, is_last: object) -> tuple[int, ...]:
    return tuple(range(1, rank - 1) if is_last else range(2, rank))


@qmean.infer
def _(g: Scope, x: Fact, *rest: Fact | None, **attrs: Any) -> Fact:
    reduced = _spatial(x.rank, attrs["channels_last"])
    return Fact(_dtype(attrs), tuple(1 if i in reduced else d for i, d in enumerate(x.dims)))


@qmean.reference
def _(x: Array, x_scale: Array, x_zero: Any, y_scale: Array, y_zero: Any, **attrs: Any) -> Array:
    with np.errstate(all="ignore"):
        real = _dequantized(x, x_scale, x_zero)
        y = real.mean(
            axis=_spatial(x.ndim, attrs["channels_last"]), keepdims=True, dtype=np.float64
        )
        step = y_scale.reshape(())
        quotient = (y / step).astype(np.float32)
        return _quantize_clamped(quotient, step, y_zero, (_dtype(attrs), -math.inf, math.inf))


qlookup = internal_op("QLookup", "x:T1 table:T2", "y:T2", types={"T1": BYTES, "T2": BYTES})


@qlookup.infer
def _(g: Scope, x: Fact, table: Fact) -> Fact:
    if table.rank != 1:
        raise ShapeError(f"a lookup table must have 256 entries, got {table}")
    g.equal(table.dims[0], 256, f"a lookup table must have 256 entries, got {table}")
    return Fact(table.dtype, x.shape)


@qlookup.reference
def _(x: Array, table: Array) -> Array:
    """Return the table entry of each byte; int8 is reinterpreted as uint8."""
    return np.asarray(table[x.astype(np.uint8) if x.dtype == np.int8 else x])


OPS: Final = (qmatmul, qconv, qadd, qmean, qlookup)
