"""Older forms of the ops on regions of interest."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.load.upgrade import OldNode, upgrade
from sardonyx.ops.builder import Builder


@upgrade("RoiAlign", below=16)
def pixels_were_not_shifted(b: Builder, node: OldNode) -> Any:
    """Coordinates were taken as they are, with no shift by half a pixel."""
    mode = b"output_half_pixel"
    return b.RoiAlign(*node.inputs, coordinate_transformation_mode=mode, **node.attrs)


UPGRADES: Final = (*pixels_were_not_shifted,)
