"""Options of the pass pipeline, without the passes: loading a pack imports none of them."""

from __future__ import annotations

from typing import Final

from sardonyx.base.enums import Named
from sardonyx.base.records import frozen


class GraphOptimizationLevel(Named):
    """How far the graph is rewritten; the names are those of onnxruntime."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


@frozen
class PassOptions:
    """Which passes run, and how."""

    level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL
    disabled: frozenset[str] = frozenset()  # rules and passes by name, or by onnxruntime's names
    fold_limit_bytes: int = 1 << 30  # the largest constant that folding may produce
    weight_level: int = 0  # accuracy_level of matmuls with dequantized n-bit weights
    approximates_gelu: bool = False  # by the tanh approximation
    keeps_qdq: bool = False  # no integer matmuls where a model quantizes and dequantizes
    weight_block: int = 0  # block size where scales have no blocks; 0: the default, -1: by K
    for_device: bool = False  # LOWER_DEVICE instead of LOWER_CPU
    bf16: bool = False  # matmuls round their operands to bfloat16, where the CPU multiplies it
    int8: bool = False  # matmuls with n-bit weights round activations to int8
    stop_after: int | None = None  # passes with a higher number are skipped; for debugging
    device_ops: frozenset[tuple[str, str]] | None = None  # for_device: ops that have kernels there
    device_fusion: bool = False  # for_device: fuse into internal ops that every device has


# Precisions that a user names, as options.
PRECISIONS: Final[dict[str, dict[str, bool]]] = {
    "exact": {},
    "bf16": {"bf16": True},
    "int8": {"int8": True},
}
