"""Functions of one element for generated kernels, with the meaning that ONNX gives them."""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc,no-any-return,assignment"

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl
from triton.language.extra import libdevice

from sardonyx.providers.torch.kernels import is_interpreted

_PLAIN: Final = tl.constexpr(is_interpreted())  # the interpreter has no library


@triton.jit
def full(x, value):
    """A number for each element of x, in its type."""
    return tl.full(x.shape, value, x.dtype)


@triton.jit
def maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def exp(x):
    if _PLAIN:
        return tl.exp(x)
    return libdevice.exp(x)


@triton.jit
def log(x):
    if _PLAIN:
        return tl.log(x)
    return libdevice.log(x)


@triton.jit
def divided(a, b):
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
    if _PLAIN:
        u = tl.exp(x)
        near = (u - 1) * (x / tl.log(u))
        return tl.where(u == 1, x, tl.where(u == 0, -1.0, tl.where(u == float("inf"), u, near)))
    return libdevice.expm1(x)


@triton.jit
def log1p(x):
    if _PLAIN:
        u = 1 + x
        return tl.where(u == 1, x, tl.log(u) * (x / (u - 1)))
    return libdevice.log1p(x)


@triton.jit
def tanh(x):
    if _PLAIN:
        e = expm1(-2 * tl.abs(x))
        y = -e / (2 + e)
        return tl.where(x < 0, -y, y)
    return libdevice.tanh(x)


@triton.jit
def erf(x):
    return tl.erf(x)


@triton.jit
def rint(x):
    if _PLAIN:
        near = x + 12582912.0 - 12582912.0
        return tl.where(tl.abs(x) < 4194304.0, near, x)
    return libdevice.rint(x)


@triton.jit
def sigmoid(x):
    e = exp(-tl.abs(x))
    return divided(tl.where(x >= 0, 1.0, e).to(x.dtype), 1 + e)


@triton.jit
def softplus(x):
    return maximum(x, full(x, 0)) + log1p(exp(-tl.abs(x)))


@triton.jit
def gelu(x):
    """x / 2 times 1 + erf(x / sqrt(2)), which cancels below zero, and erfc does not."""
    if _PLAIN:
        return 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))
    return 0.5 * x * libdevice.erfc(x * -0.7071067811865476)


@triton.jit
def gelu_by_tanh(x):
    return x * sigmoid(2 * 0.7978845608028654 * (x + 0.044715 * x * x * x))


@triton.jit
def sign(x):
    return tl.where(x > 0, full(x, 1), tl.where(x < 0, full(x, -1), x))


@triton.jit
def below(x):
    """exp(x) - 1 below zero, and 0 above, where exp might overflow."""
    return expm1(minimum(x, full(x, 0)))
