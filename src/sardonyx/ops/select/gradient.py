"""The gradient of TopK: a scatter to the selected indices."""

from __future__ import annotations

from sardonyx.graph.graph import Node, Value, input_of
from sardonyx.ops.gradients import GradientBuilder, gradient, saved


@gradient("TopK")
def _(b: GradientBuilder, node: Node, dy: Value | None, *_: Value | None) -> Value | None:
    if dy is None:
        return None
    zeros, index = b.zeros(input_of(node, 0)), saved(b, node, 1)
    return b.ScatterElements(zeros, index, dy, axis=node.attrs["axis"], reduction=b"add")
