"""Older forms of softmax and its kin."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.graph.fact import Fact
from sardonyx.graph.op import MICROSOFT
from sardonyx.load.upgrade import ANY, OldNode, upgrade
from sardonyx.ops.builder import Builder


@upgrade("Softmax LogSoftmax Hardmax", below=13)
def over_all_behind(b: Builder, node: OldNode) -> Any:
    """Before opset 13 the input was flattened to a matrix at the axis, and its rows were taken."""
    x, axis = node.input(0), node.attr("axis", 1)
    fact = None if x is None else x.fact
    rank = fact.rank if isinstance(fact, Fact) and fact.shape is not None else None
    if axis == -1 or (rank is not None and axis == rank - 1):
        return b.node(node.op_type, x, axis=-1).outputs
    flat = b.node(node.op_type, b.Flatten(x, axis=axis), axis=1).outputs[0]
    return b.Reshape(flat, b.Shape(x), allowzero=1)


@upgrade("BiasSoftmax", below=ANY, domain=MICROSOFT)
def bias_and_softmax(b: Builder, node: OldNode) -> Any:
    """Dims of 1 in the bias say which ones it is broadcast over, is_inner_broadcast or not."""
    total = b.Add(node.input(0), node.input(1))
    flat = b.Softmax(b.Flatten(total, axis=node.attr("axis", 1)), axis=1)
    return b.Reshape(flat, b.Shape(total), allowzero=1)


UPGRADES: Final = (
    *over_all_behind,
    *bias_and_softmax,
)
