"""Older forms of the reductions."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.graph.op import MICROSOFT
from sardonyx.load.upgrade import ANY, OldNode, upgrade
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


@upgrade("IsAllFinite", below=ANY, domain=MICROSOFT)
def all_finite(b: Builder, node: OldNode) -> Any:
    tests = [] if node.attr("isinf_only", 0) else ["IsNaN"]
    tests += [] if node.attr("isnan_only", 0) else ["IsInf"]
    found = [b.node(t, x).outputs[0] for x in node.inputs for t in tests]
    flags = [b.Unsqueeze(b.ReduceMax(flag, keepdims=0), b.ints(0)) for flag in found]
    return b.Not(b.ReduceMax(b.Concat(*flags, axis=0), keepdims=0))


UPGRADES: Final = (
    *_sum,
    *_others,
    *all_finite,
)
