"""Older forms of the elementwise ops."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.graph import Value
from sardonyx.load.upgrade import OldNode, upgrade
from sardonyx.ops.builder import Builder


@upgrade("Add Sub Mul Div And Or Xor Equal Greater Less Pow", below=7)
def explicit_broadcast(b: Builder, node: OldNode) -> Value:
    """Before opset 7 the second operand was lined up with an axis of the first, when told to."""
    axis = node.attr("axis")
    if not node.attr("broadcast", 0) or axis is None:
        return _value(b.node(node.op_type, *node.inputs).outputs[0])
    left, right = node.input(0), node.input(1)
    rank = b.Size(b.Shape(left))
    own = b.Size(b.Shape(right))
    start = b.ints(axis) if axis >= 0 else b.Add(rank, b.ints(axis))
    behind = b.Sub(b.Sub(rank, start), own)
    ones = b.Expand(b.ints(1), b.Reshape(behind, b.ints(1)))
    aligned = b.Reshape(right, b.Concat(b.Shape(right), ones, axis=0))
    return _value(b.node(node.op_type, left, aligned).outputs[0])


def _value(value: Any) -> Value:
    assert isinstance(value, Value)
    return value


@upgrade(
    "Abs Neg Ceil Floor Sqrt Exp Log Reciprocal Tanh Sigmoid Max Min Sum Mean",
    below=6,
)
def nothing_is_consumed(b: Builder, node: OldNode) -> Value:
    """Opset 1 told which inputs a node might overwrite (consumed_inputs)."""
    return _value(b.node(node.op_type, *node.inputs).outputs[0])


@upgrade("Clip", below=11)
def clip_bounds_become_inputs(b: Builder, node: OldNode) -> Value:
    """The bounds were attributes; from opset 6 on, the largest finite numbers by default."""
    x = node.input(0)
    if x is None:
        raise InvalidGraph("Clip has no input to clip")
    widest = None if node.version < 6 else float(np.finfo(np.float32).max)
    low = node.attr("min", None if widest is None else -widest)
    high = node.attr("max", widest)
    bounds = [None if v is None else b.CastLike(b.const(np.float32(v)), x) for v in (low, high)]
    return _value(b.Clip(x, *bounds))


UPGRADES: Final = (
    *explicit_broadcast,
    *nothing_is_consumed,
    *clip_bounds_become_inputs,
)
