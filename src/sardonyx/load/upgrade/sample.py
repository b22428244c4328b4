"""Older forms of sampling at fractional positions."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.graph.op import MICROSOFT
from sardonyx.load.upgrade import ANY, OldNode, upgrade
from sardonyx.ops.builder import Builder


@upgrade("RoiAlign", below=16)
def pixels_were_not_shifted(b: Builder, node: OldNode) -> Any:
    """Coordinates were taken as they are, with no shift by half a pixel."""
    mode = b"output_half_pixel"
    return b.RoiAlign(*node.inputs, coordinate_transformation_mode=mode, **node.attrs)


_LINEAR: Final = {b"bilinear": b"linear", b"trilinear": b"linear", b"bicubic": b"cubic"}


@upgrade("GridSample", below=20)
def modes_lose_their_number_of_axes(b: Builder, node: OldNode) -> Any:
    """With volumes, bilinear and bicubic became linear and cubic."""
    mode = node.attr("mode", b"bilinear")
    return b.GridSample(*node.inputs, **{**node.attrs, "mode": _LINEAR.get(mode, mode)})


_MODES: Final = {b"bilinear": b"linear", b"bicubic": b"cubic"}  # as GridSample calls them now


@upgrade("GridSample", below=ANY, domain=MICROSOFT)
def modes_had_other_names(b: Builder, node: OldNode) -> Any:
    mode = node.attr("mode", b"bilinear")
    return b.GridSample(*node.inputs, **{**node.attrs, "mode": _MODES.get(mode, mode)})


UPGRADES: Final = (
    *pixels_were_not_shifted,
    *modes_lose_their_number_of_axes,
    *modes_had_other_names,
)
