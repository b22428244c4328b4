"""Upgrades of the ops that select elements by their values."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.graph.op import MICROSOFT
from sardonyx.load.upgrade import OldNode, Upgrades
from sardonyx.ops.builder import Builder

UPGRADES: Final = Upgrades()


@UPGRADES.rule("TopK", below=10)
def k_becomes_an_input(b: Builder, node: OldNode) -> Any:
    """k was an attribute."""
    (k,), axis = node.required_attrs("k"), node.attr("axis", -1)
    return b.node("TopK", node.required_input(0), b.ints(k), outputs=2, axis=axis).outputs


@UPGRADES.rule("Unique", domain=MICROSOFT)
def unique_in_order_of_appearance(b: Builder, node: OldNode) -> Any:
    y, _, inverse, counts = b.node("Unique", node.input(0), sorted=0, outputs=4).outputs
    return y, inverse, counts
