"""Gradients of elementwise ops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.graph.op import MICROSOFT
from sardonyx.ops.gradient_rules import GradientBuilder, decompose, gradient

Grads = list[Value | None]
Unary = Callable[..., Value]  # (builder, dy, x, y, **attrs) -> dx
Binary = Callable[[GradientBuilder, Value, Value, Value, Value], Value]  # (builder, dy, x, z, y)


def _one_minus(b: GradientBuilder, x: Value) -> Value:
    return b.Sub(b.const(1, x.tensor.dtype), x)


def _gaussian(b: GradientBuilder, x: Value) -> Value:
    """exp(-x^2)."""
    return b.Exp(b.Neg(b.Mul(x, x)))


def _between(b: GradientBuilder, x: Value, low: float, high: float) -> Value:
    return b.And(b.Greater(x, low), b.Less(x, high))


def _exponential(b: GradientBuilder, x: Value, dy: Value, scale: float, rate: float) -> Value:
    """dy where x is positive, else dy times scale * exp(x / rate)."""
    # Exp of min(x, 0): the branch that Where does not select must not overflow.
    low = b.Exp(b.Mul(b.Min(x, b.const(0, x.tensor.dtype)), 1 / rate))
    return b.Where(b.Greater(x, 0.0), dy, b.Mul(dy, b.Mul(low, scale)))


def _hard_swish(b: GradientBuilder, dy: Value, x: Value, y: Value) -> Value:
    inner = b.Mul(dy, b.Add(b.Mul(x, 1 / 3), 0.5))
    return b.Where(_between(b, x, -3.0, 3.0), inner, b.where(b.Greater(x, 0.0), dy))


def _softsign(b: GradientBuilder, dy: Value, x: Value, y: Value) -> Value:
    denominator = b.Add(b.Abs(x), 1.0)
    return b.Div(dy, b.Mul(denominator, denominator))


def _gelu(b: GradientBuilder, dy: Value, x: Value, y: Value, *, approximate: bytes) -> Value:
    """dy (Phi(x) + x phi(x)), with the normal distribution's CDF Phi and density phi."""
    if approximate == b"tanh":
        return _gelu_tanh(b, dy, x)
    cdf = b.Mul(b.Add(b.Erf(b.Mul(x, math.sqrt(0.5))), 1.0), 0.5)
    slope = b.Mul(b.Mul(x, 1 / math.sqrt(2 * math.pi)), _gaussian(b, b.Mul(x, math.sqrt(0.5))))
    return b.Mul(dy, b.Add(cdf, slope))


def _gelu_tanh(b: GradientBuilder, dy: Value, x: Value) -> Value:
    """The gradient of x/2 (1 + tanh(u)), u = sqrt(2/pi) (x + c x^3)."""
    root, cube = math.sqrt(2 / math.pi), 0.044715
    square = b.Mul(x, x)
    t = b.Tanh(b.Mul(b.Mul(x, root), b.Add(b.Mul(square, cube), 1.0)))
    du = b.Mul(b.Add(b.Mul(square, 3 * cube), 1.0), root)
    twice = b.Add(b.Add(t, 1.0), b.Mul(x, b.Mul(_one_minus(b, b.Mul(t, t)), du)))
    return b.Mul(dy, b.Mul(twice, 0.5))


_UNARY: Final[dict[str, Unary]] = {
    "Abs": lambda b, dy, x, y: b.Mul(dy, b.Sign(x)),
    "Neg": lambda b, dy, x, y: b.Neg(dy),
    "Sqrt": lambda b, dy, x, y: b.Div(b.Mul(dy, 0.5), y),
    "Exp": lambda b, dy, x, y: b.Mul(dy, y),
    "Log": lambda b, dy, x, y: b.Div(dy, x),
    "Reciprocal": lambda b, dy, x, y: b.Neg(b.Mul(dy, b.Mul(y, y))),
    "Sin": lambda b, dy, x, y: b.Mul(dy, b.Cos(x)),
    "Cos": lambda b, dy, x, y: b.Neg(b.Mul(dy, b.Sin(x))),
    "Tan": lambda b, dy, x, y: b.Mul(dy, b.Add(b.Mul(y, y), 1.0)),
    "Asin": lambda b, dy, x, y: b.Div(dy, b.Sqrt(_one_minus(b, b.Mul(x, x)))),
    "Acos": lambda b, dy, x, y: b.Neg(b.Div(dy, b.Sqrt(_one_minus(b, b.Mul(x, x))))),
    "Atan": lambda b, dy, x, y: b.Div(dy, b.Add(b.Mul(x, x), 1.0)),
    "Sinh": lambda b, dy, x, y: b.Mul(dy, b.Cosh(x)),
    "Cosh": lambda b, dy, x, y: b.Mul(dy, b.Sinh(x)),
    "Tanh": lambda b, dy, x, y: b.Mul(dy, _one_minus(b, b.Mul(y, y))),
    "Asinh": lambda b, dy, x, y: b.Div(dy, b.Sqrt(b.Add(b.Mul(x, x), 1.0))),
    "Acosh": lambda b, dy, x, y: b.Div(dy, b.Sqrt(b.Sub(b.Mul(x, x), 1.0))),
    "Atanh": lambda b, dy, x, y: b.Div(dy, _one_minus(b, b.Mul(x, x))),
    "Erf": lambda b, dy, x, y: b.Mul(b.Mul(dy, 2 / math.sqrt(math.pi)), _gaussian(b, x)),
    "Sigmoid": lambda b, dy, x, y: b.Mul(dy, b.Mul(y, _one_minus(b, y))),
    "Relu": lambda b, dy, x, y: b.where(b.Greater(y, 0.0), dy),
    "LeakyRelu": lambda b, dy, x, y, alpha: b.Where(b.Less(x, 0.0), b.Mul(dy, alpha), dy),
    "ThresholdedRelu": lambda b, dy, x, y, alpha: b.where(b.Greater(x, alpha), dy),
    "Elu": lambda b, dy, x, y, alpha: _exponential(b, x, dy, alpha, 1.0),
    "Celu": lambda b, dy, x, y, alpha: _exponential(b, x, dy, 1.0, alpha),
    "Selu": lambda b, dy, x, y, alpha, gamma: _exponential(b, x, b.Mul(dy, gamma), alpha, 1.0),
    "HardSigmoid": lambda b, dy, x, y, alpha, beta: b.where(
        _between(b, y, 0.0, 1.0), b.Mul(dy, alpha)
    ),
    "HardSwish": _hard_swish,
    "Softplus": lambda b, dy, x, y: b.Mul(dy, b.Sigmoid(x)),
    "Softsign": _softsign,
    "Shrink": lambda b, dy, x, y, bias, lambd: b.where(b.Greater(b.Abs(x), lambd), dy),
    "Gelu": _gelu,
    "Cast": lambda b, dy, x, y, **_: b.cast(dy, x.tensor.dtype),
    "CastLike": lambda b, dy, x, y, **_: b.cast(dy, x.tensor.dtype),
}


@gradient(*_UNARY)
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    return _UNARY[node.op.name](b, dy, input_of(node, 0), node.outputs[0], **node.attrs)


@gradient("PRelu")
def _(b: GradientBuilder, node: Node, dy: Value) -> Grads:
    x, slope = input_of(node, 0), input_of(node, 1)
    is_low = b.Less(x, 0.0)
    dx = b.Where(is_low, b.Mul(dy, slope), dy)
    return [dx, b.sum_to(b.where(is_low, b.Mul(dy, x)), slope) if b.wants(slope) else None]


@decompose("Mish")
def _(b: GradientBuilder, node: Node) -> Value:
    x = input_of(node, 0)
    return b.Mul(x, b.Tanh(b.Softplus(x)))


@decompose("Swish")
@decompose("QuickGelu", domain=MICROSOFT)
def _(b: GradientBuilder, node: Node) -> Value:
    x = input_of(node, 0)
    return b.Mul(x, b.Sigmoid(b.Mul(x, node.attrs["alpha"])))


@decompose("SwiGLU")
def _(b: GradientBuilder, node: Node) -> Value:
    return b.Mul(b.Swish(input_of(node, 0), alpha=node.attrs["alpha"]), input_of(node, 1))


@decompose("Gelu", "FastGelu", "BiasGelu", domain=MICROSOFT)
def _(b: GradientBuilder, node: Node) -> Value:
    x, bias = input_of(node, 0), optional_input(node, 1)
    approximate = b"tanh" if node.op.name == "FastGelu" else b"none"
    return b.Gelu(x if bias is None else b.Add(x, bias), approximate=approximate)


def _base(b: GradientBuilder, dy: Value, x: Value, power: Value, y: Value) -> Value:
    """dy * d(x^p)/dx = dy * p x^(p-1), and 0 where x and p are 0, as x^0 is constant."""
    const = power.const
    if const is not None and const.count == 1:
        number = float(const.view().reshape(-1)[0])
        if number == 0:
            return b.zeros(y)
        if number == 2:
            return b.Mul(dy, b.Mul(x, 2.0))
        return b.Mul(dy, b.Mul(b.Pow(x, b.const(number - 1, x.tensor.dtype)), number))
    p = b.cast(power, x.tensor.dtype)
    zero = b.const(0, x.tensor.dtype)
    is_constant = b.And(b.Equal(x, zero), b.Equal(p, zero))
    return b.Mul(dy, b.Mul(p, b.Pow(x, b.Where(is_constant, zero, b.Sub(p, 1.0)))))


def _exponent(b: GradientBuilder, dy: Value, x: Value, power: Value, y: Value) -> Value:
    """dy * d(x^p)/dp = dy * y log x, and 0 where the base is not positive."""
    is_positive = b.Greater(x, 0.0)
    log = b.Log(b.Where(is_positive, x, b.const(1, x.tensor.dtype)))
    return b.cast(b.where(is_positive, b.Mul(dy, b.Mul(y, log))), power.tensor.dtype)


# The gradients of both operands of y = f(x, z), before they are summed over broadcast axes.
_BINARY: Final[dict[str, tuple[Binary, Binary]]] = {
    "Add": (lambda b, dy, x, z, y: dy, lambda b, dy, x, z, y: dy),
    "Sub": (lambda b, dy, x, z, y: dy, lambda b, dy, x, z, y: b.Neg(dy)),
    "Mul": (lambda b, dy, x, z, y: b.Mul(dy, z), lambda b, dy, x, z, y: b.Mul(dy, x)),
    "Div": (
        lambda b, dy, x, z, y: b.Div(dy, z),
        lambda b, dy, x, z, y: b.Neg(b.Div(b.Mul(dy, y), z)),
    ),
    "Pow": (_base, _exponent),
}


@gradient(*_BINARY)
def _(b: GradientBuilder, node: Node, dy: Value) -> Grads:
    x, z, y = input_of(node, 0), input_of(node, 1), node.outputs[0]
    return [
        b.sum_to(rule(b, dy, x, z, y), value) if b.wants(value) else None
        for rule, value in zip(_BINARY[node.op.name], (x, z), strict=True)
    ]


@gradient("Sum", "Mean")
def _(b: GradientBuilder, node: Node, dy: Value) -> Grads:
    share = dy if node.op.name == "Sum" else b.Mul(dy, 1 / len(node.inputs))
    return [b.sum_to(share, x) if x is not None and b.wants(x) else None for x in node.inputs]


@gradient("Max", "Min")
def _(b: GradientBuilder, node: Node, dy: Value) -> Grads:
    """The gradient is split evenly among inputs that attain the maximum or minimum."""
    y = node.outputs[0]
    if len(node.inputs) == 1:
        return [dy]
    chosen = [b.Equal(x, y) for x in node.inputs]
    count = b.Sum(*(b.cast(mask, y.tensor.dtype) for mask in chosen))
    share = b.Div(dy, count)
    return [
        b.sum_to(b.where(mask, share), x) if x is not None and b.wants(x) else None
        for mask, x in zip(chosen, node.inputs, strict=True)
    ]


@gradient("Where")
def _(b: GradientBuilder, node: Node, dy: Value) -> Grads:
    mask, x, z = input_of(node, 0), input_of(node, 1), input_of(node, 2)
    zero = b.const(0, dy.tensor.dtype)
    return [
        None,
        b.sum_to(b.Where(mask, dy, zero), x) if b.wants(x) else None,
        b.sum_to(b.Where(mask, zero, dy), z) if b.wants(z) else None,
    ]


@gradient("Clip")
def _(b: GradientBuilder, node: Node, dy: Value) -> Grads:
    x, low, high = input_of(node, 0), optional_input(node, 1), optional_input(node, 2)
    grads: Grads = [dy, None, None]
    # Clip is min(max(x, low), high): where low > high, only the upper bound has a gradient.
    if high is not None:
        raised = x if low is None else b.Max(x, low)
        is_above = b.Greater(raised, high)
        grads[2] = b.sum_to(b.where(is_above, dy), high)
        grads[0] = dy = b.where(b.Not(is_above), dy)
    if low is not None:
        is_below = b.Less(x, low)
        grads[1] = b.sum_to(b.where(is_below, dy), low)
        grads[0] = b.where(b.Not(is_below), dy)
    return grads


@gradient("Mod")
def _(b: GradientBuilder, node: Node, dy: Value) -> Grads:
    """The gradient of x - z * k, with the integer quotient k constant."""
    x, z, y = input_of(node, 0), input_of(node, 1), node.outputs[0]
    times = b.Round(b.Div(b.Sub(x, y), z))
    return [b.sum_to(dy, x), b.sum_to(b.Neg(b.Mul(dy, times)), z) if b.wants(z) else None]


@decompose("SwiGLU")
def _(b: GradientBuilder, node: Node) -> Value:
    gate, value = input_of(node, 0), input_of(node, 1)
    return b.Mul(b.Swish(gate, alpha=node.attrs["alpha"]), value)
