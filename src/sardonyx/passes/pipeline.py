"""The pass pipeline: one table of graph passes, in the order in which they run.

`OPTIMIZE` is the target-independent part: standard and com.microsoft ops only, so that `save` can
write the result. `LOWER_CPU` then introduces Sardonyx's internal ops, which the CPU kernels
implement. `LOWER_DEVICE` replaces it for graphs that run on a device; the nodes that a device
leaves to the host still go through `LOWER_CPU`.

An entry is a whole-graph pass, `module.function(graph)`, or tables of rewrite rules that the
worklist driver (`driver.py`) applies together until a fixed point. The order is fixed: no pass is
scheduled by dependencies, and where the position matters a comment says why. The module of a pass
is imported only if the graph has the ops that it needs.

`SARDONYX_TRACE=passes` logs every pass that runs; `stop_after` N skips all passes numbered above N,
which locates a pass that changes a result (`sardonyx bisect`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from sardonyx.base.import_cache import import_module
from sardonyx.base.records import frozen
from sardonyx.graph.graph import Graph
from sardonyx.passes.options import GraphOptimizationLevel as Level
from sardonyx.passes.options import PassOptions
from sardonyx.passes.rule import Rule, Rules, by_root


@frozen
class RuleTable:
    """A tuple of rewrite rules in a module of this package."""

    path: str  # module.name
    ops: frozenset[str] = frozenset()  # every pattern has one of these; empty: any graph matches

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules; imports their module."""
        rules: tuple[Rule, ...] = _imported(self.path)
        return rules


@frozen
class Pass:
    """An entry of the pipeline: what runs, and the options and graph ops that enable it."""

    name: str
    run: str | tuple[RuleTable, ...]  # module.function(graph), or rules that one walk applies
    level: Level = Level.ORT_DISABLE_ALL  # the lowest optimization level that includes the pass
    when: Callable[[PassOptions], bool] | None = None  # a further condition on the options
    any_op: frozenset[str] = frozenset()  # runs if the graph has one of these ops; empty: always
    all_ops: frozenset[str] = frozenset()  # runs if the graph has all of these ops
    optimizers: frozenset[str] = frozenset()  # names in `options.disabled` that turn it off
    takes_options: bool = False  # run is module.function(graph, options)
    visits_all: bool = False  # rules: also folds, merges and prunes nodes that no rule matches

    def is_enabled(self, options: PassOptions) -> bool:
        """Whether level, disabled optimizers, `when` and `stop_after` let this pass run."""
        if options.level < self.level or options.disabled & self.optimizers:
            return False
        if options.stop_after is not None and number_of(self) > options.stop_after:
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
        return isinstance(self.run, str) or bool(_tables_for(self.run, ops))


def _ops(names: str) -> frozenset[str]:
    return frozenset(names.split())


_BASIC: Final = Level.ORT_ENABLE_BASIC
_EXTENDED: Final = Level.ORT_ENABLE_EXTENDED
_QUANTIZED: Final = _ops(
    "QuantizeLinear DequantizeLinear DynamicQuantizeLinear MatMulInteger ConvInteger QLinearConv "
    "DynamicQuantizeMatMul"
)
_NBITS: Final = _ops("DequantizeLinear GatherBlockQuantized MatMulNBits")
_UPDATES: Final = _ops(
    "AccumulateGradient AccumulateInPlace AdafactorUpdate AdamUpdate AdamWSequencesInPlace "
    "SGDSequencesInPlace SGDUpdate StoreState"
)
_ATTENTION: Final = _ops("fuse_attention AttentionFusion")
SEQUENCES: Final = _ops("ConcatFromSequence OptionalGetElement SequenceAt")


def _quantizes(options: PassOptions) -> bool:
    """Whether QDQ groups become integer ops."""
    return not options.keeps_qdq


def _fuses(options: PassOptions) -> bool:
    """Whether the devices implement Sardonyx's internal ops."""
    return options.device_fusion and options.level >= _EXTENDED


OPTIMIZE: Final = (
    # The first walk folds constants, merges common subexpressions and removes dead nodes, so that
    # later passes visit only the nodes that their rules can match.
    Pass(
        "simplify",
        (RuleTable("algebra.RULES"), RuleTable("conv_gemm.BASIC", _ops("Conv MatMul"))),
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
    # Before the layout of its image and gradient is decided.
    Pass(
        "fuse_weight_gradients",
        (RuleTable("conv_gradient.RULES"),),
        level=_EXTENDED,
        all_ops=_ops("Conv Transpose"),
    ),
    # After widen_float16, since kernels are for float32; before the layout of images is decided.
    Pass(
        "lower_conv_transpose",
        (RuleTable("conv_transpose.RULES", _ops("ConvTranspose")),),
        level=_EXTENDED,
    ),
    # After quantization: the layout of a QConv is decided as that of a Conv.
    Pass(
        "channels_last",
        "layout.propagate.propagate_layout",
        any_op=_ops(
            "Conv ConvTranspose FusedConv MaxPool AveragePool LpPool QConv ConvWeightGradient"
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
    # After read_weights: what no matmul reads as it is stored.
    Pass(
        "dequantize_weights",
        "nbits.float_weights.dequantize_weights",
        level=_EXTENDED,
        all_ops=_ops("DequantizeLinear"),
        any_op=_ops("Conv ConvTranspose MatMul"),
        optimizers=_ops("read_weights DQMatMulNBitsFusion"),
        takes_options=True,
    ),
    Pass("prune", "replace.prune"),
    # Last of the fusions: elementwise chains become epilogues of whatever now computes the matmul.
    Pass("fuse_chains", "elementwise_fusion.fuse_chains", level=_EXTENDED),
    Pass("round_to_bf16", "matmul.mark_bf16", when=lambda options: options.bf16),
    # Last: rewrites would remove the copies.
    Pass("copy_updated_outputs", "replace.copy_updated_outputs", any_op=_UPDATES),
    Pass("copy_fed_outputs", "replace.copy_fed_outputs", level=_EXTENDED),
)

LOWER_DEVICE: Final = (
    Pass(
        "decompose",
        "decompose.decompose_for_device",
        when=lambda options: options.device_ops is not None,
        takes_options=True,
    ),
    Pass("lower_sizes", "shape_arithmetic.lower_sizes", level=_EXTENDED),
    # The fusions below produce internal ops, so only providers that implement those run them.
    Pass("fuse_attention", "attention.fuse_attention", when=_fuses, optimizers=_ATTENTION),
    Pass("prepare_masks", "device.prepare_masks", when=_fuses, optimizers=_ATTENTION),
    # Before read_weights, which rewrites only the internal MatMul.
    Pass(
        "lower_matmul", (RuleTable("matmul.RULES"),), when=_fuses, any_op=_ops("DequantizeLinear")
    ),
    Pass(
        "read_weights",
        "nbits.matmul.read_stored_weights",
        when=_fuses,
        any_op=_NBITS,
        takes_options=True,
    ),
    Pass("fuse_nbits", "nbits.fuse.fuse_nbits_matmul", when=_fuses),
    Pass("fuse_epilogues", (RuleTable("device.RULES"),), when=_fuses),
    Pass("fuse_skip_norms", "device.fuse_skip_norms", when=_fuses),
    Pass("merge_matmuls", "device.merge_matmuls", when=_fuses),
    Pass("prune", "replace.prune"),
    Pass("fuse_chains", "device.fuse_elementwise", when=_fuses),
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
    """Run those of the passes that the options enable and the graph's ops need."""
    is_traced = os.environ.get("SARDONYX_TRACE") == "passes"
    # Collecting the ops costs a walk over the graph: only when a pass depends on them, and again
    # only after a pass has changed the graph.
    ops: frozenset[str] | None = None
    for each in passes:
        if not each.is_enabled(options):
            continue
        if ops is None and each.depends_on_ops:
            ops = frozenset({node.op.name for node in graph.all_nodes()})
        if each.applies_to(ops or frozenset()):
            n_before = _count_nodes(graph) if is_traced else 0
            fired = run_pass(each, graph, options, ops or frozenset())
            ops = None
            if is_traced:
                _trace(each, graph, n_before, fired)


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

    rules = _rules_of(_tables_for(each.run, ops))
    limit, disabled = options.fold_limit_bytes, options.disabled
    return Rewriter(graph, rules, limit, disabled, is_clean=not each.visits_all).run()


def number_of(each: Pass) -> int:
    """The number of a pass, from 1."""
    return 1 + next(i for i, other in enumerate(PIPELINE) if other is each)


def _count_nodes(graph: Graph) -> int:
    return sum(1 for _ in graph.all_nodes())


def _trace(each: Pass, graph: Graph, n_before: int, fired: Mapping[str, int]) -> None:
    """Log a pass that has run: its number and name, nodes before and after, and rules fired."""
    from sardonyx.base.log import session_logger

    rules = "".join(f", {name} {count}x" for name, count in sorted(fired.items()))
    what = (number_of(each), each.name, n_before, _count_nodes(graph), rules)
    # A logger with a fixed severity: the session's own severity must not hide the trace.
    session_logger(1).info("pass %d %s: %d -> %d nodes%s", *what)


def _imported(path: str) -> Any:
    """The function or rule table at a dotted path below this package."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(f"sardonyx.passes.{module}"), name)


def _tables_for(tables: tuple[RuleTable, ...], ops: frozenset[str]) -> tuple[RuleTable, ...]:
    """The rule tables that can match in a graph with these ops."""
    return tuple(table for table in tables if not table.ops or not table.ops.isdisjoint(ops))


@cache
def _rules_of(tables: tuple[RuleTable, ...]) -> Rules:
    """The rules of several tables by the op of their root."""
    return by_root(*(table.rules for table in tables))
