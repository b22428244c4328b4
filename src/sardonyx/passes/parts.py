"""Lowering of ops that have no kernel to those that have: attention, and what is made of parts."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from sardonyx.base.log import logger
from sardonyx.errors import SardonyxError
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.op import MICROSOFT, ONNX
from sardonyx.ops.builder import Builder
from sardonyx.passes.driver import drop
from sardonyx.passes.fold import FoldingBuilder
from sardonyx.passes.rule import NoMatch

Lower = Callable[[Builder, Node], tuple[Value | None, ...]]

# Module and function; imported where a graph has the op.
_ATTENTION: Final = {
    (MICROSOFT, "Attention"): ("heads", "projected"),
    (MICROSOFT, "DecoderMaskedMultiHeadAttention"): ("heads", "masked"),
    (MICROSOFT, "DecoderMaskedSelfAttention"): ("heads", "masked_self"),
    (MICROSOFT, "GroupQueryAttention"): ("grouped", "group_query"),
    (MICROSOFT, "MultiHeadAttention"): ("heads", "multi_head"),
    (ONNX, "Attention"): ("heads", "standard"),
}
_PARTS: Final = {
    (MICROSOFT, "BranchwiseRMSNorm"): ("streams", "branch_norm"),
    (MICROSOFT, "CDist"): ("microsoft", "cdist"),
    (MICROSOFT, "CausalConvWithState"): ("microsoft", "causal_conv"),
    (MICROSOFT, "ConvTransposeWithDynamicPads"): ("microsoft", "late_pads"),
    (MICROSOFT, "EmbedLayerNormalization"): ("microsoft", "embed"),
    (MICROSOFT, "EngramGate"): ("streams", "engram"),
    (MICROSOFT, "FusedGemm"): ("microsoft", "fused_gemm"),
    (MICROSOFT, "FusedMatMulActivation"): ("microsoft", "matmul_activation"),
    (MICROSOFT, "GroupNorm"): ("microsoft", "group_norm"),
    (MICROSOFT, "HyperConnectionPostMix"): ("streams", "post_mix"),
    (MICROSOFT, "HyperConnectionPreMix"): ("streams", "pre_mix"),
    (MICROSOFT, "MRotaryEmbedding"): ("microsoft", "multi_rotary"),
    (MICROSOFT, "NhwcConv"): ("microsoft", "nhwc_conv"),
    (MICROSOFT, "NhwcFusedConv"): ("microsoft", "nhwc_conv"),
    (MICROSOFT, "SkipGroupNorm"): ("microsoft", "group_norm"),
    (MICROSOFT, "UnfoldTensor"): ("microsoft", "unfold"),
    (ONNX, "CausalConvWithState"): ("microsoft", "causal_conv"),
    (ONNX, "DeformConv"): ("composed", "deform_conv"),
    (ONNX, "MaxUnpool"): ("composed", "max_unpool"),
    (ONNX, "Unique"): ("composed", "unique"),
}

# Standard ops between two kinds of numbers.
QUANTIZED: Final = frozenset(
    (MICROSOFT, name)
    for name in (
        "DequantizeLinear", "DynamicQuantizeLSTM", "MatMulBnb4", "NhwcMaxPool", "QAttention",
        "QEmbedLayerNormalization", "QGemm", "QLinearAdd", "QLinearAveragePool", "QLinearConcat",
        "QLinearConv", "QLinearGlobalAveragePool", "QLinearLeakyRelu", "QLinearMul",
        "QLinearReduceMean", "QLinearSigmoid", "QLinearSoftmax", "QLinearWhere", "QuantizeLinear",
    )
)  # fmt: skip
_LARGEST: Final = 1 << 40  # bytes of a constant that is made of others, which none outgrows


def lower_parts(graph: Graph) -> None:
    """Makes what there are kernels for, of each such op in a graph and the bodies in it."""
    shared: dict[tuple[Any, ...], Value] = {}
    for node in list(graph.nodes):
        key = node.op.key
        if key in _ATTENTION:
            lower_node(graph, node, partial(_function(*_ATTENTION[key]), spans=shared))
        elif key in _PARTS:
            lower_node(graph, node, _function(*_PARTS[key]))
        elif key in QUANTIZED:
            folding = FoldingBuilder(graph, _LARGEST)
            lower_node(graph, node, _function("qlinear", "lowered"), folding)
    for node in list(graph.nodes):
        for _, body in node.subgraphs:
            lower_parts(body)


def _function(module: str, name: str) -> Callable[..., Any]:
    made: Callable[..., Any] = getattr(importlib.import_module(f"sardonyx.passes.{module}"), name)
    return made


def lower_node(graph: Graph, node: Node, lower: Lower, builder: Builder | None = None) -> None:
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
