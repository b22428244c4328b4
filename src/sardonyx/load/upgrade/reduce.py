"""Older forms of the reductions."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.load.upgrade import OldNode, upgrade
from sardonyx.ops.builder import Builder


def _axes_become_an_input(b: Builder, node: OldNode) -> Any:
    """The axes were an attribute, and leaving them out meant all."""
    axes = node.attr("axes")
    given = None if not axes else b.ints(*axes)
    return b.node(node.op_type, node.input(0), given, keepdims=node.attr("keepdims", 1)).outputs


_sum = upgrade("ReduceSum", below=13)(_axes_become_an_input)
_others = upgrade(
    "ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum "
    "ReduceLogSumExp",
    below=18,
)(_axes_become_an_input)

UPGRADES: Final = (*_sum, *_others)
