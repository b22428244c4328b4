"""Lowering for providers with devices of their own, which take ops as ONNX has them."""

from __future__ import annotations

from sardonyx.enums import GraphOptimizationLevel as Level
from sardonyx.graph.graph import Graph
from sardonyx.pass_options import PassOptions
from sardonyx.passes import lowering
from sardonyx.passes.attention import fuse_attention
from sardonyx.passes.driver import prune


def lower_for_device(graph: Graph, options: PassOptions) -> None:
    """Sizes leave the graph, and what devices have one kernel for becomes one node."""
    if options.level >= Level.ORT_ENABLE_EXTENDED:
        lowering.lower_sizes(graph)
        fuse_attention(graph)
    prune(graph)
