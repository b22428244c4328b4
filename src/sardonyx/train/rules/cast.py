"""Gradients of casts: of floats to floats only."""

from __future__ import annotations

from sardonyx.graph.graph import Node, Value, given
from sardonyx.train.backward import Backward
from sardonyx.train.rules.declare import gradient


@gradient("Cast", "CastLike")
def _(b: Backward, node: Node, dy: Value) -> Value:
    return b.cast(dy, given(node, 0).tensor.dtype)
