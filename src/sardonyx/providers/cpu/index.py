"""Which family lowers which op; families are imported when a model has one of their ops."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Final

from sardonyx.graph.graph import Node
from sardonyx.place.provider import No
from sardonyx.providers.cpu.call import Lowered

Lowering = Callable[[Node], Lowered | No]

# Each family is a module here with a table LOWERINGS: (domain, op) -> Lowering.
FAMILIES: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "normalize": (
        ("", "BatchNormalization"),
        ("", "GroupNormalization"),
        ("", "InstanceNormalization"),
        ("", "LayerNormalization"),
        ("", "LpNormalization"),
        ("", "LRN"),
        ("", "MeanVarianceNormalization"),
        ("", "RMSNormalization"),
        ("", "SimplifiedLayerNormalization"),
        ("com.microsoft", "SkipLayerNormalization"),
        ("com.microsoft", "SkipSimplifiedLayerNormalization"),
    ),
    "reduce": (
        ("", "ArgMax"),
        ("", "ArgMin"),
        ("", "CumProd"),
        ("", "CumSum"),
        ("", "ReduceL1"),
        ("", "ReduceL2"),
        ("", "ReduceLogSum"),
        ("", "ReduceLogSumExp"),
        ("", "ReduceMax"),
        ("", "ReduceMean"),
        ("", "ReduceMin"),
        ("", "ReduceProd"),
        ("", "ReduceSum"),
        ("", "ReduceSumSquare"),
    ),
    "select": (("", "NonMaxSuppression"), ("", "TopK")),
    "softmax": (("", "Hardmax"), ("", "LogSoftmax"), ("", "Softmax")),
}
_FAMILY_OF: Final = {key: family for family, keys in FAMILIES.items() for key in keys}


@cache
def lowering(key: tuple[str, str]) -> Lowering | None:
    """How nodes of an op are lowered; None for ops without kernels."""
    family = _FAMILY_OF.get(key)
    if family is None:
        return None
    module = importlib.import_module(f"sardonyx.providers.cpu.{family}")
    made: Lowering = module.LOWERINGS[key]
    return made
