"""Decomposition of ops without a kernel into ops that have one.

The tables name, for each op, the module and function that builds its decomposition. A function may
refuse a node (`need`); the node then runs on its reference implementation.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.op import MICROSOFT, ONNX
from sardonyx.ops.builder import Builder
from sardonyx.passes.constant_folding import FoldingBuilder
from sardonyx.passes.replace import attribute_to, drop, replace_value, try_build

Decomposition = Callable[[Builder, Node], tuple[Value | None, ...]]

# Module and function; imported only if a graph has the op. Attention ops of a graph share Spans.
_ATTENTION: Final = {
    (MICROSOFT, "Attention"): ("multi_head", "packed_projection"),
    (MICROSOFT, "DecoderMaskedMultiHeadAttention"): ("multi_head", "decoder_masked"),
    (MICROSOFT, "DecoderMaskedSelfAttention"): ("multi_head", "decoder_masked_self"),
    (MICROSOFT, "GroupQueryAttention"): ("group_query", "group_query"),
    (MICROSOFT, "MultiHeadAttention"): ("multi_head", "multi_head"),
    (ONNX, "Attention"): ("multi_head", "standard"),
}
# Ops with a fixed decomposition.
_DECOMPOSITIONS: Final = {
    (MICROSOFT, "BranchwiseRMSNorm"): ("hyper_connections", "branch_norm"),
    (MICROSOFT, "CDist"): ("microsoft", "cdist"),
    (MICROSOFT, "CausalConvWithState"): ("microsoft", "causal_conv"),
    (MICROSOFT, "ConvTransposeWithDynamicPads"): ("microsoft", "late_pads"),
    (MICROSOFT, "EmbedLayerNormalization"): ("microsoft", "embed"),
    (MICROSOFT, "EngramGate"): ("hyper_connections", "engram"),
    (MICROSOFT, "FusedGemm"): ("microsoft", "fused_gemm"),
    (MICROSOFT, "FusedMatMulActivation"): ("microsoft", "matmul_activation"),
    (MICROSOFT, "GroupNorm"): ("microsoft", "group_norm"),
    (MICROSOFT, "HyperConnectionPostMix"): ("hyper_connections", "post_mix"),
    (MICROSOFT, "HyperConnectionPreMix"): ("hyper_connections", "pre_mix"),
    (MICROSOFT, "MRotaryEmbedding"): ("microsoft", "multi_rotary"),
    (MICROSOFT, "NhwcConv"): ("microsoft", "nhwc_conv"),
    (MICROSOFT, "NhwcFusedConv"): ("microsoft", "nhwc_conv"),
    (MICROSOFT, "SkipGroupNorm"): ("microsoft", "group_norm"),
    (MICROSOFT, "UnfoldTensor"): ("microsoft", "unfold"),
    (ONNX, "CausalConvWithState"): ("microsoft", "causal_conv"),
    (ONNX, "DeformConv"): ("standard_ops", "deform_conv"),
    (ONNX, "MaxUnpool"): ("standard_ops", "max_unpool"),
    (ONNX, "Unique"): ("standard_ops", "unique"),
}

# Quantized ops, decomposed by qlinear.py into dequantization, the standard op and quantization.
QUANTIZED: Final = frozenset(
    (MICROSOFT, name)
    for name in (
        "DequantizeLinear", "DynamicQuantizeLSTM", "MatMulBnb4", "NhwcMaxPool", "QAttention",
        "QEmbedLayerNormalization", "QGemm", "QLinearAdd", "QLinearAveragePool", "QLinearConcat",
        "QLinearConv", "QLinearGlobalAveragePool", "QLinearLeakyRelu", "QLinearMul",
        "QLinearReduceMean", "QLinearSigmoid", "QLinearSoftmax", "QLinearWhere", "QuantizeLinear",
    )
)  # fmt: skip
_NO_LIMIT: Final = 1 << 40  # bytes of a folded constant: dequantized weights of any size


def decompose_ops(graph: Graph) -> None:
    """Decompose each such op in a graph and the bodies in it."""
    # Spans nodes by their operands: attention layers of one graph share them.
    shared: dict[tuple[Any, ...], Value] = {}
    for node in list(graph.nodes):
        key = node.op.key
        if key in _ATTENTION:
            decompose_node(graph, node, partial(_function(*_ATTENTION[key]), spans=shared))
        elif key in _DECOMPOSITIONS:
            decompose_node(graph, node, _function(*_DECOMPOSITIONS[key]))
        elif key in QUANTIZED:
            # Scales are folded at once, so that fusions see constants.
            folding = FoldingBuilder(graph, _NO_LIMIT)
            decompose_node(graph, node, _function("qlinear", "decomposed"), folding)
    for node in list(graph.nodes):
        for _, body in node.subgraphs:
            decompose_ops(body)


def _function(module: str, name: str) -> Callable[..., Any]:
    """The function that decomposes an op."""
    found: Callable[..., Any] = getattr(importlib.import_module(f"sardonyx.passes.{module}"), name)
    return found


def decompose_node(
    graph: Graph, node: Node, decompose: Decomposition, builder: Builder | None = None
) -> None:
    """Replace a node by its decomposition, or leave it if `decompose` refuses."""
    b = builder or Builder(graph, graph.scope)
    outputs = try_build(b, lambda: decompose(b, node), node.op.name, node)
    if outputs is None:
        return
    attribute_to(b.made, node)
    for old, new in zip(node.outputs, outputs, strict=False):
        if new is not None and old.is_used:
            replace_value(graph, old, new)
    drop(graph, [node])
