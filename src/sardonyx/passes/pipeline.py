"""The pass pipeline: one table of graph passes, in the order in which they run.

`OPTIMIZE` rewrites a graph with standard and com.microsoft ops only, so that `save` can write the
result. `LOWER_CPU` then introduces Sardonyx's own ops, which the CPU kernels implement.
`LOWER_DEVICE` replaces it for graphs that run on a device; the nodes that a device leaves to the
host still go through `LOWER_CPU`.

A pass is named by module and function (or table of rewrite rules) and imported only if the graph
has the ops that it needs. `SARDONYX_TRACE=passes` logs every pass that runs; `stop_after` N skips
all passes numbered above N, which locates a pass that changes a result (`sardonyx bisect`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any, Final

from sardonyx.base.records import frozen
from sardonyx.graph.graph import Graph
from sardonyx.passes.options import GraphOptimizationLevel as Level
from sardonyx.passes.options import PassOptions
from sardonyx.passes.rule import Rules, by_root


@frozen
class RuleTable:
    """A tuple of rewrite rules in a module of this folder."""

    path: str  # module.name
    ops: frozenset[str] = frozenset()  # every pattern has one of these; empty: any graph matches

    @property
    def rules(self) -> Rules:
        """The rules by the op of their root."""
        return by_root(_imported(self.path))


@frozen
class Pass:
    """One pass: what it runs, and for which graphs and options."""

    name: str
    run: str | tuple[RuleTable, ...]  # module.function(graph), or rules that one walk applies
    level: Level = Level.ORT_DISABLE_ALL  # runs from this level on
    when: Callable[[PassOptions], bool] | None = None
    any_op: frozenset[str] = frozenset()  # runs if the graph has one of these ops; empty: always
    all_ops: frozenset[str] = frozenset()  # runs if the graph has all of these ops
    optimizers: frozenset[str] = frozenset()  # names in `options.disabled` that turn it off
    takes_options: bool = False  # run is module.function(graph, options)
    visits_all: bool = False  # rules: also folds, merges and prunes nodes that no rule matches

    def is_enabled(self, options: PassOptions) -> bool:
        """Whether the options ask for this pass."""
        if options.level < self.level or options.disabled & self.optimizers:
            return False
        return self.when is None or self.when(options)

    @property
    def depends_on_ops(self) -> bool:
        """Whether the graph's ops decide if the pass runs, or with which rules."""
        return bool(self.any_op or self.all_ops) or not isinstance(self.run, str)

    def applies_to(self, ops: frozenset[str]) -> bool:
        """Whether a graph with these ops can have anything that the pass changes."""
        if not ops >= self.all_ops or (self.any_op and ops.isdisjoint(self.any_op)):
            return False
        return isinstance(self.run, str) or bool(self.tables_for(ops))

    def tables_for(self, ops: frozenset[str]) -> tuple[RuleTable, ...]:
        """The rule tables that can match in a graph with these ops."""
        assert not isinstance(self.run, str)
        return tuple(t for t in self.run if not t.ops or not t.ops.isdisjoint(ops))


def _ops(names: str) -> frozenset[str]:
    return frozenset(names.split())


_BASIC: Final = Level.ORT_ENABLE_BASIC
_EXTENDED: Final = Level.ORT_ENABLE_EXTENDED
_QUANTIZED: Final = _ops(
    "QuantizeLinear DequantizeLinear DynamicQuantizeLinear MatMulInteger ConvInteger QLinearConv "
    "DynamicQuantizeMatMul"
)
_NBITS: Final = _ops("DequantizeLinear GatherBlockQuantized MatMulNBits")
_ATTENTION: Final = _ops("fuse_attention AttentionFusion")
_NO_OPS: Final[frozenset[str]] = frozenset()
SEQUENCES: Final = _ops("ConcatFromSequence OptionalGetElement SequenceAt")


def _quantizes(options: PassOptions) -> bool:
    return not options.keeps_qdq


def _joins(options: PassOptions) -> bool:
    """Whether every device implements Sardonyx's own ops."""
    return options.device_fusion and options.level >= _EXTENDED


OPTIMIZE: Final = (
    # The first walk folds constants, merges common subexpressions and removes dead nodes, so that
    # later passes visit only the nodes that their rules can match.
    Pass(
        "simplify",
        (
            RuleTable("algebra.RULES"),
            RuleTable("transpose.RULES", _ops("Transpose")),
            RuleTable("conv_gemm.BASIC", _ops("Conv MatMul")),
        ),
        level=_BASIC,
        visits_all=True,
    ),
    Pass(
        "eliminate_sequences",
        (RuleTable("sequences.RULES"),),
        level=_BASIC,
        any_op=SEQUENCES,
        visits_all=True,  # what is read from a sequence may now be constant
    ),
    # After simplify, which folds a BatchNormalization between a Conv and its activation.
    Pass(
        "fuse",
        (
            RuleTable("activation.RULES", _ops("Erf Tanh")),
            RuleTable("normalize.RULES", _ops("ReduceMean")),
            RuleTable("conv_gemm.EXTENDED", _ops("Conv")),
        ),
        level=_EXTENDED,
    ),
    # After fuse, which recognizes the Gelu.
    Pass(
        "approximate_gelu",
        (RuleTable("activation.APPROXIMATE", _ops("Gelu")),),
        level=_EXTENDED,
        when=lambda options: options.approximates_gelu,
    ),
)

LOWER_CPU: Final = (
    Pass(
        "collect_sequences",
        "sequences.collect_sequences",
        level=_EXTENDED,
        any_op=_ops("ConcatFromSequence"),
    ),
    # Before lower_sizes: masks by sequence length are built of shape arithmetic.
    Pass("decompose", "decompose.decompose_ops"),
    Pass("lower_sizes", "shape_arithmetic.lower_sizes", level=_EXTENDED),
    # Quantized results first: a matmul whose result is quantized must not end in float32.
    Pass(
        "quantize",
        (RuleTable("quantize.QUANTIZED_RESULTS", _QUANTIZED),),
        level=_EXTENDED,
        when=_quantizes,
    ),
    Pass(
        "quantize_to_float",
        (RuleTable("quantize.FLOAT_RESULTS", _QUANTIZED | _ops("QConv QMatMul")),),
        level=_EXTENDED,
        when=_quantizes,
    ),
    Pass(
        "number_labels",
        "class_labels.number_labels",
        any_op=_ops("LinearClassifier SVMClassifier TreeEnsembleClassifier"),
    ),
    Pass(
        "fuse_attention",
        "attention.fuse_attention",
        level=_EXTENDED,
        all_ops=_ops("Softmax MatMul"),
        optimizers=_ATTENTION,
    ),
    # After fuse_attention, whose kernels read float16 keys and values directly.
    Pass("widen_float16", "float16.widen_float16", level=_EXTENDED),
    Pass("lower_integer_ops", (RuleTable("quantize.INTEGER_OPS", _QUANTIZED),)),
    # After quantization: the layout of a QConv is decided as that of a Conv.
    Pass(
        "channels_last",
        "layout.propagate.propagate_layout",
        any_op=_ops(
            "Conv ConvTranspose FusedConv MaxPool AveragePool LpPool GlobalMaxPool "
            "GlobalAveragePool GlobalLpPool QConv QMean"
        ),
        optimizers=_ops("channels_last NhwcTransformer"),
    ),
    Pass(
        "lower_matmul",
        (
            RuleTable("einsum.RULES", _ops("Einsum")),
            RuleTable("matmul.RULES", _ops("MatMul Gemm FusedMatMul Einsum")),  # Einsum: MatMuls
            RuleTable("resize.RULES", _ops("Resize")),
        ),
    ),
    # After quantize: weights that an integer matmul reads are int8 already.
    Pass("read_weights", "nbits.matmul.read_stored_weights", any_op=_NBITS, takes_options=True),
    Pass("prune", "replace.prune"),
    # Last of the fusions: elementwise chains become epilogues of whatever now computes the matmul.
    Pass("fuse_chains", "elementwise_fusion.fuse_chains", level=_EXTENDED),
    Pass("round_to_bf16", "bf16.mark_bf16", when=lambda options: options.bf16),
)

LOWER_DEVICE: Final = (
    Pass(
        "decompose",
        "decompose.decompose_for_device",
        when=lambda options: options.device_ops is not None,
        takes_options=True,
    ),
    Pass("lower_sizes", "shape_arithmetic.lower_sizes", level=_EXTENDED),
    # From here on only providers that implement Sardonyx's own ops.
    Pass("fuse_attention", "attention.fuse_attention", when=_joins, optimizers=_ATTENTION),
    Pass("prepare_masks", "device.prepare_masks", when=_joins, optimizers=_ATTENTION),
    # Before read_weights, which rewrites only the internal MatMul.
    Pass(
        "lower_matmul", (RuleTable("matmul.RULES"),), when=_joins, any_op=_ops("DequantizeLinear")
    ),
    Pass(
        "read_weights",
        "nbits.matmul.read_stored_weights",
        when=_joins,
        any_op=_NBITS,
        takes_options=True,
    ),
    Pass("fuse_nbits", "nbits.fuse.fuse_nbits_matmul", when=_joins),
    Pass("fuse_epilogues", (RuleTable("device.RULES"),), when=_joins),
    Pass("fuse_skip_norms", "device.fuse_skip_norms", when=_joins),
    Pass("merge_matmuls", "device.merge_matmuls", when=_joins),
    Pass("prune", "replace.prune"),
    Pass("fuse_chains", "device.fuse_elementwise", when=_joins),
)

# A pass's number, from 1, is its position here.
PIPELINE: Final = (*OPTIMIZE, *LOWER_CPU, *LOWER_DEVICE)


def optimize(graph: Graph, options: PassOptions) -> None:
    """Optimize a graph with standard and com.microsoft ops only; `save` writes this graph."""
    run_passes(OPTIMIZE, graph, options)


def lower(graph: Graph, options: PassOptions) -> None:
    """Lower a graph to the ops that the kernels of the CPU, or of a device, implement."""
    run_passes(LOWER_DEVICE if options.for_device else LOWER_CPU, graph, options)


def run_passes(passes: tuple[Pass, ...], graph: Graph, options: PassOptions) -> None:
    """Run those of the passes that the options and the graph's ops ask for."""
    tracer = _Tracer(graph) if os.environ.get("SARDONYX_TRACE") == "passes" else None
    ops: frozenset[str] | None = None  # None: a pass has run since they were collected
    for each in _selected(passes, options):
        if ops is None and each.depends_on_ops:
            ops = frozenset({node.op.name for node in graph.all_nodes()})
        if each.applies_to(ops or _NO_OPS):
            fired = run_pass(each, graph, options, ops or _NO_OPS)
            ops = None
            if tracer is not None:
                tracer.log(each, fired)


def _selected(passes: tuple[Pass, ...], options: PassOptions) -> Iterator[Pass]:
    """The passes that the options ask for, up to the one to stop after."""
    for each in passes:
        is_reached = options.stop_after is None or number_of(each) <= options.stop_after
        if is_reached and each.is_enabled(options):
            yield each


def run_pass(
    each: Pass, graph: Graph, options: PassOptions, ops: frozenset[str]
) -> Mapping[str, int]:
    """Run one pass over a graph; return how often each rewrite rule fired.

    Tests replace this function by one that also verifies the graph.
    """
    if isinstance(each.run, str):
        function = _imported(each.run)
        function(graph, options) if each.takes_options else function(graph)
        return {}
    from sardonyx.passes.driver import Rewriter

    rules = _joined(each.tables_for(ops))
    limit, disabled = options.fold_limit_bytes, options.disabled
    return Rewriter(graph, rules, limit, disabled, is_clean=not each.visits_all).run()


def number_of(each: Pass) -> int:
    """The number of a pass, from 1."""
    return 1 + next(i for i, other in enumerate(PIPELINE) if other is each)


class _Tracer:
    """Logs each pass that runs: its number and name, the nodes before and after, rules fired."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._n_nodes = self._count()

    def log(self, each: Pass, fired: Mapping[str, int]) -> None:
        """Log a pass that has just run."""
        from sardonyx.base.log import session_logger

        before, self._n_nodes = self._n_nodes, self._count()
        rules = "".join(f", {name} {count}x" for name, count in sorted(fired.items()))
        # At a severity of its own, so that it shows whatever the session's severity is.
        session_logger(1).info(
            "pass %d %s: %d -> %d nodes%s",
            number_of(each), each.name, before, self._n_nodes, rules,
        )  # fmt: skip

    def _count(self) -> int:
        return sum(1 for _ in self._graph.all_nodes())


def _imported(path: str) -> Any:
    """What a dotted path below this folder names."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(f"sardonyx.passes.{module}"), name)


@cache
def _joined(tables: tuple[RuleTable, ...]) -> Rules:
    """The rules of several tables, in the order of the tables."""
    rules: Rules = {}
    for table in tables:
        for op, found in table.rules.items():
            rules.setdefault(op, []).extend(found)
    return rules
