"""Older forms of the attention ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sardonyx.graph.dim import same
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Value
from sardonyx.load.upgrade import OldNode, upgrade
from sardonyx.ops.builder import Builder


@upgrade("Attention", below=24)
def one_column_serves_all_keys(b: Builder, node: OldNode) -> Sequence[Value]:
    """A mask of one column was broadcast; a short mask shuts out keys since opset 24."""
    inputs = list(node.inputs)
    mask = node.input(3)
    if mask is not None and not _is_wide(mask):
        total = b.Shape(node.input(1), start=-2, end=-1)
        past = node.input(4)
        if past is not None:
            total = b.Add(total, b.Shape(past, start=2, end=3))
        inputs[3] = b.Expand(mask, total)
    return b.node("Attention", *inputs, outputs=node.n_outputs, **node.attrs).outputs


def _is_wide(mask: Value) -> bool:
    """Whether the mask is known to have more columns than one."""
    fact = mask.fact
    return isinstance(fact, Fact) and bool(fact.shape) and same(fact.dims[-1], 1) is False


UPGRADES: Final = (*one_column_serves_all_keys,)
