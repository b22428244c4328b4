"""Lowering of attention: each op that has no kernel to those that append, and that attend."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from sardonyx.errors import SardonyxError
from sardonyx.graph.build import Builder
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.log import logger
from sardonyx.ops.declare import MICROSOFT, ONNX
from sardonyx.passes.driver import drop
from sardonyx.passes.rule import NoMatch

# Module and function; imported where a graph has the op.
_LOWERINGS: Final = {
    (MICROSOFT, "Attention"): ("heads", "projected"),
    (MICROSOFT, "GroupQueryAttention"): ("grouped", "group_query"),
    (MICROSOFT, "MultiHeadAttention"): ("heads", "multi_head"),
    (ONNX, "Attention"): ("heads", "standard"),
}


def lower_caches(graph: Graph) -> None:
    """Makes the internal ops of each attention in a graph and the bodies in it."""
    shared: dict[tuple[Any, ...], Value] = {}
    for node in list(graph.nodes):
        found = _LOWERINGS.get(node.op.key)
        if found is not None:
            module = importlib.import_module(f"sardonyx.passes.{found[0]}")
            lower_node(graph, node, partial(getattr(module, found[1]), spans=shared))
    for node in list(graph.nodes):
        for _, body in node.subgraphs:
            lower_caches(body)


def lower_node(
    graph: Graph,
    node: Node,
    lower: Callable[[Builder, Node], tuple[Value | None, ...]],
    builder: Builder | None = None,
) -> None:
    """Puts what `lower` builds in the place of a node, or leaves it if that says no."""
    builder, n_guards = builder or Builder(graph, graph.scope), len(graph.scope.found)
    try:
        made = lower(builder, node)
    except (NoMatch, SardonyxError) as reason:
        for other in reversed(builder.made):
            graph.remove(other)
        del graph.scope.found[n_guards:]
        logger.debug("%s stays: %s", node, reason)
        return
    for other in builder.made:
        other.name, other.marks = node.name, node.marks
    for old, new in zip(node.outputs, made, strict=False):
        if new is not None and old.is_used:
            new.name, old.name = old.name, ""
            graph.replace(old, new)
    drop(graph, [node])
