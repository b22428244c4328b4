"""Older forms of the recurrent ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sardonyx.graph.graph import Value
from sardonyx.load.upgrade import OldNode, upgrade
from sardonyx.ops.builder import Builder


@upgrade("RNN GRU LSTM", below=7)
def outputs_say_what_is_wanted(b: Builder, node: OldNode) -> Sequence[Value]:
    """An attribute announced whether the outputs of all steps are wanted; naming them is enough."""
    attrs = {k: v for k, v in node.attrs.items() if k != "output_sequence"}
    if attrs.get("direction") == b"foward":  # the default of GRU 1, spelt so in its definition
        attrs["direction"] = b"forward"
    return b.node(node.op_type, *node.inputs, outputs=node.n_outputs, **attrs).outputs


UPGRADES: Final = (*outputs_say_what_is_wanted,)
