"""What passes may be told, apart from them: a load that finds a pack never imports a pass."""

from __future__ import annotations

from typing import Final

from sardonyx.base.enums import Named
from sardonyx.base.records import frozen


class GraphOptimizationLevel(Named):
    """How far the graph is rewritten."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


@frozen
class PassOptions:
    """How far to go, what to leave out, and how large folded constants may become."""

    level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL
    disabled: frozenset[str] = frozenset()
    fold_limit_bytes: int = 1 << 30
    weight_level: int = 0  # of accuracy, for products of dequantized weights
    approximates_gelu: bool = False  # by the hyperbolic tangent
    keeps_qdq: bool = False  # no products of integers where a model quantizes and dequantizes
    weight_block: int = 0  # of these, where their scales have none; 0: the usual one, -1: by size
    for_device: bool = False  # nodes are left as providers with devices know them
    bf16: bool = False  # products round both sides to it, where the CPU multiplies it
    int8: bool = False  # products of few-bit weights round activations to it
    stop_after: int | None = None  # passes with a higher number are skipped; for debugging
    joins: bool = False  # for devices: what our own ops can say is joined


# What a user may ask for by one name, as options.
PRECISIONS: Final[dict[str, dict[str, bool]]] = {
    "exact": {},
    "bf16": {"bf16": True},
    "int8": {"int8": True},
}
