"""Activations with parameters, and the backward ops that torch does not decompose well."""

from __future__ import annotations

import math
from typing import Any

from sardonyx.dynamo.aten_builder import AtenBuilder
from sardonyx.dynamo.table import in_float32, lowers
from sardonyx.graph.graph import Value


@lowers("silu.default")
@in_float32
def _(b: AtenBuilder, x: Value) -> Value:
    return b.Mul(x, b.Sigmoid(x))


@lowers("silu_backward.default")
@in_float32
def _(b: AtenBuilder, dy: Value, x: Value) -> Value:
    s = b.Sigmoid(x)
    return b.Mul(dy, b.Mul(s, b.Add(b.Mul(x, b.Sub(b.const(1.0, s.tensor.dtype), s)), 1.0)))


@lowers("gelu.default")
def _(b: AtenBuilder, x: Value, approximate: str = "none") -> Value:
    return b.Gelu(x, approximate=approximate.encode())


@lowers("gelu_backward.default")
@in_float32
def _(b: AtenBuilder, dy: Value, x: Value, approximate: str = "none") -> Value:
    if approximate == "tanh":
        # d/dx of x/2 (1 + tanh(k (x + c x^3))) with k = sqrt(2/pi), c = 0.044715.
        k, c = math.sqrt(2 / math.pi), 0.044715
        square = b.Mul(x, x)
        t = b.Tanh(b.Mul(b.Mul(x, b.Add(b.Mul(square, c), 1.0)), k))
        slope = b.Mul(
            b.Add(b.Mul(square, 3 * c * k), k), b.Sub(b.const(1.0, x.tensor.dtype), b.Mul(t, t))
        )
        return b.Mul(dy, b.Mul(b.Add(b.Add(t, 1.0), b.Mul(x, slope)), 0.5))
    cdf = b.Mul(b.Add(b.Erf(b.Mul(x, math.sqrt(0.5))), 1.0), 0.5)
    pdf = b.Mul(b.Exp(b.Mul(b.Mul(x, x), -0.5)), 1 / math.sqrt(2 * math.pi))
    return b.Mul(dy, b.Add(cdf, b.Mul(x, pdf)))


@lowers("elu.default")
@in_float32
def _(
    b: AtenBuilder, x: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1
) -> Value:
    # scale * x above 0, and alpha * scale * expm1(input_scale * x) below; Elu of 1 is expm1 there.
    below = b.Elu(x if input_scale == 1 else b.Mul(x, input_scale))
    if alpha == scale == input_scale == 1:
        return below
    above = x if scale == 1 else b.Mul(x, scale)
    return b.Where(b.Greater(x, 0.0), above, b.Mul(below, alpha * scale))


@lowers("hardtanh.default")
def _(b: AtenBuilder, x: Value, low: Any = -1, high: Any = 1) -> Value:
    low, high = b.like_out(low, high)
    return b.Clip(x, low, high)


@lowers("leaky_relu.default")
def _(b: AtenBuilder, x: Value, negative_slope: float = 0.01) -> Value:
    return b.LeakyRelu(x, alpha=float(negative_slope))


@lowers("leaky_relu_backward.default")
@in_float32
def _(b: AtenBuilder, dy: Value, x: Value, negative_slope: float, is_result: bool) -> Value:
    # The sign of the result is that of the input, where the slope is positive.
    return b.Where(b.Greater(x, 0.0), dy, b.Mul(dy, negative_slope))


@lowers("threshold_backward.default")
def _(b: AtenBuilder, dy: Value, x: Value, threshold: float) -> Value:
    zero = b.const(0.0, dy.tensor.dtype)
    return b.Where(b.LessOrEqual(*b.promoted(x, threshold)), zero, dy)


@lowers("tanh_backward.default")
@in_float32
def _(b: AtenBuilder, dy: Value, y: Value) -> Value:
    return b.Mul(dy, b.Sub(b.const(1.0, y.tensor.dtype), b.Mul(y, y)))


@lowers("sigmoid_backward.default")
@in_float32
def _(b: AtenBuilder, dy: Value, y: Value) -> Value:
    return b.Mul(dy, b.Mul(y, b.Sub(b.const(1.0, y.tensor.dtype), y)))
