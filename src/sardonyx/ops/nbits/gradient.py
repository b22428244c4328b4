"""Gradients of ops with n-bit weights, which stay quantized."""

from __future__ import annotations

from sardonyx.errors import NotImplemented
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.graph.op import GRADIENT, MICROSOFT
from sardonyx.ops.gather.gradient import scatter_add
from sardonyx.ops.gradient_rules import GradientBuilder, gradient, ranked

Grads = list[Value | None]


@gradient("MatMulNBits", domain=MICROSOFT)
def _(b: GradientBuilder, node: Node, dy: Value) -> Grads:
    """The product of dy and the weights [N, K]."""
    x, bias = input_of(node, 0), optional_input(node, 5)
    grads: Grads = [None] * len(node.inputs)
    if bias is not None and b.wants(bias):
        grads[5] = b.sum_to(dy, bias)
    if not b.wants(x):
        return grads
    if optional_input(node, 4) is not None:
        raise NotImplemented("MatMulNBits with g_idx has no gradient", hint="reorder its rows")
    weights, attrs = (optional_input(node, i) for i in range(1, 4)), _layout(node)
    grads[0] = b.MatMulNBitsGradient(dy, *weights, domain=GRADIENT, **attrs)
    return grads


@gradient("MatMulNBitsGradient", domain=GRADIENT)
def _(b: GradientBuilder, node: Node, ddx: Value) -> Grads:
    weights = (optional_input(node, i) for i in range(1, 4))
    return [b.MatMulNBits(ddx, *weights, domain=MICROSOFT, **_layout(node)), None, None, None]


def _layout(node: Node) -> dict[str, int]:
    """The attributes that describe the stored weights."""
    return {name: node.attrs[name] for name in ("K", "N", "bits", "block_size")}


@gradient("GatherBlockQuantized", domain=MICROSOFT)
def _(b: GradientBuilder, node: Node, dy: Value) -> Grads:
    """By the scales: dy times the codes, summed over each block, then over equal indices."""
    data, index, scales = (input_of(node, i) for i in range(3))
    attrs, rank, block = node.attrs, ranked(data).rank, node.attrs["block_size"]
    width = ranked(node.outputs[0]).dims[-1]
    is_usual = attrs["gather_axis"] % rank == 0 and attrs["quantize_axis"] % rank == rank - 1
    if not is_usual or not block or not isinstance(width, int) or width % block:
        raise NotImplemented(
            "GatherBlockQuantized has a gradient with respect to its scales only if it gathers "
            "along the first axis, and whole blocks are along the last"
        )
    ones = b.Expand(b.const(1, scales.tensor.dtype), b.shape(scales))
    zero = optional_input(node, 3)
    codes = b.GatherBlockQuantized(data, index, ones, zero, domain=MICROSOFT, **attrs)
    sizes = b.Slice(b.shape(dy), b.ints(0), b.ints(-1))
    by_block = b.Reshape(b.Mul(dy, codes), b.Concat(sizes, b.ints(-1, block), axis=0))
    return [
        None,
        None,
        scatter_add(b, scales, index, b.ReduceSum(by_block, b.ints(-1), keepdims=0), 0),
    ]
