"""Options of the pass pipeline, without the passes: loading a pack imports none of them."""

from __future__ import annotations

from typing import Final

from sardonyx.base.enums import Named
from sardonyx.base.records import frozen


class GraphOptimizationLevel(Named):
    """How far the graph is rewritten; the names are those of onnxruntime."""

    ORT_DISABLE_ALL = 0  # only what kernels need: decompositions, layouts, internal ops
    ORT_ENABLE_BASIC = 1  # folding, common subexpressions, algebra, BatchNormalization into Conv
    ORT_ENABLE_EXTENDED = 2  # fusions: activations, attention, quantized ops, elementwise chains
    # No pass needs a level above EXTENDED: layouts are chosen at every level (`channels_last`).
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


# As the command line and messages name the levels.
LEVELS: Final = {
    "none": GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "layout": GraphOptimizationLevel.ORT_ENABLE_LAYOUT,
    "all": GraphOptimizationLevel.ORT_ENABLE_ALL,
}


@frozen
class PassOptions:
    """Options of graph optimization and lowering; `pipeline.py` lists the passes they control.

    The field names are part of the pack format: a pack records the options that it was made with.
    """

    level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL
    # Rules and passes to skip, by their names or those of onnxruntime's optimizers (GeluFusion,
    # ConstantFolding, NhwcTransformer).
    disabled: frozenset[str] = frozenset()
    fold_limit_bytes: int = 1 << 30  # the largest constant that constant folding may produce
    weight_level: int = 0  # accuracy_level of QDQ matmuls with n-bit weights; 4: int8 activations
    approximates_gelu: bool = False  # replace Gelu by its tanh approximation
    keeps_qdq: bool = False  # keep QuantizeLinear/DequantizeLinear pairs: no integer matmuls
    # Block size of int8 activations where the weight scales have no blocks; 0: 32, -1: chosen by K.
    weight_block: int = 0
    for_device: bool = False  # run LOWER_DEVICE instead of LOWER_CPU
    bf16: bool = False  # round matmul operands to bfloat16 on CPUs with bfloat16 instructions
    int8: bool = False  # round the activations of matmuls with n-bit weights to int8
    stop_after: int | None = None  # skip passes with a higher number; for debugging
    # With for_device: (domain, name) of the ops with device kernels; the others are decomposed.
    device_ops: frozenset[tuple[str, str]] | None = None
    device_fusion: bool = False  # with for_device: every device implements the internal ops


# The values of the session option `sardonyx.precision`, as the options they stand for.
PRECISIONS: Final[dict[str, dict[str, bool]]] = {
    "exact": {},
    "bf16": {"bf16": True},
    "int8": {"int8": True},
}
