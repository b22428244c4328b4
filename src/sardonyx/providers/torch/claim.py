"""Which nodes the torch provider takes, and why it does not take the others."""

from __future__ import annotations

from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value
from sardonyx.place.provider import No
from sardonyx.providers.torch.dtypes import TORCH
from sardonyx.providers.torch.index import ROWS
from sardonyx.providers.torch.row import Row


def row_of(node: Node) -> Row | No:
    """The function of a node, or why it has none."""
    row = ROWS.get(node.op.key)
    if row is None:
        return No(f"{node.op} has no function in torch")
    read = [v for i, v in enumerate(node.inputs) if v is not None and i not in row.host]
    for value in (*read, *node.outputs):
        if why := _unfit(value, row):
            return No(why)
    why = row.refuses(node)
    return No(why) if why else row


def _unfit(value: Value, row: Row) -> str:
    """Why a function cannot take a value; empty if it can."""
    fact = value.fact
    if not isinstance(fact, Fact):
        return f"{value} is no tensor"
    if fact.shape is None:
        return f"the rank of {value} is not known"
    if fact.dtype not in row.types or (fact.dtype not in TORCH and fact.dtype.bits >= 8):
        return f"its function does not take {fact.dtype}, which {value} is of"
    return ""
