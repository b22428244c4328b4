"""Older forms of the matrix products."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.load.upgrade import OldNode, upgrade
from sardonyx.ops.builder import Builder


@upgrade("Gemm", below=7)
def c_always_broadcasts(b: Builder, node: OldNode) -> Any:
    """Before opset 7 an attribute said whether c may be broadcast."""
    kept = {k: v for k, v in node.attrs.items() if k != "broadcast"}
    return b.node(node.op_type, *node.inputs, **kept).outputs


UPGRADES: Final = c_always_broadcasts
