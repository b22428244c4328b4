"""Elementwise mathematics, logic and comparisons, with broadcasting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from sardonyx.graph.dtype import BOOL, COMPLEX, FLOAT8, INTS, U16, U32, U64, DType
from sardonyx.providers.torch.dtypes import CARRIERS, in_wide, via_carrier, wide
from sardonyx.providers.torch.kernel import PLAIN, REALS, WHOLE, TorchKernel, TorchKernels

Function = Callable[..., Any]

_ORDERED: Final = REALS | WHOLE
_BOOLS: Final = frozenset((BOOL,))
# Computed as signed integers: only comparison, division and right shift depend on the sign.
_UNSIGNED: Final = frozenset((U16, U32, U64))


def _equal(a: Tensor, b: Tensor) -> Tensor:
    carrier = CARRIERS.get(a.dtype)
    return torch.eq(a, b) if carrier is None else torch.eq(a.view(carrier), b.view(carrier))


def _sign(x: Tensor) -> Tensor:
    sign = torch.sign(x)
    return torch.where(x != x, x, sign) if x.is_floating_point() else sign


def _div(a: Tensor, b: Tensor) -> Tensor:
    if a.is_floating_point():
        return torch.div(a, b)
    if a.dtype is torch.uint8:
        return torch.div(a, b, rounding_mode="trunc")
    # The lowest integer divided by -1 overflows, which traps on x86: negate instead.
    is_minus = b == -1
    quotient = torch.div(a, b.masked_fill(is_minus, 1), rounding_mode="trunc")
    return torch.where(is_minus, -a, quotient)


def _mod(a: Tensor, b: Tensor, *, fmod: int) -> Tensor:
    if not a.is_floating_point() and a.dtype.is_signed:
        # As in _div, with torch 2.6 at least; the remainder by 1 is 0 too.
        b = b.masked_fill(b == -1, 1)
    if fmod:
        return torch.fmod(a, b)
    rest = torch.remainder(a, b)
    if not a.is_floating_point():
        return rest
    return torch.where(rest == 0, torch.copysign(rest, b), rest)  # zeros have b's sign too


def _pow(a: Tensor, b: Tensor) -> Tensor:
    if a.dtype is b.dtype and a.is_floating_point():
        return torch.pow(a, b)
    if not a.is_floating_point() and not b.is_floating_point():
        return _int_pow(a.long(), b.long()).to(a.dtype)
    # An integer exponent rounded to float32 could change from odd to even.
    is_short = all(t.is_floating_point() and t.dtype is not torch.float64 for t in (a, b))
    both = torch.float32 if is_short else torch.float64
    return torch.pow(a.to(both), b.to(both)).to(a.dtype)


def _int_pow(base: Tensor, exponent: Tensor) -> Tensor:
    # A negative power of an integer truncates to 0, except for 1 and -1.
    is_negative = exponent < 0
    whole = torch.pow(base, torch.where(is_negative, exponent & 1, exponent))
    return torch.where(is_negative & (base.abs() != 1), 0, whole)


def _shift(a: Tensor, b: Tensor, *, direction: bytes) -> Tensor:
    if direction == b"LEFT":
        return torch.bitwise_left_shift(a, b)
    return torch.bitwise_right_shift(a, b)


def _fold(function: Function) -> Function:
    """Return a variadic function that applies a binary one from left to right."""

    def run(*xs: Tensor) -> Tensor:
        result = xs[0]
        for x in xs[1:]:
            result = function(result, x)
        return result

    return run


def _sum(*xs: Tensor) -> Tensor:
    """Return the sum: one addition rounds once, several are computed in float32."""
    return torch.add(*xs) if len(xs) == 2 else _sum_wide(*xs)


_sum_wide: Final = in_wide(_fold(torch.add))


def _mean(*xs: Tensor) -> Tensor:
    total: Tensor = _fold(torch.add)(*xs)
    return total / len(xs)


def _is_nan(x: Tensor) -> Tensor:
    return torch.isnan(wide(x))


def _is_inf(x: Tensor, *, detect_negative: int, detect_positive: int) -> Tensor:
    x = wide(x)
    if detect_negative and detect_positive:
        return torch.isinf(x)
    if detect_negative:
        return torch.isneginf(x)
    if detect_positive:
        return torch.isposinf(x)
    return torch.zeros_like(x, dtype=torch.bool)


@via_carrier
def _select(x: Tensor, y: Tensor, condition: Tensor) -> Tensor:
    return torch.where(condition, x, y)


def _clip(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    if low is None and high is None:
        return x
    bounds = (b.reshape(()) if b is not None and b.ndim else b for b in (low, high))
    return torch.clamp(x, *bounds)


def _kernels(types: frozenset[DType], **functions: Function) -> TorchKernels:
    return {("", name): TorchKernel(function, types) for name, function in functions.items()}


KERNELS: Final[TorchKernels] = {
    **_kernels(_ORDERED, Abs=torch.abs, Neg=torch.neg, Sign=_sign),
    **_kernels(
        REALS,
        Ceil=torch.ceil, Floor=torch.floor, Round=torch.round, Sqrt=torch.sqrt, Exp=torch.exp,
        Log=torch.log, Reciprocal=torch.reciprocal, Sin=torch.sin, Cos=torch.cos, Tan=torch.tan,
        Asin=torch.asin, Acos=torch.acos, Atan=torch.atan, Sinh=torch.sinh, Cosh=torch.cosh,
        Tanh=torch.tanh, Asinh=torch.asinh, Acosh=torch.acosh, Atanh=torch.atanh, Erf=torch.erf,
        Sigmoid=torch.sigmoid, Sum=_sum, Mean=in_wide(_mean),
    ),
    **_kernels(
        _BOOLS, Not=torch.logical_not, And=torch.logical_and, Or=torch.logical_or,
        Xor=torch.logical_xor,
    ),
    **_kernels(
        INTS,
        BitwiseNot=via_carrier(torch.bitwise_not), BitwiseAnd=via_carrier(torch.bitwise_and),
        BitwiseOr=via_carrier(torch.bitwise_or), BitwiseXor=via_carrier(torch.bitwise_xor),
    ),
    **_kernels(
        _ORDERED | _UNSIGNED, Add=via_carrier(torch.add), Sub=via_carrier(torch.sub),
        Mul=via_carrier(torch.mul),
    ),
    **_kernels(
        _ORDERED,
        Div=_div, Mod=in_wide(_mod), Max=_fold(torch.maximum), Min=_fold(torch.minimum),
        Pow=_pow, Clip=_clip,
    ),
    **_kernels(WHOLE, BitShift=_shift),
    **_kernels(
        PLAIN, Greater=torch.gt, Less=torch.lt, GreaterOrEqual=torch.ge, LessOrEqual=torch.le,
    ),
    **_kernels(PLAIN | _UNSIGNED, Equal=_equal),
    **_kernels(PLAIN | _UNSIGNED | COMPLEX, Where=lambda condition, x, y: _select(x, y, condition)),
    **_kernels(REALS | FLOAT8 | _BOOLS, IsNaN=_is_nan, IsInf=_is_inf),
}  # fmt: skip
