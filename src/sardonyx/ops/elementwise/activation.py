"""Activation functions: elementwise, each with its own attributes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph, ShapeError
from sardonyx.graph.dtype import BF16, FLOATS, I32, I64, NUMBERS, SIGNED, U32, U64
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op
from sardonyx.ops.arrays import Array, float32, in_wide
from sardonyx.ops.elementwise.arithmetic import erf, sigmoid, unary


def _leaky_relu(x: Array, *, alpha: float) -> Array:
    return np.where(x < 0, x * x.dtype.type(alpha), x)


def _expm1_below(x: Array) -> Any:
    """exp(x) - 1 below zero, and 0 above, where exp could overflow."""
    return np.expm1(np.minimum(x, 0))


def _elu(x: Array, *, alpha: float) -> Array:
    return np.where(x < 0, x.dtype.type(alpha) * _expm1_below(x), x)


def _selu(x: Array, *, alpha: float, gamma: float) -> Any:
    return x.dtype.type(gamma) * np.where(x > 0, x, x.dtype.type(alpha) * _expm1_below(x))


def _celu(x: Array, *, alpha: float) -> Any:
    # Both terms are 0 on the other one's side, so that no Where is needed.
    scale = x.dtype.type(alpha)
    return np.maximum(x, 0) + np.minimum(scale * np.expm1(x / scale), 0)


def _hard_sigmoid(x: Array, *, alpha: float, beta: float) -> Any:
    return np.clip(x * x.dtype.type(alpha) + x.dtype.type(beta), 0, 1)


def _hard_swish(x: Array) -> Any:
    return x * _hard_sigmoid(x, alpha=1 / 6, beta=0.5)


def _softplus(x: Array) -> Any:
    # log(1 + exp(x)) without overflow.
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _thresholded_relu(x: Array, *, alpha: float) -> Array:
    return np.where(x > alpha, x, x.dtype.type(0))


def _shrink(x: Array, *, bias: float, lambd: float) -> Array:
    outside = np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0))
    return outside.astype(x.dtype)


def swish(x: Array, *, alpha: float) -> Any:
    """x * sigmoid(alpha * x)."""
    return x * sigmoid(x * x.dtype.type(alpha))


def gelu_function(x: Array, *, approximate: bytes = b"none") -> Array:
    """x times the normal distribution's CDF, exact or approximated by tanh."""
    z = x.astype(np.float64)  # 1 + erf cancels for negative numbers
    if approximate == b"tanh":
        inner = np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3))
    else:
        inner = erf(z / np.sqrt(2))
    return np.asarray(0.5 * z * (1 + inner), x.dtype)


UNARY: Final = (
    unary("Relu", 14, lambda x: np.maximum(x, 0), FLOATS | SIGNED),
    unary("LeakyRelu", 16, _leaky_relu, alpha=float32(0.01)),
    unary("Elu", 22, _elu, alpha=1.0),
    unary("Selu", 22, _selu, alpha=float32(1.6732632), gamma=float32(1.050701)),
    unary("Celu", 28, _celu, alpha=1.0),
    unary("HardSigmoid", 22, _hard_sigmoid, alpha=float32(0.2), beta=0.5),
    unary("HardSwish", 22, _hard_swish),
    unary("Softplus", 22, _softplus),
    unary("Softsign", 22, lambda x: x / (1 + np.abs(x))),
    unary("ThresholdedRelu", 22, _thresholded_relu, alpha=1.0),
    unary("Shrink", 9, _shrink, NUMBERS - {BF16}, bias=0.0, lambd=0.5),
    unary("Mish", 22, lambda x: x * np.tanh(_softplus(x))),
    unary("Swish", 24, swish, alpha=1.0),
)

gelu = unary("Gelu", 20, gelu_function, approximate=b"none")


@gelu.infer
def _(g: Scope, x: Fact, *, approximate: bytes) -> Fact:
    if approximate not in (b"none", b"tanh"):
        shown = approximate.decode(errors="replace")
        raise InvalidGraph(f"approximate must be none or tanh, got {shown}")
    return x.without_contents()


prelu = Op("PRelu", 16, "x:T slope:T", "y:T", types={"T": FLOATS | {I32, I64, U32, U64}})


@prelu.infer
def _(g: Scope, x: Fact, slope: Fact) -> Fact:
    extra = slope.rank - x.rank
    if extra > 0:
        raise ShapeError(f"slope {slope} has {extra} dims more than {x}, to which it is broadcast")
    for s, d in zip(slope.dims, x.dims[-extra:], strict=True):
        g.equal_or_one(s, d, "the slope does not broadcast to the input")
    return x.without_contents()


@prelu.reference
@in_wide
def _(x: Array, slope: Array) -> Array:
    return np.where(x < 0, x * slope, x)


swiglu = Op("SwiGLU", 28, "a:T b:T", "y:T", attrs={"alpha": 1.0}, types={"T": FLOATS})


@swiglu.infer
def _(g: Scope, a: Fact, b: Fact, *, alpha: float) -> Fact:
    if a.rank != b.rank:
        raise ShapeError(f"gate {a} and value {b} have the same shape")
    shape = (g.equal(m, n, "gate and value differ") for m, n in zip(a.dims, b.dims, strict=True))
    return a.shaped(tuple(shape))


@swiglu.reference
@in_wide
def _(a: Array, b: Array, *, alpha: float) -> Any:
    return swish(a, alpha=alpha) * b


OPS: Final = (*UNARY, gelu, prelu, swiglu)
