"""float16 and bfloat16: ops without a kernel for them, and ops after these, use float32.

The region between two such ops stays in float32 as well, so nothing is rounded inside it; only
values that leave the region are cast back.
"""

from __future__ import annotations

from typing import Final

from sardonyx.graph.const import Recipe
from sardonyx.graph.constant_values import constant
from sardonyx.graph.dtype import BF16, F16, F32
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Annotations, Graph, Node, Value
from sardonyx.graph.op import INTERNAL, MICROSOFT, ONNX
from sardonyx.ops.builder import Builder
from sardonyx.ops.elementwise.chain import ELEMENTWISE
from sardonyx.passes.replace import prune, replace_value

_FLOAT16_TYPES: Final = (F16, BF16)


def _keys(domain: str, names: str) -> frozenset[tuple[str, str]]:
    """The keys of ops of one domain, named in a string."""
    return frozenset((domain, name) for name in names.split())


# Their reference computes in float32 and rounds the result, so widening changes no bit.
_WIDENED: Final = _keys(
    ONNX,
    "Conv ConvTranspose MaxPool AveragePool LpPool LSTM GRU RNN DFT STFT RoiAlign MaxRoiPool",
) | _keys(MICROSOFT, "FusedConv MoE QMoE")
# Widened for float16 only: CPUs have matmul instructions for bfloat16.
_MATMULS: Final = _keys(ONNX, "MatMul Gemm") | _keys(MICROSOFT, "FusedMatMul")
# Ops that continue a float32 region if one of their operands is in it. Not Cast, which names its
# own type.
_FOLLOWING_OPS: Final = (
    ELEMENTWISE - {(ONNX, "Cast")}
    | _keys(
        ONNX,
        "BatchNormalization GroupNormalization InstanceNormalization LayerNormalization "
        "RMSNormalization SimplifiedLayerNormalization ReduceMean ReduceSum Softmax",
    )
    | _keys(
        MICROSOFT,
        "SimplifiedLayerNormalization SkipLayerNormalization SkipSimplifiedLayerNormalization",
    )
)
# Ops that only move elements continue it if all operands are in it: widening moves more bytes.
# Attention reads float16 keys and values of a cache directly.
_MOVE_OPS: Final = _keys(
    ONNX,
    "Concat Expand Flatten Identity Pad Reshape Resize Slice Split Squeeze Transpose Unsqueeze",
) | _keys(INTERNAL, "Attention")


def widen_float16(graph: Graph) -> None:
    """Compute in float32 where float16 has no kernel; round only what leaves such a region."""
    for each in graph.family():
        if not any(_starts_widening(node) for node in each.nodes):
            continue
        # Nodes with other annotations (training, priority) do not share casts.
        widened: dict[Annotations, dict[Value, Value]] = {}
        for node in each.sorted_nodes():
            wide = widened.setdefault(node.annotations, {})
            if _starts_widening(node) or _follows(node, wide):
                _widen(Builder(each, each.scope), node, wide)
        prune(each)


def _starts_widening(node: Node) -> bool:
    """Whether a node has no kernel for its float16 type, so that a region starts here."""
    key, x = node.op.key, node.inputs[0] if node.inputs else None
    if key not in _WIDENED and not (key in _MATMULS and _is_ieee_float16(x)):
        return False
    return _is_float16(x) and _has_ranks(node)


def _follows(node: Node, wide: dict[Value, Value]) -> bool:
    """Whether a node continues a region: it reads float32 copies and returns only float16."""
    if node.op.key not in _FOLLOWING_OPS and node.op.key not in _MOVE_OPS:
        return False
    if not all(map(_is_float16, node.outputs)) or not _has_ranks(node):
        return False
    inputs = [v for v in node.inputs if v is not None and _is_float16(v) and not v.is_const]
    # bfloat16 matmuls are not widened: elementwise ops between them stay in bfloat16, unless all of
    # their operands are float32.
    needs_all = node.op.key in _MOVE_OPS or not _is_ieee_float16(node.outputs[0])
    return bool(inputs) and (all if needs_all else any)(v in wide for v in inputs)


def _has_ranks(node: Node) -> bool:
    """Whether all ranks are known: without them the reference runs the node, in any type."""
    facts = (v.fact for v in (*node.inputs, *node.outputs) if v is not None)
    return not any(isinstance(fact, Fact) and fact.shape is None for fact in facts)


def _is_float16(value: Value | None) -> bool:
    """Whether a value is a tensor of float16 or bfloat16."""
    fact = None if value is None else value.fact
    return isinstance(fact, Fact) and fact.dtype in _FLOAT16_TYPES


def _is_ieee_float16(value: Value | None) -> bool:
    """Whether a value is a tensor of float16 proper."""
    return value is not None and _is_float16(value) and value.tensor.dtype is F16


def _float32_of(b: Builder, value: Value | None, wide: dict[Value, Value]) -> Value | None:
    """The float32 copy of a float16 value; other values are returned as they are."""
    if value is None or not _is_float16(value):
        return value
    if value not in wide:
        const = value.const
        if const is None:
            wide[value] = b.Cast(value, to=F32.onnx)
        else:  # a recipe: the weight is widened when it is packed, not now
            op, _, attrs = b.call("Cast", ONNX, {"to": F32.onnx})
            wide[value] = constant(Recipe(op, (const,), attrs, 0, (F32, const.shape)))
    return wide[value]


def _widen(b: Builder, node: Node, wide: dict[Value, Value]) -> None:
    """Replace a node by its float32 form and a Cast of each float16 output."""
    inputs = [_float32_of(b, v, wide) for v in node.inputs]
    op, n_outputs = node.op, len(node.outputs)
    widened = b.node(op.name, *inputs, outputs=n_outputs, domain=op.domain, **node.attrs)
    widened.name = node.name
    for old, new in zip(node.outputs, widened.outputs, strict=True):
        if old.fact is None:
            continue
        result = new
        if _is_float16(old):
            result = b.Cast(new, to=old.tensor.dtype.onnx)
            wide[result] = new
        replace_value(node.graph, old, result)
    for added in b.new_nodes:
        added.annotations = node.annotations
    node.graph.remove(node)
