"""Gradients of elementwise ops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.graph.op import MICROSOFT
from sardonyx.ops.gradients import GradientBuilder, Unary, decompose, gradient, unary

unary("Relu", lambda b, dy, x, y: b.where(b.Greater(y, 0.0), dy))


unary("Softplus", lambda b, dy, x, y: b.Mul(dy, b.Sigmoid(x)))


@gradient("LeakyRelu")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    slope = b.Mul(dy, node.attrs["alpha"])
    return b.Where(b.Less(input_of(node, 0), 0.0), slope, dy)


@gradient("PRelu")
def _(b: GradientBuilder, node: Node, dy: Value) -> list[Value | None]:
    x, slope = input_of(node, 0), input_of(node, 1)
    is_low = b.Less(x, 0.0)
    dx = b.Where(is_low, b.Mul(dy, slope), dy)
    return [dx, b.sum_to(b.where(is_low, b.Mul(dy, x)), slope) if b.wants(slope) else None]


def _exponential(b: GradientBuilder, x: Value, dy: Value, scale: float, rate: float) -> Value:
    """dy where x is positive, else dy times scale * exp(x / rate)."""
    low = b.Exp(b.Mul(b.Min(x, b.const(0, x.tensor.dtype)), 1 / rate))
    return b.Where(b.Greater(x, 0.0), dy, b.Mul(dy, b.Mul(low, scale)))


@gradient("Elu")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    return _exponential(b, input_of(node, 0), dy, node.attrs["alpha"], 1.0)


@gradient("Celu")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    return _exponential(b, input_of(node, 0), dy, 1.0, node.attrs["alpha"])


@gradient("Selu")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    scaled = b.Mul(dy, node.attrs["gamma"])
    return _exponential(b, input_of(node, 0), scaled, node.attrs["alpha"], 1.0)


def _between(b: GradientBuilder, x: Value, low: float, high: float) -> Value:
    return b.And(b.Greater(x, low), b.Less(x, high))


@gradient("HardSigmoid")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    inner = _between(b, node.outputs[0], 0.0, 1.0)
    return b.where(inner, b.Mul(dy, node.attrs["alpha"]))


@gradient("HardSwish")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    x = input_of(node, 0)
    inner = b.Mul(dy, b.Add(b.Mul(x, 1 / 3), 0.5))
    return b.Where(_between(b, x, -3.0, 3.0), inner, b.where(b.Greater(x, 0.0), dy))


@gradient("Softsign")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    denominator = b.Add(b.Abs(input_of(node, 0)), 1.0)
    return b.Div(dy, b.Mul(denominator, denominator))


@gradient("ThresholdedRelu")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    return b.where(b.Greater(input_of(node, 0), node.attrs["alpha"]), dy)


@gradient("Shrink")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    return b.where(b.Greater(b.Abs(input_of(node, 0)), node.attrs["lambd"]), dy)


_ROOT: Final = math.sqrt(2 / math.pi)


_CUBE: Final = 0.044715


def gelu_gradient(b: GradientBuilder, x: Value, dy: Value) -> Value:
    """dy (Phi(x) + x phi(x)), with the normal distribution's CDF Phi and density phi."""
    cdf = b.Mul(b.Add(b.Erf(b.Mul(x, math.sqrt(0.5))), 1.0), 0.5)
    slope = b.Mul(b.Mul(x, 1 / math.sqrt(2 * math.pi)), gaussian(b, b.Mul(x, math.sqrt(0.5))))
    return b.Mul(dy, b.Add(cdf, slope))


def fast_gelu_gradient(b: GradientBuilder, x: Value, dy: Value) -> Value:
    """The gradient of x/2 (1 + tanh(u)), u = sqrt(2/pi) (x + c x^3)."""
    square = b.Mul(x, x)
    t = b.Tanh(b.Mul(b.Mul(x, _ROOT), b.Add(b.Mul(square, _CUBE), 1.0)))
    du = b.Mul(b.Add(b.Mul(square, 3 * _CUBE), 1.0), _ROOT)
    dtanh = b.Sub(b.const(1, x.tensor.dtype), b.Mul(t, t))
    twice = b.Add(b.Add(t, 1.0), b.Mul(x, b.Mul(dtanh, du)))
    return b.Mul(dy, b.Mul(twice, 0.5))


@gradient("Gelu")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    is_fast = node.attrs["approximate"] == b"tanh"
    return (fast_gelu_gradient if is_fast else gelu_gradient)(b, input_of(node, 0), dy)


@decompose("Mish")
def _(b: GradientBuilder, node: Node) -> Value:
    x = input_of(node, 0)
    return b.Mul(x, b.Tanh(b.Softplus(x)))


@decompose("Swish")
def _(b: GradientBuilder, node: Node) -> Value:
    x = input_of(node, 0)
    return b.Mul(x, b.Sigmoid(b.Mul(x, node.attrs["alpha"])))


@gradient("Cast", "CastLike")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    return b.cast(dy, input_of(node, 0).tensor.dtype)


Grads = list[Value | None]


# dx of y = f(x), from the builder, dy, x and y.
_UNARY: Final[tuple[tuple[str, Unary], ...]] = (
    ("Abs", lambda b, dy, x, y: b.Mul(dy, b.Sign(x))),
    ("Neg", lambda b, dy, x, y: b.Neg(dy)),
    ("Sqrt", lambda b, dy, x, y: b.Div(b.Mul(dy, 0.5), y)),
    ("Exp", lambda b, dy, x, y: b.Mul(dy, y)),
    ("Log", lambda b, dy, x, y: b.Div(dy, x)),
    ("Reciprocal", lambda b, dy, x, y: b.Neg(b.Mul(dy, b.Mul(y, y)))),
    ("Sin", lambda b, dy, x, y: b.Mul(dy, b.Cos(x))),
    ("Cos", lambda b, dy, x, y: b.Neg(b.Mul(dy, b.Sin(x)))),
    ("Tan", lambda b, dy, x, y: b.Mul(dy, b.Add(b.Mul(y, y), 1.0))),
    ("Asin", lambda b, dy, x, y: b.Div(dy, b.Sqrt(_one_less(b, b.Mul(x, x))))),
    ("Acos", lambda b, dy, x, y: b.Neg(b.Div(dy, b.Sqrt(_one_less(b, b.Mul(x, x)))))),
    ("Atan", lambda b, dy, x, y: b.Div(dy, b.Add(b.Mul(x, x), 1.0))),
    ("Sinh", lambda b, dy, x, y: b.Mul(dy, b.Cosh(x))),
    ("Cosh", lambda b, dy, x, y: b.Mul(dy, b.Sinh(x))),
    ("Tanh", lambda b, dy, x, y: b.Mul(dy, _one_less(b, b.Mul(y, y)))),
    ("Asinh", lambda b, dy, x, y: b.Div(dy, b.Sqrt(b.Add(b.Mul(x, x), 1.0)))),
    ("Acosh", lambda b, dy, x, y: b.Div(dy, b.Sqrt(b.Sub(b.Mul(x, x), 1.0)))),
    ("Atanh", lambda b, dy, x, y: b.Div(dy, _one_less(b, b.Mul(x, x)))),
    ("Erf", lambda b, dy, x, y: b.Mul(b.Mul(dy, 2 / math.sqrt(math.pi)), gaussian(b, x))),
    ("Sigmoid", lambda b, dy, x, y: b.Mul(dy, b.Mul(y, _one_less(b, y)))),
)  # fmt: skip


def _one_less(b: GradientBuilder, x: Value) -> Value:
    """1 - x."""
    return b.Sub(b.const(1, x.tensor.dtype), x)


def gaussian(b: GradientBuilder, x: Value) -> Value:
    """exp(-x^2)."""
    return b.Exp(b.Neg(b.Mul(x, x)))


for _name, _rule in _UNARY:
    unary(_name, _rule)


def _binary(
    name: str,
    left: Callable[[GradientBuilder, Value, Value, Value, Value], Value],
    right: Callable[[GradientBuilder, Value, Value, Value, Value], Value],
) -> None:
    """The gradients of a broadcasting op y = f(x, z), from the builder, dy, x, z and y."""

    def run(b: GradientBuilder, node: Node, dy: Value) -> Grads:
        x, z, y = input_of(node, 0), input_of(node, 1), node.outputs[0]
        return [
            b.sum_to(side(b, dy, x, z, y), value) if b.wants(value) else None
            for side, value in ((left, x), (right, z))
        ]

    gradient(name)(run)


_binary("Add", lambda b, dy, x, z, y: dy, lambda b, dy, x, z, y: dy)


_binary("Sub", lambda b, dy, x, z, y: dy, lambda b, dy, x, z, y: b.Neg(dy))


_binary("Mul", lambda b, dy, x, z, y: b.Mul(dy, z), lambda b, dy, x, z, y: b.Mul(dy, x))


_binary(
    "Div", lambda b, dy, x, z, y: b.Div(dy, z), lambda b, dy, x, z, y: b.Neg(b.Div(b.Mul(dy, y), z))
)


def _base(b: GradientBuilder, dy: Value, x: Value, power: Value, y: Value) -> Value:
    """dy * d(x^p)/dx = dy * p x^(p-1)."""
    const = power.const
    if const is not None and const.count == 1:
        number = float(const.view().reshape(-1)[0])
        if number == 2:
            return b.Mul(dy, b.Mul(x, 2.0))
        return b.Mul(dy, b.Mul(b.Pow(x, b.const(number - 1, x.tensor.dtype)), number))
    p = b.cast(power, x.tensor.dtype)
    return b.Mul(dy, b.Mul(p, b.Pow(x, b.Sub(p, 1.0))))


def _exponent(b: GradientBuilder, dy: Value, x: Value, power: Value, y: Value) -> Value:
    """dy * d(x^p)/dp = dy * y log x, and 0 where the base is not positive."""
    is_positive = b.Greater(x, 0.0)
    log = b.Log(b.Where(is_positive, x, b.const(1, x.tensor.dtype)))
    return b.cast(b.where(is_positive, b.Mul(dy, b.Mul(y, log))), power.tensor.dtype)


_binary("Pow", _base, _exponent)


@gradient("Sum")
def _(b: GradientBuilder, node: Node, dy: Value) -> Grads:
    return [b.sum_to(dy, x) if x is not None and b.wants(x) else None for x in node.inputs]


@gradient("Mean")
def _(b: GradientBuilder, node: Node, dy: Value) -> Grads:
    share = b.Mul(dy, 1 / len(node.inputs))
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


@decompose("Gelu", domain=MICROSOFT)
def _(b: GradientBuilder, node: Node) -> Value:
    return b.Gelu(input_of(node, 0))


@decompose("FastGelu", domain=MICROSOFT)
def _(b: GradientBuilder, node: Node) -> Value:
    x, bias = input_of(node, 0), optional_input(node, 1)
    return b.Gelu(x if bias is None else b.Add(x, bias), approximate=b"tanh")


@decompose("BiasGelu", domain=MICROSOFT)
def _(b: GradientBuilder, node: Node) -> Value:
    return b.Gelu(b.Add(input_of(node, 0), input_of(node, 1)))


@decompose("QuickGelu", domain=MICROSOFT)
def _(b: GradientBuilder, node: Node) -> Value:
    x = input_of(node, 0)
    return b.Mul(x, b.Sigmoid(b.Mul(x, node.attrs["alpha"])))
