"""Half types: ops whose kernels know float32 only compute in it, and round what they give."""

from __future__ import annotations

from typing import Final

from sardonyx.graph.build import Builder, constant
from sardonyx.graph.dtype import BF16, F16, F32
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Marks, Node, Value
from sardonyx.ops.declare import MICROSOFT, ONNX
from sardonyx.passes.driver import prune
from sardonyx.weights.const import Recipe

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


# These go on in float32 where all that they read is there already.
_FOLLOWING: Final = frozenset(
    (ONNX, name)
    for name in (
        "Add", "Sub", "Mul", "Max", "Min", "Clip", "Relu", "LeakyRelu", "PRelu", "Elu", "Sigmoid",
        "Tanh", "HardSigmoid", "HardSwish", "Swish", "Mish", "Gelu", "Softplus",
    )
)  # fmt: skip


def widen_halves(graph: Graph) -> None:
    """Such nodes and what lies between them compute in float32: only what leaves is rounded."""
    for part in graph.family():
        if not any(_is_widened(n) for n in part.nodes):
            continue
        made: dict[Marks, dict[Value, Value]] = {}
        for node in part.sorted_nodes():
            wide = made.setdefault(node.marks, {})
            if _is_widened(node) or _follows(node, wide):
                _widen(Builder(part, part.scope), node, wide)
        prune(part)


def _is_widened(node: Node) -> bool:
    return node.op.key in _WIDENED and _is_half(node.inputs[0])


def _follows(node: Node, wide: dict[Value, Value]) -> bool:
    if node.op.key not in _FOLLOWING or not _is_half(node.outputs[0]):
        return False
    return all(v is None or v in wide or v.is_const for v in node.inputs)


def _is_half(value: Value | None) -> bool:
    fact = None if value is None else value.fact
    return isinstance(fact, Fact) and fact.shape is not None and fact.dtype in _HALVES


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
