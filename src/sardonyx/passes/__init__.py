"""Optimize: the graph rewritten by tables of rules. First what any ONNX runtime can run, then what only ours can."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.enums import GraphOptimizationLevel
from sardonyx.graph.graph import Graph


@dataclass(frozen=True, slots=True)
class PassOptions:
    """How far to go, what to leave out, and how large folded constants may become."""

    level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL
    disabled: frozenset[str] = frozenset()
    fold_limit_bytes: int = 1 << 30


def optimize(graph: Graph, options: PassOptions) -> None:
    """The portable part: standard and com.microsoft ops only. This is what `save` writes."""


def lower(graph: Graph, options: PassOptions) -> None:
    """The part that needs our own ops."""
