"""Older forms of the matrix products."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.graph.op import MICROSOFT
from sardonyx.load.upgrade import ANY, OldNode, upgrade
from sardonyx.ops.builder import Builder


@upgrade("Gemm", below=7)
def c_always_broadcasts(b: Builder, node: OldNode) -> Any:
    """Before opset 7 an attribute said whether c may be broadcast."""
    kept = {k: v for k, v in node.attrs.items() if k != "broadcast"}
    return b.node(node.op_type, *node.inputs, **kept).outputs


@upgrade("TransposeMatMul", below=ANY, domain=MICROSOFT)
def renamed(b: Builder, node: OldNode) -> Any:
    return b.FusedMatMul(*node.inputs, domain=MICROSOFT, **node.attrs)


@upgrade("GemmFastGelu", below=ANY, domain=MICROSOFT)
def product_and_gelu(b: Builder, node: OldNode) -> Any:
    x, w = node.given(2, 3)[:2]
    return b.FastGelu(b.MatMul(x, w), node.input(2), domain=MICROSOFT)


UPGRADES: Final = (
    *c_always_broadcasts,
    *renamed,
    *product_and_gelu,
)
