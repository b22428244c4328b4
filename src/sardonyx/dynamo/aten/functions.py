"""Mathematical functions without an ONNX op, as formulas that keep their precision."""

from __future__ import annotations

import math
from typing import Any, Final

import torch

from sardonyx.dynamo.aten_builder import AtenBuilder, Unsupported
from sardonyx.dynamo.table import lowers
from sardonyx.graph import dtype as types
from sardonyx.graph.graph import Value


@lowers("rsqrt.default")
def _(b: AtenBuilder, x: Value) -> Value:
    return b.rounded(b.Reciprocal(b.Sqrt(*b.in_compute_type(x))))


@lowers("exp2.default")
def _(b: AtenBuilder, x: Value) -> Value:
    (x,) = b.in_compute_type(x)
    return b.rounded(b.Pow(b.const(2.0, x.tensor.dtype), x))


def _register_logarithm(name: str, base: float) -> None:
    @lowers(f"{name}.default")
    def _(b: AtenBuilder, x: Value) -> Value:
        # In float64, so that the logarithms of powers of the base are whole numbers.
        return b.rounded(b.Mul(b.Log(b.cast(x, types.F64)), 1 / math.log(base)))


_register_logarithm("log2", 2)
_register_logarithm("log10", 10)


@lowers("log1p.default")
def _(b: AtenBuilder, x: Value) -> Value:
    # Kahan: log(u) x / (u - 1) with u = 1 + x; the errors of both factors cancel.
    (x,) = b.in_compute_type(x)
    u = b.Add(x, 1.0)
    log = b.Mul(b.Log(u), b.Div(x, b.Sub(u, 1.0)))
    is_exact = b.Or(b.Equal(u, 1.0), b.Equal(x, math.inf))
    return b.rounded(b.Where(is_exact, x, log))


@lowers("expm1.default")
def _(b: AtenBuilder, x: Value) -> Value:
    # Elu is expm1 below 0; above, expm1(x) = -expm1(-x) exp(x).
    (x,) = b.in_compute_type(x)
    above = b.Mul(b.Neg(b.Elu(b.Neg(x))), b.Exp(x))
    return b.rounded(b.Where(b.Less(x, 0.0), b.Elu(x), above))


# Chebyshev fit of log(erfc(z) exp(z^2) / t) in t = 1 / (1 + z / 2), with a relative error below
# 1.2e-7 for all z >= 0 (Numerical Recipes, erfcc); highest power first.
_ERFC: Final = (
    0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418,
    0.37409196, 1.00002368, -1.26551223,
)  # fmt: skip


@lowers("erfc.default")
def _(b: AtenBuilder, x: Value) -> Value:
    if b.out_type is torch.float64:
        raise Unsupported("its approximation has the precision of float32")
    x = b.cast(x, types.F64)
    z = b.Abs(x)
    t = b.Reciprocal(b.Add(b.Mul(z, 0.5), 1.0))
    p = b.const(_ERFC[0], types.F64)
    for coefficient in _ERFC[1:]:
        p = b.Add(b.Mul(t, p), coefficient)
    tail = b.Mul(t, b.Exp(b.Sub(p, b.Mul(z, z))))
    # 1 - erf does not cancel below 0.5, where the fit is less exact than float32.
    y = b.Where(b.Less(x, 0.5), b.Sub(b.const(1.0, types.F64), b.Erf(x)), tail)
    return b.rounded(y)


@lowers("round.decimals")
def _(b: AtenBuilder, x: Value, *, decimals: int) -> Value:
    if not x.tensor.dtype.is_float:
        return x
    if decimals == 0:
        return b.Round(x)
    (x,) = b.in_compute_type(x)
    scale = float(10 ** abs(decimals))
    forward, back = (b.Mul, b.Div) if decimals > 0 else (b.Div, b.Mul)
    return b.rounded(back(b.Round(forward(x, scale)), scale))


def _sign_bit(b: AtenBuilder, x: Value) -> Value:
    """Whether the sign bit is set: of negative numbers, -0.0 and some NaNs."""
    if x.tensor.dtype in (types.U8, types.BOOL):
        return b.Not(b.Equal(x, x))
    if x.tensor.dtype.is_float:
        integer = {16: types.I16, 32: types.I32, 64: types.I64}[x.tensor.dtype.bits]
        x = b.BitCast(x, to=integer.onnx)
    return b.Less(x, 0)


def _is_negative(b: AtenBuilder, x: Value) -> Value:
    """Whether a float is negative, -0.0 included; false of NaN."""
    is_minus_zero = b.And(b.Equal(x, 0.0), b.Less(b.Reciprocal(x), 0.0))
    return b.Or(b.Less(x, 0.0), is_minus_zero)


@lowers("signbit.default")
def _(b: AtenBuilder, x: Value) -> Value:
    return _sign_bit(b, x)


@lowers("copysign.Tensor", "copysign.Scalar")
def _(b: AtenBuilder, x: Any, y: Any) -> Value:
    x, y = b.like_out(x, y)
    size = b.Abs(x)
    return b.Where(_sign_bit(b, y), b.Neg(size), size)


@lowers("ldexp.Tensor")
def _(b: AtenBuilder, x: Value, exponent: Value) -> Value:
    x, exponent = b.in_compute_type(x, exponent)
    return b.rounded(b.Mul(x, b.Pow(b.const(2.0, x.tensor.dtype), exponent)))


@lowers("atan2.default")
def _(b: AtenBuilder, y: Any, x: Any) -> Value:
    y, x = b.in_compute_type(y, x)
    rise, run = b.Abs(y), b.Abs(x)
    # atan of the smaller over the larger; 0 / 0 is the angle 0, and inf / inf that of 1.
    low, high = b.Min(rise, run), b.Max(rise, run)
    ratio = b.Where(b.Equal(high, 0.0), high, b.Div(low, high))
    ratio = b.Where(b.Equal(low, math.inf), b.const(1.0, x.tensor.dtype), ratio)
    angle = b.Atan(ratio)
    angle = b.Where(b.Greater(rise, run), b.Sub(b.const(math.pi / 2, x.tensor.dtype), angle), angle)
    angle = b.Where(_is_negative(b, x), b.Sub(b.const(math.pi, x.tensor.dtype), angle), angle)
    return b.rounded(b.Where(_is_negative(b, y), b.Neg(angle), angle))


@lowers("hypot.default")
def _(b: AtenBuilder, x: Any, y: Any) -> Value:
    if b.out_type is torch.float64:
        raise Unsupported("squares of float64 overflow")
    x, y = (b.cast(v, types.F64) for v in (x, y))
    length = b.Sqrt(b.Add(b.Mul(x, x), b.Mul(y, y)))
    # An infinite leg and NaN: still infinite.
    is_infinite = b.Or(b.IsInf(x), b.IsInf(y))
    return b.rounded(b.Where(is_infinite, b.const(math.inf, types.F64), length))


@lowers("angle.default")
def _(b: AtenBuilder, x: Value) -> Value:
    (x,) = b.like_out(x)
    angle = b.Where(b.Less(x, 0.0), b.const(math.pi, x.tensor.dtype), b.const(0.0, x.tensor.dtype))
    return b.Where(b.IsNaN(x), x, angle)
