"""Decomposition of ops without a kernel into ops that have one.

Each op declares its decomposition (`@op.decompose`, in ops/). It may refuse a node (`need`); the
node then runs on its reference implementation. The attention ops are lowered to the one Attention
kernel by functions of this package, because the layers of a graph share nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.op import MICROSOFT, ONNX, always
from sardonyx.ops.builder import Builder
from sardonyx.ops.decomposition import Outputs, as_outputs, ranked
from sardonyx.passes.constant_folding import NO_LIMIT, FoldingBuilder
from sardonyx.passes.options import PassOptions
from sardonyx.passes.replace import attribute_to, drop, replace_value, try_build

# Functions of multi_head.py, which is imported only if a graph has one of the ops.
_ATTENTION: Final = {
    (MICROSOFT, "Attention"): "packed_projection",
    (MICROSOFT, "DecoderMaskedMultiHeadAttention"): "decoder_masked",
    (MICROSOFT, "DecoderMaskedSelfAttention"): "packed_projection",
    (MICROSOFT, "GroupQueryAttention"): "group_query",
    (MICROSOFT, "MultiHeadAttention"): "multi_head",
    (MICROSOFT, "QAttention"): "quantized_projection",
    (ONNX, "Attention"): "standard",
}


def decompose_ops(graph: Graph) -> None:
    """Replace each node without a CPU kernel by its decomposition, in the graph and its bodies."""
    for each in graph.family():
        # Spans nodes by their operands: attention layers of one graph share them.
        spans: dict[tuple[Any, ...], Value] = {}
        for node in list(each.nodes):
            rule = node.op.decomposition
            if node.op.key in _ATTENTION:
                from sardonyx.passes import multi_head

                lower = getattr(multi_head, _ATTENTION[node.op.key])
                decompose_node(each, node, partial(lower, spans=spans))
            elif rule is not None and rule.when(node):
                decompose_node(each, node, rule.build)


def decompose_for_device(graph: Graph, options: PassOptions) -> None:
    """Replace each node of an op that the devices have no kernel for by its decomposition."""
    assert options.device_ops is not None
    for node in list(graph.all_nodes()):
        rule = node.op.decomposition
        if rule is None:
            continue
        # Some ops have a kernel for all nodes but those that `when` selects.
        is_selected = rule.when is not always and rule.when(node)
        if is_selected or node.op.key not in options.device_ops:
            decompose_node(node.graph, node, rule.build)


def decompose_node(graph: Graph, node: Node, build: Callable[[Builder, Node], Outputs]) -> None:
    """Replace a node by its decomposition, or leave it if that refuses."""
    # Scales and other small constants are folded immediately, so that fusions see constants.
    b = FoldingBuilder(graph, NO_LIMIT)

    def built() -> Outputs:
        ranked(*[v for v in node.inputs if v is not None])
        return as_outputs(build(b, node))

    if (outputs := try_build(b, built, node.op.name, node)) is None:
        return
    attribute_to(b.new_nodes, node)
    # A decomposition may leave out outputs that have no reader.
    for old, new in zip(node.outputs, outputs, strict=False):
        if new is not None and old.is_used:
            replace_value(graph, old, new)
    drop(graph, [node])
