"""Upgrades of the feature preprocessing ops of ai.onnx.ml."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.graph.op import ML
from sardonyx.load.upgrade import OldNode, Upgrades
from sardonyx.ops.builder import Builder

UPGRADES: Final = Upgrades()


@UPGRADES.rule("LabelEncoder", below=2, domain=ML)
def labels_by_position(b: Builder, node: OldNode) -> Any:
    """Version 1 mapped strings to their positions in a list, or positions to strings."""
    classes = list(node.attr("classes_strings", ()))
    return b.CategoryMapper(
        *node.inputs,
        domain=ML,
        cats_strings=classes,
        cats_int64s=np.arange(len(classes)),
        default_int64=node.attr("default_int64", -1),
        default_string=node.attr("default_string", b"_Unused"),
    )
