"""Gradients of elementwise ops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from sardonyx.graph.graph import Node, Value, given, optional
from sardonyx.train.backward import Backward
from sardonyx.train.rules.declare import Unary, gradient, unary

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
    ("Erf", lambda b, dy, x, y: b.Mul(b.Mul(dy, 2 / math.sqrt(math.pi)), bell(b, x))),
    ("Sigmoid", lambda b, dy, x, y: b.Mul(dy, b.Mul(y, _one_less(b, y)))),
)  # fmt: skip


def _one_less(b: Backward, x: Value) -> Value:
    """1 - x."""
    return b.Sub(b.const(1, x.tensor.dtype), x)


def bell(b: Backward, x: Value) -> Value:
    """exp(-x^2)."""
    return b.Exp(b.Neg(b.Mul(x, x)))


for _name, _rule in _UNARY:
    unary(_name, _rule)


def _binary(
    name: str,
    left: Callable[[Backward, Value, Value, Value, Value], Value],
    right: Callable[[Backward, Value, Value, Value, Value], Value],
) -> None:
    """The gradients of a broadcasting op y = f(x, z), from the builder, dy, x, z and y."""

    def run(b: Backward, node: Node, dy: Value) -> Grads:
        x, z, y = given(node, 0), given(node, 1), node.outputs[0]
        return [
            b.sum_to(side(b, dy, x, z, y), value) if b.wants(value) else None
            for side, value in ((left, x), (right, z))
        ]

    gradient(name)(run)


_binary("Add", lambda b, dy, x, z, y: dy, lambda b, dy, x, z, y: dy)
_binary("Sub", lambda b, dy, x, z, y: dy, lambda b, dy, x, z, y: b.Neg(dy))
_binary("Mul", lambda b, dy, x, z, y: b.Mul(dy, z), lambda b, dy, x, z, y: b.Mul(dy, x))
_binary(
    "Div",
    lambda b, dy, x, z, y: b.Div(dy, z),
    lambda b, dy, x, z, y: b.Neg(b.Div(b.Mul(dy, y), z)),
)


def _base(b: Backward, dy: Value, x: Value, power: Value, y: Value) -> Value:
    """d of x^p by x."""
    const = power.const
    if const is not None and const.count == 1:
        number = float(const.view().reshape(-1)[0])
        if number == 2:
            return b.Mul(dy, b.Mul(x, 2.0))
        return b.Mul(dy, b.Mul(b.Pow(x, b.const(number - 1, x.tensor.dtype)), number))
    p = b.cast(power, x.tensor.dtype)
    return b.Mul(dy, b.Mul(p, b.Pow(x, b.Sub(p, 1.0))))


def _exponent(b: Backward, dy: Value, x: Value, power: Value, y: Value) -> Value:
    """d of x^p by p: y log x, and 0 where the base is not positive."""
    is_positive = b.Greater(x, 0.0)
    log = b.Log(b.Where(is_positive, x, b.const(1, x.tensor.dtype)))
    return b.cast(b.where(is_positive, b.Mul(dy, b.Mul(y, log))), power.tensor.dtype)


_binary("Pow", _base, _exponent)


@gradient("Sum")
def _(b: Backward, node: Node, dy: Value) -> Grads:
    return [b.sum_to(dy, x) if x is not None and b.wants(x) else None for x in node.inputs]


@gradient("Mean")
def _(b: Backward, node: Node, dy: Value) -> Grads:
    share = b.Mul(dy, 1 / len(node.inputs))
    return [b.sum_to(share, x) if x is not None and b.wants(x) else None for x in node.inputs]


@gradient("Max", "Min")
def _(b: Backward, node: Node, dy: Value) -> Grads:
    """Inputs that are equal share the gradient."""
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
def _(b: Backward, node: Node, dy: Value) -> Grads:
    mask, x, z = given(node, 0), given(node, 1), given(node, 2)
    zero = b.const(0, dy.tensor.dtype)
    return [
        None,
        b.sum_to(b.Where(mask, dy, zero), x) if b.wants(x) else None,
        b.sum_to(b.Where(mask, zero, dy), z) if b.wants(z) else None,
    ]


@gradient("Clip")
def _(b: Backward, node: Node, dy: Value) -> Grads:
    x, low, high = given(node, 0), optional(node, 1), optional(node, 2)
    grads: Grads = [dy, None, None]
    # The bounds are applied in turn: a lower one above the upper one has no say.
    if high is not None:
        lifted = x if low is None else b.Max(x, low)
        is_above = b.Greater(lifted, high)
        grads[2] = b.sum_to(b.where(is_above, dy), high)
        grads[0] = dy = b.where(b.Not(is_above), dy)
    if low is not None:
        is_below = b.Less(x, low)
        grads[1] = b.sum_to(b.where(is_below, dy), low)
        grads[0] = b.where(b.Not(is_below), dy)
    return grads


@gradient("Mod")
def _(b: Backward, node: Node, dy: Value) -> Grads:
    """x - z * k, where the whole number k does not change."""
    x, z, y = given(node, 0), given(node, 1), node.outputs[0]
    times = b.Round(b.Div(b.Sub(x, y), z))
    return [b.sum_to(dy, x), b.sum_to(b.Neg(b.Mul(dy, times)), z) if b.wants(z) else None]
