"""Older forms of the reductions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from sardonyx.graph.build import Builder
from sardonyx.graph.dtype import F64
from sardonyx.graph.fact import Fact
from sardonyx.load.upgrade import OldNode, upgrade


def _axes_become_an_input(b: Builder, node: OldNode) -> Any:
    """The axes were an attribute, and leaving them out meant all."""
    axes = node.attr("axes")
    given = None if not axes else b.ints(*axes)
    return b.node(node.op_type, node.input(0), given, keepdims=node.attr("keepdims", 1)).outputs


_sum = upgrade("ReduceSum", below=13)(_axes_become_an_input)
_others = upgrade(
    "ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare",
    below=18,
)(_axes_become_an_input)


@upgrade("ReduceLogSum ReduceLogSumExp", below=28)
def logarithms_of_integers(b: Builder, node: OldNode) -> Any:
    """Before opset 28 integers had logarithms too, cut to integers."""
    x = node.input(0)
    fact = None if x is None else x.fact
    is_whole = isinstance(fact, Fact) and fact.dtype.is_integer
    numbers = b.Cast(x, to=F64.onnx) if is_whole else x
    if node.version < 18:
        (y,) = _axes_become_an_input(b, replace(node, inputs=(numbers,)))
    else:
        (y,) = b.node(node.op_type, numbers, *node.inputs[1:], **node.attrs).outputs
    return b.CastLike(y, x) if is_whole else y


UPGRADES: Final = (*_sum, *_others, *logarithms_of_integers)
