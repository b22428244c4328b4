"""Optimize: tables of rules rewrite the graph, first into what any runtime runs, then only ours."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Final

from sardonyx.base.records import frozen
from sardonyx.graph.graph import Graph
from sardonyx.passes.chains import fuse_chains
from sardonyx.passes.driver import Rewriter, prune
from sardonyx.passes.lowering import lower_sizes
from sardonyx.passes.options import GraphOptimizationLevel as Level
from sardonyx.passes.options import PassOptions
from sardonyx.passes.parts import lower_parts
from sardonyx.passes.rule import Rules, by_root


@frozen
class Table:
    """Rules for graphs that have any of some ops; the others do without the import."""

    module: str  # in this folder
    name: str
    ops: frozenset[str]  # each pattern has one of these; none: every graph may have a use for it

    @property
    def rules(self) -> Rules:
        """The rules by the op that they end in."""
        found = importlib.import_module(f"sardonyx.passes.{self.module}")
        return by_root(getattr(found, self.name))


def _table(module: str, name: str, ops: str) -> Table:
    return Table(module, name, frozenset(ops.split()))


_INTEGERS: Final = (
    "QuantizeLinear DequantizeLinear DynamicQuantizeLinear MatMulInteger ConvInteger QLinearConv "
    "DynamicQuantizeMatMul"
)
BASIC: Final = (
    _table("algebra", "RULES", ""),
    _table("transpose", "RULES", "Transpose"),
    _table("linear", "BASIC", "Conv MatMul"),
)
# After the basic rules: no normalization lies between a convolution and its activation.
EXTENDED: Final = (
    _table("activation", "RULES", "Erf Tanh"),
    _table("normalize", "RULES", "ReduceMean"),
    _table("linear", "EXTENDED", "Conv"),
)
APPROXIMATE: Final = (_table("activation", "APPROXIMATE", "Gelu"),)
STEPS: Final = (_table("quantize", "STEPS", _INTEGERS),)
FLOATS: Final = (_table("quantize", "FLOATS", f"{_INTEGERS} QConv QMatMul"),)
INTEGERS: Final = (_table("quantize", "INTEGERS", _INTEGERS),)
LOWERED: Final = (
    _table("einsum", "RULES", "Einsum"),
    _table("products", "RULES", "MatMul Gemm FusedMatMul Einsum"),  # equations become products
    _table("resize", "RULES", "Resize"),
)
ATTENTION: Final = frozenset(("Softmax", "MatMul"))  # it has both
CLASSIFIERS: Final = frozenset(("LinearClassifier", "SVMClassifier", "TreeEnsembleClassifier"))
IMAGES: Final = frozenset((
    "Conv", "ConvTranspose", "FusedConv", "MaxPool", "AveragePool", "LpPool", "GlobalMaxPool",
    "GlobalAveragePool", "GlobalLpPool", "QConv", "QMean",
))  # fmt: skip
LISTS: Final = frozenset(("ConcatFromSequence", "OptionalGetElement", "SequenceAt"))
WEIGHTS: Final = frozenset(("DequantizeLinear", "GatherBlockQuantized", "MatMulNBits"))


def optimize(graph: Graph, options: PassOptions) -> None:
    """The portable part: standard and com.microsoft ops only. This is what `save` writes."""
    if options.level >= Level.ORT_ENABLE_BASIC:
        _rewrite(graph, BASIC, options, is_clean=False)
        if not LISTS.isdisjoint(_ops(graph)):
            _rewrite(graph, (_table("sequences", "RULES", ""),), options, is_clean=False)
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
    if fuses and "ConcatFromSequence" in _ops(graph):
        from sardonyx.passes.sequences import collect_sequences

        collect_sequences(graph)
    lower_parts(graph)  # before sizes: masks by length are made of them
    if fuses:
        lower_sizes(graph)
    if fuses and not options.keeps_qdq:
        _rewrite(graph, STEPS, options)
        _rewrite(graph, FLOATS, options)
    if not CLASSIFIERS.isdisjoint(_ops(graph)):
        from sardonyx.passes.labels import number_labels

        number_labels(graph)
    if fuses:
        _fuse_and_widen(graph, options)
    _rewrite(graph, INTEGERS, options)
    if not options.disabled & {"channels_last", "NhwcTransformer"}:
        _turn_images(graph)
    _rewrite(graph, LOWERED, options)
    _read_weights(graph, options)  # those that have not become part of a product of integers
    prune(graph)
    if fuses:
        fuse_chains(graph)  # after all others: products are already what they will be
    if options.bf16:
        from sardonyx.passes.precision import round_products  # few sessions ask for it

        round_products(graph)


def _fuse_and_widen(graph: Graph, options: PassOptions) -> None:
    is_disabled = options.disabled & {"fuse_attention", "AttentionFusion"}
    if not is_disabled and _ops(graph) >= ATTENTION:
        from sardonyx.passes.attention import fuse_attention

        fuse_attention(graph)
    from sardonyx.passes.halves import widen_halves

    widen_halves(graph)  # after attention, which reads caches of halves as they are


def _turn_images(graph: Graph) -> None:
    if not IMAGES.isdisjoint(_ops(graph)):
        from sardonyx.passes.channels import channels_last

        channels_last(graph)


def _read_weights(graph: Graph, options: PassOptions) -> None:
    """Products and tables read weights of few bits as they are stored."""
    if WEIGHTS.isdisjoint(_ops(graph)):
        return
    from sardonyx.passes import nbits  # most models have no such weights

    is_disabled = options.disabled & {"read_weights", "DQMatMulNBitsFusion"}
    fuses = options.level >= Level.ORT_ENABLE_EXTENDED and not is_disabled
    nbits.read_weights(graph, nbits.choice(options), fuses)


def _ops(graph: Graph) -> set[str]:
    """The ops that a graph has: one walk for all who ask for one of theirs."""
    return {node.op.name for node in graph.all_nodes()}


def _rewrite(
    graph: Graph, tables: tuple[Table, ...], options: PassOptions, is_clean: bool = True
) -> None:
    ops = _ops(graph) if any(t.ops for t in tables) else set()
    wanted = tuple(t for t in tables if not t.ops or not t.ops.isdisjoint(ops))
    if wanted:
        rules = _joined(wanted)
        Rewriter(graph, rules, options.fold_limit_bytes, options.disabled, is_clean).run()


@cache
def _joined(tables: tuple[Table, ...]) -> Rules:
    """The rules of tables in their order."""
    rules: Rules = {}
    for table in tables:
        for op, found in table.rules.items():
            rules.setdefault(op, []).extend(found)
    return rules


__all__ = ["PassOptions", "lower", "optimize"]
