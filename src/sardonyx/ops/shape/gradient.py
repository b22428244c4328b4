"""Gradients of ops that change a tensor's shape."""

from __future__ import annotations

from sardonyx.graph.graph import Node, Value, input_of
from sardonyx.ops.gradient_rules import GradientBuilder, gradient


@gradient("Identity")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    return dy


@gradient("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    return b.reshape(dy, input_of(node, 0))


@gradient("Expand")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    return b.sum_to(dy, input_of(node, 0))


@gradient("Range")
def _(b: GradientBuilder, node: Node, dy: Value) -> list[Value | None]:
    """Element i is start + i * delta."""
    start, delta = input_of(node, 0), input_of(node, 2)
    steps = b.cast(b.arange(b.Squeeze(b.shape(dy), b.ints(0))), dy.tensor.dtype)
    total = b.reshape(b.ReduceSum(dy, keepdims=0), start)
    delta_grad = b.ReduceSum(b.Mul(dy, steps), keepdims=0)
    return [total, None, b.reshape(delta_grad, delta)]
