"""Older forms of the activations."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.load.upgrade import OldNode, upgrade
from sardonyx.ops.builder import Builder


@upgrade("Relu LeakyRelu Elu HardSigmoid", below=6)
def nothing_is_consumed(b: Builder, node: OldNode) -> Any:
    """Opset 1 told which inputs a node might overwrite (consumed_inputs)."""
    kept = {k: v for k, v in node.attrs.items() if k != "consumed_inputs"}
    return b.node(node.op_type, *node.inputs, **kept).outputs


@upgrade("Selu", below=6)
def shorter_constants(b: Builder, node: OldNode) -> Any:
    """Opset 1 had Selu's constants with fewer digits."""
    alpha, gamma = node.attr("alpha", 1.6732), node.attr("gamma", 1.0507)
    return b.Selu(*node.inputs, alpha=alpha, gamma=gamma)


@upgrade("PRelu", below=7)
def slope_per_channel(b: Builder, node: OldNode) -> Any:
    """Before opset 7 the slope was one number, or one per channel: of the second dim."""
    x, slope = node.input(0), node.input(1)
    behind = b.Max(b.Sub(b.Size(b.Shape(x)), b.ints(2)), b.ints(0))
    ones = b.Expand(b.ints(1), behind)
    return b.PRelu(x, b.Reshape(slope, b.Concat(b.ints(-1), ones, axis=0)))


UPGRADES: Final = (*nothing_is_consumed, *shorter_constants, *slope_per_channel)
