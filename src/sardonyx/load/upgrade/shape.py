"""Older forms of the ops on shapes."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.errors import InvalidGraph
from sardonyx.load.upgrade import OldNode, upgrade
from sardonyx.ops.builder import Builder


@upgrade("Reshape", below=5)
def target_becomes_an_input(b: Builder, node: OldNode) -> Any:
    """The shape was an attribute."""
    return b.Reshape(node.needed(0), b.ints(*_needed(node, "shape")))


@upgrade("Squeeze", below=13)
def squeezed_axes_become_an_input(b: Builder, node: OldNode) -> Any:
    """The axes were an attribute."""
    axes = node.attr("axes")
    return b.Squeeze(node.needed(0), None if axes is None else b.ints(*axes))


@upgrade("Unsqueeze", below=13)
def new_axes_become_an_input(b: Builder, node: OldNode) -> Any:
    """The axes were an attribute."""
    return b.Unsqueeze(node.needed(0), b.ints(*_needed(node, "axes")))


def _needed(node: OldNode, name: str) -> tuple[int, ...]:
    numbers = node.attr(name)
    if numbers is None:
        raise InvalidGraph(f"{node.op_type} of opset {node.version} needs the attribute {name}")
    return tuple(numbers)


UPGRADES: Final = (
    *target_becomes_an_input,
    *squeezed_axes_become_an_input,
    *new_axes_become_an_input,
)
