"""Older forms of the ops that prepare features."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.graph.op import ML
from sardonyx.load.upgrade import OldNode, upgrade
from sardonyx.ops.builder import Builder


@upgrade("LabelEncoder", below=2, domain=ML)
def labels_by_position(b: Builder, node: OldNode) -> Any:
    """The first version mapped strings to positions in a list, or positions to strings."""
    classes = list(node.attr("classes_strings", ()))
    return b.CategoryMapper(
        *node.inputs,
        domain=ML,
        cats_strings=classes,
        cats_int64s=np.arange(len(classes)),
        default_int64=node.attr("default_int64", -1),
        default_string=node.attr("default_string", b"_Unused"),
    )


UPGRADES: Final = labels_by_position
