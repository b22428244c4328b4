"""Older forms of Resize."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.graph import Value
from sardonyx.load.upgrade import OldNode, upgrade
from sardonyx.ops.builder import Builder

ANY_VERSION: Final = 1 << 30


_LINEAR: Final = {b"bilinear": b"linear", b"trilinear": b"linear", b"bicubic": b"cubic"}


def _from_corner(b: Builder, node: OldNode, scales: Value | None) -> Any:
    """Old resizing: positions are multiples of 1 / scale, and nearest means the one before."""
    mode = node.attr("mode", b"nearest")
    return b.Resize(
        node.needed(0),
        None,
        scales,
        mode=_LINEAR.get(mode, mode),
        coordinate_transformation_mode=b"asymmetric",
        nearest_mode=b"floor",
    )


@upgrade("Upsample", below=ANY_VERSION)
def upsample_becomes_resize(b: Builder, node: OldNode) -> Any:
    """Scales were two attributes, then one, then an input."""
    if node.version < 7:
        if "height_scale" not in node.attrs or "width_scale" not in node.attrs:
            raise InvalidGraph("Upsample has no height_scale or no width_scale")
        scales = (1.0, 1.0, node.attrs["height_scale"], node.attrs["width_scale"])
    elif node.version < 9:
        if "scales" not in node.attrs:
            raise InvalidGraph("Upsample has no scales")
        scales = node.attrs["scales"]
    else:
        return _from_corner(b, node, node.input(1))
    return _from_corner(b, node, b.const(np.asarray(scales, np.float32)))


@upgrade("Resize", below=11)
def resize_had_one_transformation(b: Builder, node: OldNode) -> Any:
    """Resize began as Upsample with another name."""
    return _from_corner(b, node, node.input(1))


UPGRADES: Final = (
    *upsample_becomes_resize,
    *resize_had_one_transformation,
)
