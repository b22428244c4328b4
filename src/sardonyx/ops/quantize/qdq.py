"""Nodes that dequantize and quantize, for the decompositions of quantized ops."""

from __future__ import annotations

from collections.abc import Callable

from sardonyx.graph.dtype import DType
from sardonyx.graph.graph import Value
from sardonyx.ops.builder import Builder


def scalar(b: Builder, value: Value | None) -> Value | None:
    """A scale or zero point with one element, as a scalar if its shape is unknown."""
    # Models may declare [1] or no shape at all; the standard op needs a scalar or [1].
    if value is None or all(d == 1 for d in value.tensor.dims):
        return value
    return b.Reshape(value, b.ints())


def dequantize_node(b: Builder, x: Value, scale: Value | None, zero: Value | None) -> Value:
    """DequantizeLinear with one scale."""
    return b.DequantizeLinear(x, scalar(b, scale), scalar(b, zero))


def quantize_node(
    b: Builder, y: Value, scale: Value | None, zero: Value | None, dtype: DType
) -> Value:
    """QuantizeLinear with one scale, to the type of the zero point or else `dtype`."""
    # QuantizeLinear takes its type from the zero point, if there is one.
    output_dtype = dtype.onnx if zero is None else 0
    return b.QuantizeLinear(y, scalar(b, scale), scalar(b, zero), output_dtype=output_dtype)


def _permuted_channels(b: Builder, x: Value, *, is_last: object) -> Value:
    """NCHW images as NHWC (`is_last`), or NHWC images as NCHW."""
    rank = x.tensor.rank
    perm = (0, *range(2, rank), 1) if is_last else (0, rank - 1, *range(1, rank - 1))
    return b.Transpose(x, perm=perm)


def in_nchw(b: Builder, x: Value, apply: Callable[[Value], Value], is_last: object) -> Value:
    """Apply an op to images in NCHW, whatever layout they have."""
    if not is_last:
        return apply(x)
    # Layout propagation removes the Transposes again where kernels are NHWC.
    return _permuted_channels(b, apply(_permuted_channels(b, x, is_last=False)), is_last=True)
