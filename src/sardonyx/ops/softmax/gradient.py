"""Gradients of Softmax and LogSoftmax."""

from __future__ import annotations

from sardonyx.graph.graph import Node, Value
from sardonyx.ops.gradient_rules import GradientBuilder, gradient


@gradient("Softmax")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    y, axis = node.outputs[0], b.ints(node.attrs["axis"])
    # The Jacobian is diag(y) - y y^T.
    share = b.ReduceSum(b.Mul(dy, y), axis, keepdims=1)
    return b.Mul(b.Sub(dy, share), y)


@gradient("LogSoftmax")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    y, axis = node.outputs[0], b.ints(node.attrs["axis"])
    return b.Sub(dy, b.Mul(b.Exp(y), b.ReduceSum(dy, axis, keepdims=1)))
