"""Upgrades of Resize and Upsample."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.graph.graph import Value
from sardonyx.load.upgrade import OldNode, Upgrades
from sardonyx.ops.builder import Builder

UPGRADES: Final = Upgrades()

_MODES: Final = {b"bilinear": b"linear", b"trilinear": b"linear", b"bicubic": b"cubic"}


def _asymmetric(b: Builder, node: OldNode, scales: Value | None) -> Any:
    """Resize as before opset 11: asymmetric coordinates, and nearest rounds down."""
    mode = node.attr("mode", b"nearest")
    attrs = {"coordinate_transformation_mode": b"asymmetric", "nearest_mode": b"floor"}
    return b.Resize(node.required_input(0), None, scales, mode=_MODES.get(mode, mode), **attrs)


@UPGRADES.rule("Upsample")
def upsample_becomes_resize(b: Builder, node: OldNode) -> Any:
    """The scales were two attributes, one from opset 7 on, and an input from opset 9 on."""
    if node.version >= 9:
        return _asymmetric(b, node, node.input(1))
    if node.version >= 7:
        (scales,) = node.required_attrs("scales")
    else:
        scales = (1.0, 1.0, *node.required_attrs("height_scale", "width_scale"))
    return _asymmetric(b, node, b.const(np.asarray(scales, np.float32)))


@UPGRADES.rule("Resize", below=11)
def resize_is_asymmetric(b: Builder, node: OldNode) -> Any:
    """Resize of opset 10 was Upsample under another name."""
    return _asymmetric(b, node, node.input(1))
