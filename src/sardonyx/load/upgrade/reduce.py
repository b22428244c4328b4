"""Upgrades of the reductions."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.graph.op import MICROSOFT
from sardonyx.load.upgrade import OldNode, Upgrades
from sardonyx.ops.builder import Builder

UPGRADES: Final = Upgrades()


_OTHER_REDUCTIONS: Final = (
    "ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum "
    "ReduceLogSumExp"
)


@UPGRADES.rule("ReduceSum", below=13)
@UPGRADES.rule(_OTHER_REDUCTIONS, below=18)
def axes_become_an_input(b: Builder, node: OldNode) -> Any:
    """The axes were an attribute; without them the reduction is over all axes."""
    axes = b.ints(*node.attrs["axes"]) if node.attr("axes") else None
    return b.node(node.op_type, node.input(0), axes, keepdims=node.attr("keepdims", 1)).outputs


@UPGRADES.rule("IsAllFinite", domain=MICROSOFT)
def all_finite(b: Builder, node: OldNode) -> Any:
    tests = [] if node.attr("isinf_only", 0) else ["IsNaN"]
    tests += [] if node.attr("isnan_only", 0) else ["IsInf"]
    found = [b.node(t, x).outputs[0] for x in node.inputs for t in tests]
    flags = [b.Unsqueeze(b.ReduceMax(flag, keepdims=0), b.ints(0)) for flag in found]
    return b.Not(b.ReduceMax(b.Concat(*flags, axis=0), keepdims=0))
