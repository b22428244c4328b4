"""Older forms of the ops that pick elements by their values."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.errors import InvalidGraph
from sardonyx.graph.op import MICROSOFT
from sardonyx.load.upgrade import ANY, OldNode, upgrade
from sardonyx.ops.builder import Builder


@upgrade("TopK", below=10)
def count_becomes_an_input(b: Builder, node: OldNode) -> Any:
    """How many to pick was an attribute."""
    count = node.attr("k")
    if count is None:
        raise InvalidGraph(f"TopK of opset {node.version} needs the attribute k")
    return b.node(
        "TopK", node.needed(0), b.ints(count), outputs=2, axis=node.attr("axis", -1)
    ).outputs


@upgrade("Unique", below=ANY, domain=MICROSOFT)
def in_order_of_appearance(b: Builder, node: OldNode) -> Any:
    y, _, places, counts = b.node("Unique", node.input(0), sorted=0, outputs=4).outputs
    return y, places, counts


UPGRADES: Final = (
    *count_becomes_an_input,
    *in_order_of_appearance,
)
