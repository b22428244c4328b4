"""Upgrades of the ops that sample at fractional positions."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.graph.op import MICROSOFT
from sardonyx.load.upgrade import OldNode, Upgrades
from sardonyx.ops.builder import Builder

UPGRADES: Final = Upgrades()


@UPGRADES.rule("RoiAlign", below=16)
def roi_align_without_half_pixel(b: Builder, node: OldNode) -> Any:
    """Before opset 16 coordinates were not shifted by half a pixel."""
    mode = b"output_half_pixel"
    return b.RoiAlign(*node.inputs, coordinate_transformation_mode=mode, **node.attrs)


_MODES: Final = {b"bilinear": b"linear", b"trilinear": b"linear", b"bicubic": b"cubic"}


@UPGRADES.rule("GridSample", below=20)
@UPGRADES.rule("GridSample", domain=MICROSOFT)
def grid_sample_modes(b: Builder, node: OldNode) -> Any:
    """Opset 20 added volumes, and renamed bilinear and bicubic to linear and cubic."""
    mode = node.attr("mode", b"bilinear")
    return b.GridSample(*node.inputs, **{**node.attrs, "mode": _MODES.get(mode, mode)})
