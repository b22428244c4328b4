"""Optimize: tables of rules rewrite the graph, first into what any runtime runs, then only ours."""

from __future__ import annotations

from typing import Final

from sardonyx.enums import GraphOptimizationLevel as Level
from sardonyx.graph.graph import Graph
from sardonyx.pass_options import PassOptions
from sardonyx.passes import (
    activation,
    algebra,
    einsum,
    linear,
    lowering,
    normalize,
    products,
    quantize,
    resize,
    transpose,
)
from sardonyx.passes.attention import fuse_attention
from sardonyx.passes.chains import fuse_chains
from sardonyx.passes.channels import channels_last
from sardonyx.passes.driver import Rewriter, prune
from sardonyx.passes.halves import widen_halves
from sardonyx.passes.labels import number_labels
from sardonyx.passes.parts import lower_parts
from sardonyx.passes.rule import Rules, by_root

BASIC: Final = by_root(algebra.RULES, transpose.RULES, linear.BASIC)
# After the basic rules: no normalization lies between a convolution and its activation.
EXTENDED: Final = by_root(activation.RULES, normalize.RULES, linear.EXTENDED)
APPROXIMATE: Final = by_root(activation.APPROXIMATE)
STEPS: Final = by_root(quantize.STEPS)
FLOATS: Final = by_root(quantize.FLOATS)
INTEGERS: Final = by_root(quantize.INTEGERS)
WEIGHTS: Final = frozenset(("DequantizeLinear", "GatherBlockQuantized", "MatMulNBits"))
LISTS: Final = frozenset(("ConcatFromSequence", "OptionalGetElement", "SequenceAt"))
LOWERED: Final = by_root(einsum.RULES, products.RULES, resize.RULES)


def optimize(graph: Graph, options: PassOptions) -> None:
    """The portable part: standard and com.microsoft ops only. This is what `save` writes."""
    if options.level >= Level.ORT_ENABLE_BASIC:
        _rewrite(graph, BASIC, options, is_clean=False)
        if _has_any(graph, LISTS):
            from sardonyx.passes import sequences  # few models have any

            _rewrite(graph, by_root(sequences.RULES), options, is_clean=False)
    if options.level >= Level.ORT_ENABLE_EXTENDED:
        _rewrite(graph, EXTENDED, options)
        if options.approximates_gelu:
            _rewrite(graph, APPROXIMATE, options)


def lower(graph: Graph, options: PassOptions) -> None:
    """The part that needs our own ops: what kernels are made for, and fusions beyond ONNX's ops."""
    if options.for_device:
        from sardonyx.passes.device import lower_for_device

        lower_for_device(graph, options)
        return
    fuses = options.level >= Level.ORT_ENABLE_EXTENDED
    if fuses and _has_any(graph, frozenset(("ConcatFromSequence",))):
        from sardonyx.passes.sequences import collect_sequences

        collect_sequences(graph)
    lower_parts(graph)  # before sizes: masks by length are made of them
    if fuses:
        lowering.lower_sizes(graph)
    if fuses and not options.keeps_qdq:
        _rewrite(graph, STEPS, options)
        _rewrite(graph, FLOATS, options)
    number_labels(graph)
    if fuses and not options.disabled & {"fuse_attention", "AttentionFusion"}:
        fuse_attention(graph)
    if fuses:
        widen_halves(graph)  # after attention, which reads caches of halves as they are
    _rewrite(graph, INTEGERS, options)
    if not options.disabled & {"channels_last", "NhwcTransformer"}:
        channels_last(graph)
    _rewrite(graph, LOWERED, options)
    _read_weights(graph, options)  # those that have not become part of a product of integers
    prune(graph)
    if fuses:
        fuse_chains(graph)  # after all others: products are already what they will be
    if options.bf16:
        from sardonyx.passes.precision import round_products  # few sessions ask for it

        round_products(graph)


def _read_weights(graph: Graph, options: PassOptions) -> None:
    """Products and tables read weights of few bits as they are stored."""
    if not _has_any(graph, WEIGHTS):
        return
    from sardonyx.passes import nbits  # most models have no such weights

    is_disabled = options.disabled & {"read_weights", "DQMatMulNBitsFusion"}
    fuses = options.level >= Level.ORT_ENABLE_EXTENDED and not is_disabled
    nbits.read_weights(graph, nbits.choice(options), fuses)


def _has_any(graph: Graph, names: frozenset[str]) -> bool:
    return any(node.op.name in names for node in graph.all_nodes())


def _rewrite(graph: Graph, rules: Rules, options: PassOptions, is_clean: bool = True) -> None:
    Rewriter(graph, rules, options.fold_limit_bytes, options.disabled, is_clean).run()


__all__ = ["PassOptions", "lower", "optimize"]
