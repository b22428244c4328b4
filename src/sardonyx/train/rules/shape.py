"""Gradients of ops that give a tensor another shape."""

from __future__ import annotations

from sardonyx.graph.graph import Node, Value, given
from sardonyx.train.backward import Backward
from sardonyx.train.rules.declare import gradient, stops

stops("Shape", "Size", "ConstantOfShape", "EyeLike", "Range")


@gradient("Identity")
def _(b: Backward, node: Node, dy: Value) -> Value:
    return dy


@gradient("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _(b: Backward, node: Node, dy: Value) -> Value:
    return b.reshape(dy, given(node, 0))


@gradient("Expand")
def _(b: Backward, node: Node, dy: Value) -> Value:
    return b.sum_to(dy, given(node, 0))
