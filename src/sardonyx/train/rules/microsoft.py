"""Gradients of the ops of com.microsoft, by the standard ops that they are made of."""

from __future__ import annotations

from sardonyx.graph.graph import Node, Value, given, optional
from sardonyx.graph.op import MICROSOFT
from sardonyx.train.backward import Backward, ranked
from sardonyx.train.rules.declare import parts


@parts("Gelu", domain=MICROSOFT)
def _(b: Backward, node: Node) -> Value:
    return b.Gelu(given(node, 0))


@parts("FastGelu", domain=MICROSOFT)
def _(b: Backward, node: Node) -> Value:
    x, bias = given(node, 0), optional(node, 1)
    return b.Gelu(x if bias is None else b.Add(x, bias), approximate=b"tanh")


@parts("BiasGelu", domain=MICROSOFT)
def _(b: Backward, node: Node) -> Value:
    return b.Gelu(b.Add(given(node, 0), given(node, 1)))


@parts("QuickGelu", domain=MICROSOFT)
def _(b: Backward, node: Node) -> Value:
    x = given(node, 0)
    return b.Mul(x, b.Sigmoid(b.Mul(x, node.attrs["alpha"])))


@parts("FusedMatMul", domain=MICROSOFT)
def _(b: Backward, node: Node) -> Value:
    attrs = node.attrs
    left = _turned(b, given(node, 0), attrs["transA"], attrs["transBatchA"])
    right = _turned(b, given(node, 1), attrs["transB"], attrs["transBatchB"])
    made: Value = b.MatMul(left, right)
    return made if attrs["alpha"] == 1 else b.Mul(made, attrs["alpha"])


def _turned(b: Backward, x: Value, is_swapped: int, is_batched: int) -> Value:
    """An operand in the order of axes that the product wants; vectors stay as they are."""
    axes = list(range(ranked(x).rank))
    if is_batched:
        axes = [*axes[1:-1], axes[0], axes[-1]]
    if is_swapped and len(axes) > 1:
        axes[-2:] = axes[:-3:-1]
    return x if axes == sorted(axes) else b.Transpose(x, perm=tuple(axes))


@parts("SkipLayerNormalization", domain=MICROSOFT)
def _(b: Backward, node: Node) -> list[Value | None]:
    total = _sum(b, node, optional(node, 4))
    scale, bias = given(node, 2), optional(node, 3)
    y = b.LayerNormalization(total, scale, bias, epsilon=node.attrs["epsilon"])
    return [y, None, None, total]


@parts("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def _(b: Backward, node: Node) -> list[Value | None]:
    total = _sum(b, node, optional(node, 3))
    y = b.RMSNormalization(total, given(node, 2), epsilon=node.attrs["epsilon"])
    return [y, None, None, total]


def _sum(b: Backward, node: Node, bias: Value | None) -> Value:
    total: Value = b.Add(given(node, 0), given(node, 1))
    return total if bias is None else b.Add(total, bias)
