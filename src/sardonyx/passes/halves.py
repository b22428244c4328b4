"""Half types: products, and ops whose kernels know float32 only, compute in float32.

So does what follows them: between two such nodes nothing is rounded.
"""

from __future__ import annotations

from typing import Final

from sardonyx.graph.const import Recipe
from sardonyx.graph.constant import constant
from sardonyx.graph.dtype import BF16, F16, F32
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Marks, Node, Value
from sardonyx.graph.op import INTERNAL, MICROSOFT, ONNX
from sardonyx.ops.builder import Builder
from sardonyx.ops.elementwise.chain import ELEMENTWISE
from sardonyx.passes.driver import prune

_HALVES: Final = (F16, BF16)
# A float32 result of these, rounded, is what their references give in a half type.
_WIDENED: Final = frozenset(
    (
        *((ONNX, name) for name in (
            "Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool", "GlobalAveragePool",
            "GlobalMaxPool", "GlobalLpPool", "LSTM", "GRU", "RNN", "DFT", "STFT",
            "RoiAlign", "MaxRoiPool",
        )),
        (MICROSOFT, "FusedConv"),
        (MICROSOFT, "MoE"),
        (MICROSOFT, "QMoE"),
    )
)  # fmt: skip
# Those of f16 alone: CPUs multiply bf16 as it is, and so what follows is not widened for it.
_PRODUCTS: Final = frozenset(((ONNX, "MatMul"), (ONNX, "Gemm"), (MICROSOFT, "FusedMatMul")))
# What goes on in float32: the first where some of their operands are there in it, the others where
# all are. A cast says its type itself.
_FOLLOW: Final = ELEMENTWISE - {(ONNX, "Cast")} | frozenset(
    (
        *((ONNX, name) for name in (
            "BatchNormalization", "GroupNormalization", "InstanceNormalization",
            "LayerNormalization", "RMSNormalization", "ReduceMean", "ReduceSum", "Softmax",
        )),
        *((MICROSOFT, name) for name in (
            "SimplifiedLayerNormalization", "SkipLayerNormalization",
            "SkipSimplifiedLayerNormalization",
        )),
        (ONNX, "SimplifiedLayerNormalization"),
    )
)  # fmt: skip
_MOVE: Final = frozenset(
    (
        *((ONNX, name) for name in (
            "Concat", "Expand", "Flatten", "Identity", "Pad", "Reshape", "Resize", "Slice", "Split",
            "Squeeze", "Transpose", "Unsqueeze",
        )),
        (INTERNAL, "Attention"),  # keys and values of a cache are read as they are
    )
)  # fmt: skip


def widen_halves(graph: Graph) -> None:
    """Such nodes and what lies between them compute in float32: only what leaves is rounded."""
    for part in graph.family():
        if not any(_is_first(node) for node in part.nodes):
            continue
        made: dict[Marks, dict[Value, Value]] = {}
        for node in part.sorted_nodes():
            wide = made.setdefault(node.marks, {})
            if _is_first(node) or _follows(node, wide):
                _widen(Builder(part, part.scope), node, wide)
        prune(part)


def _is_first(node: Node) -> bool:
    key, x = node.op.key, node.inputs[0] if node.inputs else None
    if key not in _WIDENED and not (key in _PRODUCTS and _is_f16(x)):
        return False
    return _is_half(x) and _has_ranks(node)


def _follows(node: Node, wide: dict[Value, Value]) -> bool:
    """Whether a node of a half type reads what is there in float32, and gives only halves."""
    if node.op.key not in _FOLLOW and node.op.key not in _MOVE:
        return False
    if not all(map(_is_half, node.outputs)) or not _has_ranks(node):
        return False
    given = [v in wide for v in node.inputs if v is not None and _is_half(v) and not v.is_const]
    needs_all = node.op.key in _MOVE or not _is_f16(node.outputs[0])
    return bool(given) and (all if needs_all else any)(given)


def _has_ranks(node: Node) -> bool:
    """Whether a kernel may run the node: without all ranks its reference does, in any type."""
    values = (*node.inputs, *node.outputs)
    facts = [v.fact for v in values if v is not None]
    return not any(isinstance(fact, Fact) and fact.shape is None for fact in facts)


def _is_half(value: Value | None) -> bool:
    fact = None if value is None else value.fact
    return isinstance(fact, Fact) and fact.dtype in _HALVES


def _is_f16(value: Value | None) -> bool:
    return value is not None and _is_half(value) and value.tensor.dtype is F16


def _wide(b: Builder, value: Value | None, wide: dict[Value, Value]) -> Value | None:
    if value is None or not _is_half(value):
        return value
    if value not in wide:
        const = value.const
        if const is None:
            wide[value] = b.Cast(value, to=F32.onnx)
        else:  # larger than in its file, as every packed form of it is
            op, _, attrs = b.call("Cast", ONNX, {"to": F32.onnx})
            wide[value] = constant(Recipe(op, (const,), attrs, 0, (F32, const.shape)))
    return wide[value]


def _widen(b: Builder, node: Node, wide: dict[Value, Value]) -> None:
    inputs = [_wide(b, v, wide) for v in node.inputs]
    made = b.node(
        node.op.name, *inputs, outputs=len(node.outputs), domain=node.op.domain, **node.attrs
    )
    made.name = node.name
    for old, new in zip(node.outputs, made.outputs, strict=True):
        if old.fact is None:
            continue
        result = new
        if _is_half(old):
            result = b.Cast(new, to=old.tensor.dtype.onnx)
            wide[result] = new
        result.name, old.name = old.name, ""
        node.graph.replace(old, result)
    for new_node in b.made:
        new_node.marks = node.marks
    node.graph.remove(node)
