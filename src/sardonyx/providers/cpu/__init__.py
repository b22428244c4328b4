"""The CPU provider: nodes as native kernels."""

from __future__ import annotations

from sardonyx.graph.dtype import STRING
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value
from sardonyx.place.provider import No
from sardonyx.providers.cpu.call import Lowered
from sardonyx.providers.cpu.index import lowering

MAX_RANK = 10  # of a tensor that kernels take


def lowered(node: Node) -> Lowered | No:
    """What a node becomes, or why it has no kernel."""
    lower = lowering(node.op.key)
    if lower is None:
        return No(f"{node.op} has no kernel")
    for value in (*node.inputs, *node.outputs):
        if value is not None and (why := _unfit(value)):
            return No(why)
    return lower(node)


def _unfit(value: Value) -> str:
    """Why kernels cannot take a value; empty if they can."""
    fact = value.fact
    if not isinstance(fact, Fact):
        return f"{value} is no tensor"
    if fact.dtype is STRING:
        return f"{value} holds strings"
    if fact.shape is None:
        return f"the rank of {value} is not known"
    if len(fact.shape) > MAX_RANK:
        return f"{value} has more than {MAX_RANK} dims"
    return ""
