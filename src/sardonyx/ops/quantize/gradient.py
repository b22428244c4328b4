"""Gradients of quantization by the straight-through estimator, in which rounding is the identity.

A quantized value has the gradient that the real number before rounding would have. It passes where
that number is within the range of the type, and is 0 where it is clipped. Scales follow from the
same formulas: y = (q - z) * s and q = round(x / s) + z give the gradient of learned step size
quantization (Esser et al., Learned Step Size Quantization, 2020).
"""

from __future__ import annotations

from typing import Any

from sardonyx.graph.dtype import F32, F64, I64, DType
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.graph.op import MICROSOFT
from sardonyx.ops.gather.gradient import scatter_add
from sardonyx.ops.gradient_rules import GradientBuilder, decompose, gradient, ranked
from sardonyx.ops.inference import axis_of
from sardonyx.ops.quantize.convert import integer_range, is_single

Grads = list[Value | None]


class _Scales:
    """How scales and zero points are spread over a tensor, and gradients summed over them."""

    def __init__(self, b: GradientBuilder, node: Node, dtype: DType) -> None:
        self._b, self._dtype = b, dtype
        self._x, self._scale = input_of(node, 0), input_of(node, 1)
        rank = ranked(self._x).rank
        self._is_single = is_single(ranked(self._scale))
        self._axis = 0 if rank < 2 else axis_of(node.attrs["axis"], rank)
        self._n_after = rank - 1 - self._axis
        block = 0 if self._is_single else node.attrs["block_size"]
        # Of each element along the axis: the number of its block.
        self._blocks = self._block_numbers(block) if block else None

    def _block_numbers(self, block: int) -> Value:
        b = self._b
        length = b.Squeeze(b.element(b.shape(self._x), self._axis), b.ints(0))
        return b.Div(b.arange(length), b.const(block, I64))

    def spread(self, parameter: Value) -> Value:
        """A scale or zero point as floats that broadcast over the tensor."""
        b = self._b
        floats = b.cast(parameter, self._dtype)
        if self._is_single:
            return b.Reshape(floats, b.ints())
        if self._blocks is not None:
            return b.Gather(floats, self._blocks, axis=self._axis)
        return b.Reshape(floats, b.ints(-1, *(1 for _ in range(self._n_after))))

    def sum(self, grad: Value) -> Value:
        """The gradient of the scales, from one of each element."""
        b, scale = self._b, self._scale
        if self._is_single:
            total = b.ReduceSum(grad, keepdims=0)
        elif self._blocks is not None:
            total = scatter_add(b, b.cast(scale, self._dtype), self._blocks, grad, self._axis)
        else:
            others = [i for i in range(ranked(grad).rank) if i != self._axis]
            total = b.ReduceSum(grad, b.ints(*others), keepdims=0) if others else grad
        return b.reshape(b.cast(total, scale.tensor.dtype), scale)


@gradient("DequantizeLinear")
def _(b: GradientBuilder, node: Node, dy: Value) -> Grads:
    q, scale, zero = input_of(node, 0), input_of(node, 1), optional_input(node, 2)
    scales = _Scales(b, node, dy.tensor.dtype)
    steps: Value | None = None
    if b.wants(scale):
        real = b.cast(q, dy.tensor.dtype)
        steps = scales.sum(b.Mul(dy, real if zero is None else b.Sub(real, scales.spread(zero))))
    return [b.Mul(dy, scales.spread(scale)) if b.wants(q) else None, steps]


@gradient("QuantizeLinear")
def _(b: GradientBuilder, node: Node, dq: Value) -> Grads:
    x, scale, zero = input_of(node, 0), input_of(node, 1), optional_input(node, 2)
    dtype = F64 if x.tensor.dtype is F64 else F32  # quotients are rounded as in the forward node
    scales = _Scales(b, node, dtype)
    step = scales.spread(scale)
    shift = None if zero is None else scales.spread(zero)
    ratio = b.Div(b.cast(x, dtype), step)
    passed = b.Div(_unclipped(b, node, b.cast(dq, dtype), ratio, shift), step)
    grads: Grads = [b.cast(passed, x.tensor.dtype) if b.wants(x) else None]
    return [*grads, scales.sum(b.Neg(b.Mul(passed, ratio)))] if b.wants(scale) else grads


@gradient("DynamicQuantizeLinear")
def _(b: GradientBuilder, node: Node, dq: Value, *others: None) -> Value:
    scale, zero = node.outputs[1:]
    ratio = b.Div(input_of(node, 0), scale)
    return b.Div(_unclipped(b, node, dq, ratio, b.cast(zero, dq.tensor.dtype)), scale)


def _unclipped(
    b: GradientBuilder, node: Node, dq: Value, ratio: Value, zero: Value | None
) -> Value:
    """The gradient where the quantized number is in the range of its type, else 0."""
    dtype = node.outputs[0].tensor.dtype
    number = ratio if dtype.is_float else b.Round(ratio)
    number = number if zero is None else b.Add(number, zero)
    low, high = _float_range(dtype) if dtype.is_float else integer_range(dtype)
    inside = b.And(b.GreaterOrEqual(number, low), b.LessOrEqual(number, high))
    return b.where(inside, dq)


def _float_range(dtype: DType) -> tuple[float, float]:
    import ml_dtypes  # costs milliseconds, and few models have such types

    finfo: Any = ml_dtypes.finfo
    return float(finfo(dtype.np).min), float(finfo(dtype.np).max)


@decompose("DynamicQuantizeMatMul", domain=MICROSOFT)
def _(b: GradientBuilder, node: Node) -> Value:
    """A product of dequantized values, for gradients alone: the forward node stays."""
    weight, scale, zero, bias = (optional_input(node, i) for i in range(1, 5))
    assert weight is not None
    parts = b.node("DynamicQuantizeLinear", input_of(node, 0), outputs=3).outputs
    real = b.cast(weight, F32)
    real = real if zero is None else b.Sub(real, b.cast(zero, F32))
    y = b.MatMul(b.DequantizeLinear(*parts), b.Mul(real, scale))
    return y if bias is None else b.Add(y, bias)
