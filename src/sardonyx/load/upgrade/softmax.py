"""Upgrades of the softmax ops."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.graph.fact import Fact
from sardonyx.graph.op import MICROSOFT
from sardonyx.load.upgrade import OldNode, Upgrades
from sardonyx.ops.builder import Builder

UPGRADES: Final = Upgrades()


@UPGRADES.rule("Softmax LogSoftmax Hardmax", below=13)
def softmax_over_flattened_axes(b: Builder, node: OldNode) -> Any:
    """Before opset 13 the op flattened its input to a matrix at the axis, and took each row."""
    x, axis = node.input(0), node.attr("axis", 1)
    fact = None if x is None else x.fact
    rank = fact.rank if isinstance(fact, Fact) and fact.shape is not None else None
    if axis == -1 or (rank is not None and axis == rank - 1):
        return b.node(node.op_type, x, axis=-1).outputs
    flat = b.node(node.op_type, b.Flatten(x, axis=axis), axis=1).outputs[0]
    return b.Reshape(flat, b.Shape(x), allowzero=1)


@UPGRADES.rule("BiasSoftmax", domain=MICROSOFT)
def bias_softmax(b: Builder, node: OldNode) -> Any:
    """The bias broadcasts over its dims of 1, so is_inner_broadcast tells nothing more."""
    total = b.Add(node.input(0), node.input(1))
    flat = b.Softmax(b.Flatten(total, axis=node.attr("axis", 1)), axis=1)
    return b.Reshape(flat, b.Shape(total), allowzero=1)
