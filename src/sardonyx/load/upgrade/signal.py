"""Upgrades of the signal ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.graph import Value
from sardonyx.graph.op import MICROSOFT
from sardonyx.load.upgrade import OldNode, Upgrades
from sardonyx.ops.builder import Builder

UPGRADES: Final = Upgrades()


@UPGRADES.rule("DFT", below=20)
def axis_becomes_an_input(b: Builder, node: OldNode) -> Sequence[Value]:
    """The axis was an attribute, by default the first after the batch."""
    axis = b.const(np.int64(node.attr("axis", 1)))
    attrs = node.attrs_without("axis")
    return b.node("DFT", node.input(0), node.input(1), axis, **attrs).outputs


def _signal_axes(node: OldNode, default: int | None) -> int:
    """Return the number of signal axes; other attributes must have their only supported values."""
    count: Any = node.attr("signal_ndim", default)
    if count not in (1, 2, 3):
        raise InvalidGraph(f"signal_ndim must be 1, 2 or 3, got {count}")
    if not node.attr("onesided", 1) or node.attr("normalized", 0):
        raise InvalidGraph(f"{node.op_type} is one-sided and not normalized (onesided, normalized)")
    return int(count)


@UPGRADES.rule("Rfft", domain=MICROSOFT)
def real_fft(b: Builder, node: OldNode) -> Any:
    """A one-sided DFT of the last axis, then full DFTs of the axes before it."""
    axes = _signal_axes(node, 1)
    y = b.DFT(b.Unsqueeze(node.input(0), b.ints(-1)), None, b.const(np.int64(-2)), onesided=1)
    for axis in range(3, axes + 2):
        y = b.DFT(y, None, b.const(np.int64(-axis)))
    return y


@UPGRADES.rule("Irfft", domain=MICROSOFT)
def inverse_real_fft(b: Builder, node: OldNode) -> Any:
    """The inverse of `real_fft`, in the opposite order of axes."""
    y = node.input(0)
    for axis in range(_signal_axes(node, None) + 1, 2, -1):
        y = b.DFT(y, None, b.const(np.int64(-axis)), inverse=1)
    y = b.DFT(y, None, b.const(np.int64(-2)), onesided=1, inverse=1)
    return b.Squeeze(y, b.ints(-1))
