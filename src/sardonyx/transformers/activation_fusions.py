"""Fusions of activations: Gelu in its forms, with or without a bias."""

from __future__ import annotations

from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.graph.op import MICROSOFT, ONNX
from sardonyx.ops.decomposition import need, present
from sardonyx.passes.rule import scalar
from sardonyx.transformers.fusion import FusionBuilder, Replaced


def gelu(b: FusionBuilder, node: Node) -> Replaced:
    """Replace Gelu (opset 20) by Gelu of com.microsoft, which models of older opsets can have."""
    need(node.op.key == (ONNX, "Gelu"), "not a Gelu")
    x, y = input_of(node, 0), node.outputs[0]
    is_tanh = node.attrs["approximate"] == b"tanh"
    b.prefix = "FastGelu" if is_tanh else "Gelu"
    return {y: b.node(b.prefix, x, domain=MICROSOFT).outputs[0]}


def approximate_gelu(b: FusionBuilder, node: Node) -> Replaced:
    """Replace Gelu by its tanh approximation, FastGelu."""
    names = ("Gelu", "BiasGelu")
    need(node.op.key in ((ONNX, "Gelu"), *((MICROSOFT, n) for n in names)), "not a Gelu")
    return {node.outputs[0]: b.node("FastGelu", *node.inputs, domain=MICROSOFT).outputs[0]}


def quick_gelu(b: FusionBuilder, node: Node) -> Replaced:
    """QuickGelu: x * sigmoid(alpha x)."""
    need(node.op.key == (ONNX, "Mul"), "not a product")
    for i in (0, 1):
        x, gate = input_of(node, i), input_of(node, 1 - i).node
        if gate is None or gate.op.key != (ONNX, "Sigmoid") or not _is_private(gate):
            continue
        scaled = input_of(gate, 0).node
        if scaled is None or scaled.op.key != (ONNX, "Mul") or not _is_private(scaled):
            continue
        for j in (0, 1):
            alpha = scalar(input_of(scaled, 1 - j))
            if alpha is not None and input_of(scaled, j) is x:
                return {node.outputs[0]: b.QuickGelu(x, domain=MICROSOFT, alpha=alpha)}
    return {}


def _is_private(node: Node) -> bool:
    value = node.outputs[0]
    return len(value.uses) == 1 and not value.n_exits


def bias_gelu(b: FusionBuilder, node: Node) -> Replaced:
    """Fuse the addition of a constant vector: BiasGelu, or FastGelu with a bias."""
    names = {"Gelu": "BiasGelu", "FastGelu": "FastGelu"}
    need(node.op.domain == MICROSOFT and node.op.name in names, "not a Gelu")
    need(optional_input(node, 1) is None, "it has a bias")
    x, bias = present(biased(input_of(node, 0)), "the input is not x + a constant vector")
    b.prefix = f"{node.op.name}_AddBias"
    return {node.outputs[0]: b.node(names[node.op.name], x, bias, domain=MICROSOFT).outputs[0]}


def biased(value: Value) -> tuple[Value, Value] | None:
    """Return the operand and the constant bias of an Add with a single reader."""
    add = value.node
    if add is None or add.op.key != (ONNX, "Add") or not _is_private(add):
        return None
    for i in (0, 1):
        x, bias = input_of(add, i), input_of(add, 1 - i)
        if x.tensor.shape and bias.is_const and bias.tensor.shape == x.tensor.dims[-1:]:
            return x, bias
    return None
