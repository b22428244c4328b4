"""Gradients of TopK and Unique: scatters to the selected indices."""

from __future__ import annotations

from sardonyx.graph.graph import Node, Value, input_of
from sardonyx.ops.gather.gradient import scatter_add
from sardonyx.ops.gradient_rules import GradientBuilder, gradient, ranked, saved
from sardonyx.ops.inference import axis_of


@gradient("TopK")
def _(b: GradientBuilder, node: Node, dy: Value | None, *_: Value | None) -> Value | None:
    if dy is None:
        return None
    zeros, index = b.zeros(input_of(node, 0)), saved(b, node, 1)
    return b.ScatterElements(zeros, index, dy, axis=node.attrs["axis"], reduction=b"add")


@gradient("Unique")
def _(b: GradientBuilder, node: Node, dy: Value | None, *_: Value | None) -> Value | None:
    """Of equal elements, the first has the gradient."""
    if dy is None:
        return None
    x, index, axis = input_of(node, 0), saved(b, node, 1), node.attrs["axis"]
    if axis is not None:
        return scatter_add(b, x, index, dy, axis_of(axis, ranked(x).rank))
    return b.reshape(scatter_add(b, b.Reshape(x, b.ints(-1)), index, dy, 0), x)
