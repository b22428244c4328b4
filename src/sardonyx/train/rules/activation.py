"""Gradients of activations."""

from __future__ import annotations

import math
from typing import Final

from sardonyx.graph.graph import Node, Value, given
from sardonyx.train.backward import Backward
from sardonyx.train.rules.declare import gradient, parts, unary
from sardonyx.train.rules.elementwise import bell

unary("Relu", lambda b, dy, x, y: b.where(b.Greater(y, 0.0), dy))
unary("Softplus", lambda b, dy, x, y: b.Mul(dy, b.Sigmoid(x)))


@gradient("LeakyRelu")
def _(b: Backward, node: Node, dy: Value) -> Value:
    slope = b.Mul(dy, node.attrs["alpha"])
    return b.Where(b.Less(given(node, 0), 0.0), slope, dy)


@gradient("PRelu")
def _(b: Backward, node: Node, dy: Value) -> list[Value | None]:
    x, slope = given(node, 0), given(node, 1)
    is_low = b.Less(x, 0.0)
    dx = b.Where(is_low, b.Mul(dy, slope), dy)
    return [dx, b.sum_to(b.where(is_low, b.Mul(dy, x)), slope) if b.wants(slope) else None]


def _exponential(b: Backward, x: Value, dy: Value, scale: float, rate: float) -> Value:
    """dy where x is positive, else dy times scale * exp(x / rate)."""
    low = b.Exp(b.Mul(b.Min(x, b.const(0, x.tensor.dtype)), 1 / rate))
    return b.Where(b.Greater(x, 0.0), dy, b.Mul(dy, b.Mul(low, scale)))


@gradient("Elu")
def _(b: Backward, node: Node, dy: Value) -> Value:
    return _exponential(b, given(node, 0), dy, node.attrs["alpha"], 1.0)


@gradient("Celu")
def _(b: Backward, node: Node, dy: Value) -> Value:
    return _exponential(b, given(node, 0), dy, 1.0, node.attrs["alpha"])


@gradient("Selu")
def _(b: Backward, node: Node, dy: Value) -> Value:
    grown = b.Mul(dy, node.attrs["gamma"])
    return _exponential(b, given(node, 0), grown, node.attrs["alpha"], 1.0)


def _between(b: Backward, x: Value, low: float, high: float) -> Value:
    return b.And(b.Greater(x, low), b.Less(x, high))


@gradient("HardSigmoid")
def _(b: Backward, node: Node, dy: Value) -> Value:
    inner = _between(b, node.outputs[0], 0.0, 1.0)
    return b.where(inner, b.Mul(dy, node.attrs["alpha"]))


@gradient("HardSwish")
def _(b: Backward, node: Node, dy: Value) -> Value:
    x = given(node, 0)
    inner = b.Mul(dy, b.Add(b.Mul(x, 1 / 3), 0.5))
    return b.Where(_between(b, x, -3.0, 3.0), inner, b.where(b.Greater(x, 0.0), dy))


@gradient("Softsign")
def _(b: Backward, node: Node, dy: Value) -> Value:
    room = b.Add(b.Abs(given(node, 0)), 1.0)
    return b.Div(dy, b.Mul(room, room))


@gradient("ThresholdedRelu")
def _(b: Backward, node: Node, dy: Value) -> Value:
    return b.where(b.Greater(given(node, 0), node.attrs["alpha"]), dy)


@gradient("Shrink")
def _(b: Backward, node: Node, dy: Value) -> Value:
    return b.where(b.Greater(b.Abs(given(node, 0)), node.attrs["lambd"]), dy)


_ROOT: Final = math.sqrt(2 / math.pi)
_CUBE: Final = 0.044715


def gelu_gradient(b: Backward, x: Value, dy: Value) -> Value:
    """dy (Phi(x) + x phi(x))."""
    below = b.Mul(b.Add(b.Erf(b.Mul(x, math.sqrt(0.5))), 1.0), 0.5)
    slope = b.Mul(b.Mul(x, 1 / math.sqrt(2 * math.pi)), bell(b, b.Mul(x, math.sqrt(0.5))))
    return b.Mul(dy, b.Add(below, slope))


def fast_gelu_gradient(b: Backward, x: Value, dy: Value) -> Value:
    """Of x/2 (1 + tanh(u)), u = sqrt(2/pi) (x + c x^3)."""
    square = b.Mul(x, x)
    t = b.Tanh(b.Mul(b.Mul(x, _ROOT), b.Add(b.Mul(square, _CUBE), 1.0)))
    rise = b.Mul(b.Add(b.Mul(square, 3 * _CUBE), 1.0), _ROOT)  # of u
    flat = b.Sub(b.const(1, x.tensor.dtype), b.Mul(t, t))
    twice = b.Add(b.Add(t, 1.0), b.Mul(x, b.Mul(flat, rise)))
    return b.Mul(dy, b.Mul(twice, 0.5))


@gradient("Gelu")
def _(b: Backward, node: Node, dy: Value) -> Value:
    is_fast = node.attrs["approximate"] == b"tanh"
    return (fast_gelu_gradient if is_fast else gelu_gradient)(b, given(node, 0), dy)


@parts("Mish")
def _(b: Backward, node: Node) -> Value:
    x = given(node, 0)
    return b.Mul(x, b.Tanh(b.Softplus(x)))


@parts("Swish")
def _(b: Backward, node: Node) -> Value:
    x = given(node, 0)
    return b.Mul(x, b.Sigmoid(b.Mul(x, node.attrs["alpha"])))
