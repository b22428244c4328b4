"""Elementwise functions for generated kernels, with ONNX semantics (NaN, infinities, rounding)."""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc,no-any-return,assignment"

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl
from triton.language.extra import libdevice

from sardonyx.providers.torch.kernels import is_interpreted

_INTERPRETED: Final = tl.constexpr(is_interpreted())  # the interpreter has no libdevice


@triton.jit
def full(x, value):
    """Return a tensor like x, filled with a number."""
    return tl.full(x.shape, value, x.dtype)


@triton.jit
def maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def exp(x):
    if _INTERPRETED:
        return tl.exp(x)
    return libdevice.exp(x)


@triton.jit
def log(x):
    if _INTERPRETED:
        return tl.log(x)
    return libdevice.log(x)


@triton.jit
def divide(a, b):
    """Return a / b, correctly rounded in float32; Triton's own division is approximate."""
    if a.dtype.is_fp32():
        return tl.div_rn(a, b)
    return a / b


@triton.jit
def sqrt(x):
    if x.dtype.is_fp32():
        return tl.sqrt_rn(x)
    return tl.sqrt(x)


@triton.jit
def expm1(x):
    if _INTERPRETED:  # Kahan: the rounding errors of u - 1 and log(u) cancel
        u = tl.exp(x)
        inner = (u - 1) * (x / tl.log(u))
        return tl.where(u == 1, x, tl.where(u == 0, -1.0, tl.where(u == float("inf"), u, inner)))
    return libdevice.expm1(x)


@triton.jit
def log1p(x):
    if _INTERPRETED:  # Kahan, as in expm1
        u = 1 + x
        return tl.where(u == 1, x, tl.log(u) * (x / (u - 1)))
    return libdevice.log1p(x)


@triton.jit
def tanh(x):
    if _INTERPRETED:
        e = expm1(-2 * tl.abs(x))
        y = -e / (2 + e)
        return tl.where(x < 0, -y, y)
    return libdevice.tanh(x)


@triton.jit
def erf(x):
    return tl.erf(x)


@triton.jit
def rint(x):
    if _INTERPRETED:  # adding 1.5 * 2^23 leaves no fraction bits; larger numbers are integers
        nearest = x + 12582912.0 - 12582912.0
        return tl.where(tl.abs(x) < 4194304.0, nearest, x)
    return libdevice.rint(x)


@triton.jit
def sigmoid(x):
    # exp of a non-positive number only: no overflow on either side.
    e = exp(-tl.abs(x))
    return divide(tl.where(x >= 0, 1.0, e).to(x.dtype), 1 + e)


@triton.jit
def softplus(x):
    return maximum(x, full(x, 0)) + log1p(exp(-tl.abs(x)))


@triton.jit
def gelu(x):
    """Return x / 2 * (1 + erf(x / sqrt(2))); by erfc, as 1 + erf cancels for negative x."""
    if _INTERPRETED:
        return 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))
    return 0.5 * x * libdevice.erfc(x * -0.7071067811865476)


@triton.jit
def gelu_by_tanh(x):
    # (1 + tanh(z)) / 2 = sigmoid(2 z), with z = sqrt(2 / pi) * (x + 0.044715 x^3)
    return x * sigmoid(2 * 0.7978845608028654 * (x + 0.044715 * x * x * x))


@triton.jit
def sign(x):
    return tl.where(x > 0, full(x, 1), tl.where(x < 0, full(x, -1), x))


@triton.jit
def expm1_negative(x):
    """Return exp(x) - 1 for negative x, and 0 for positive x, where exp could overflow."""
    return expm1(minimum(x, full(x, 0)))
