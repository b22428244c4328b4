"""Older forms of the signal ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from sardonyx.graph.graph import Value
from sardonyx.load.upgrade import OldNode, upgrade
from sardonyx.ops.builder import Builder


@upgrade("DFT", below=20)
def axis_becomes_an_input(b: Builder, node: OldNode) -> Sequence[Value]:
    """The axis was an attribute, and the first behind the batch unless told otherwise."""
    attrs = dict(node.attrs)
    axis = b.const(np.int64(attrs.pop("axis", 1)))
    return b.node("DFT", node.input(0), node.input(1), axis, **attrs).outputs


UPGRADES: Final = (*axis_becomes_an_input,)
