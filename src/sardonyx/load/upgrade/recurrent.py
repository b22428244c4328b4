"""Upgrades of the recurrent ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sardonyx.graph.graph import Value
from sardonyx.load.upgrade import OldNode, Upgrades
from sardonyx.ops.builder import Builder

UPGRADES: Final = Upgrades()


@UPGRADES.rule("RNN GRU LSTM", below=7)
def without_output_sequence(b: Builder, node: OldNode) -> Sequence[Value]:
    """An attribute announced the output of all time steps; naming the output is enough."""
    attrs = node.attrs_without("output_sequence")
    if attrs.get("direction") == b"foward":  # the default of GRU 1 has this spelling error
        attrs["direction"] = b"forward"
    return b.node(node.op_type, *node.inputs, outputs=node.n_outputs, **attrs).outputs
