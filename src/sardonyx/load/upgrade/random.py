"""Older forms of the random ops."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.load.upgrade import OldNode, upgrade
from sardonyx.ops.builder import Builder


@upgrade("Dropout", below=12)
def ratio_becomes_an_input(b: Builder, node: OldNode) -> Any:
    """The ratio was an attribute; from opset 7 on, numbers were dropped only outside inference."""
    is_training = node.version < 7 and not node.attr("is_test", 0)
    ratio = b.const(np.float32(node.attr("ratio", 0.5)))
    mode = b.const(np.bool_(is_training))
    y, mask = b.node("Dropout", node.input(0), ratio, mode, outputs=2).outputs
    # Before opset 10 the mask had the type of the data.
    return y, mask if node.version >= 10 else b.CastLike(mask, node.input(0))


UPGRADES: Final = ratio_becomes_an_input
