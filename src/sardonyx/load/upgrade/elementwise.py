"""Upgrades of the elementwise ops, and replacements of contrib and experimental ones."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dtype import F32, by_ort_name
from sardonyx.graph.graph import Value
from sardonyx.graph.op import MICROSOFT
from sardonyx.load.upgrade import OldNode, Upgrades, as_scalar, number_like
from sardonyx.ops.builder import Builder

UPGRADES: Final = Upgrades()


@UPGRADES.rule("Relu LeakyRelu Elu HardSigmoid", below=6)
def activation_without_consumed_inputs(b: Builder, node: OldNode) -> Any:
    """Opset 1 listed the inputs that a node might overwrite (consumed_inputs)."""
    return b.node(node.op_type, *node.inputs, **node.attrs_without("consumed_inputs")).outputs


@UPGRADES.rule("Abs Neg Ceil Floor Sqrt Exp Log Reciprocal Tanh Sigmoid Max Min Sum Mean", below=6)
def without_attributes(b: Builder, node: OldNode) -> Any:
    """The only attribute of opset 1 was consumed_inputs."""
    return b.node(node.op_type, *node.inputs).outputs


@UPGRADES.rule("Selu", below=6)
def selu_with_rounded_constants(b: Builder, node: OldNode) -> Any:
    """Opset 1 rounded the default constants of Selu to four decimals."""
    alpha, gamma = node.attr("alpha", 1.6732), node.attr("gamma", 1.0507)
    return b.Selu(*node.inputs, alpha=alpha, gamma=gamma)


@UPGRADES.rule("PRelu", below=7)
def prelu_slope_per_channel(b: Builder, node: OldNode) -> Any:
    """Before opset 7 the slope was one number, or one per channel (the second dim)."""
    x, slope = node.input(0), node.input(1)
    n_trailing = b.Max(b.Sub(b.Size(b.Shape(x)), b.ints(2)), b.ints(0))
    ones = b.Expand(b.ints(1), n_trailing)
    return b.PRelu(x, b.Reshape(slope, b.Concat(b.ints(-1), ones, axis=0)))


@UPGRADES.rule("Cast", below=6)
def cast_to_named_type(b: Builder, node: OldNode) -> Any:
    """Before opset 6 the type was given by name: FLOAT, INT64."""
    name = node.attr("to", b"")
    dtype = by_ort_name(name.decode(errors="replace").lower()) if isinstance(name, bytes) else None
    if dtype is None:
        raise InvalidGraph(f"to is {name!r}, which names no type that Cast converts to")
    return b.Cast(*node.inputs, to=dtype.onnx)


@UPGRADES.rule("Add Sub Mul Div And Or Xor Equal Greater Less Pow", below=7)
def explicit_broadcast(b: Builder, node: OldNode) -> Any:
    """Before opset 7 attributes aligned the second operand with an axis of the first."""
    axis = node.attr("axis")
    if not node.attr("broadcast", 0) or axis is None:
        return b.node(node.op_type, *node.inputs).outputs
    left, right = node.input(0), node.input(1)
    left_rank, right_rank = b.Size(b.Shape(left)), b.Size(b.Shape(right))
    start = b.ints(axis) if axis >= 0 else b.Add(left_rank, b.ints(axis))
    # Dims of 1 after the last one of the right operand let it broadcast as numpy does.
    n_trailing = b.Sub(b.Sub(left_rank, start), right_rank)
    ones = b.Expand(b.ints(1), b.Reshape(n_trailing, b.ints(1)))
    aligned = b.Reshape(right, b.Concat(b.Shape(right), ones, axis=0))
    return b.node(node.op_type, left, aligned).outputs


@UPGRADES.rule("Clip", below=11)
def clip_bounds_become_inputs(b: Builder, node: OldNode) -> Any:
    """The bounds were attributes; from opset 6 on they were finite by default."""
    x = node.input(0)
    if x is None:
        raise InvalidGraph("Clip has no input to clip")
    largest = None if node.version < 6 else float(np.finfo(np.float32).max)
    low = node.attr("min", None if largest is None else -largest)
    high = node.attr("max", largest)
    return b.Clip(x, *(None if v is None else number_like(b, v, x) for v in (low, high)))


def _split_in_two(b: Builder, x: Any, axis: int) -> tuple[Value, ...]:
    """Split an axis of size 2."""
    parts: tuple[Value, ...] = b.node("Split", x, b.ints(1, 1), axis=axis, outputs=2).outputs
    return parts


@UPGRADES.rule("BiasAdd", domain=MICROSOFT)
def bias_add(b: Builder, node: OldNode) -> Any:
    x, bias, skip = node.checked_inputs(3)
    return b.Add(b.Add(x, bias), skip)


@UPGRADES.rule("BiasSplitGelu", domain=MICROSOFT)
def bias_split_gelu(b: Builder, node: OldNode) -> Any:
    """GEGLU: the first half of the last axis times the Gelu of the second."""
    halves = b.Reshape(b.Add(node.input(0), node.input(1)), b.ints(0, 0, 2, -1))
    x, gate = (b.Squeeze(half, b.ints(2)) for half in _split_in_two(b, halves, 2))
    return b.Mul(x, b.Gelu(gate))


@UPGRADES.rule("ComplexMul ComplexMulConj", domain=MICROSOFT)
def complex_mul(b: Builder, node: OldNode) -> Any:
    """(p + qi) * (r + si); the last axis holds the real and the imaginary part."""
    (p, q), (r, s) = (_split_in_two(b, x, -1) for x in node.checked_inputs(2))
    if node.op_type == "ComplexMulConj":
        s = b.Neg(s)
    real = b.Sub(b.Mul(p, r), b.Mul(q, s))
    return b.Concat(real, b.Add(b.Mul(p, s), b.Mul(q, r)), axis=-1)


@UPGRADES.rule("GatedAdd", domain=MICROSOFT)
def gated_add(b: Builder, node: OldNode) -> Any:
    x, y, gate = node.checked_inputs(3)
    return b.Add(x, b.Mul(y, gate))


@UPGRADES.rule("ScaledSiLU", domain=MICROSOFT)
def scaled_silu(b: Builder, node: OldNode) -> Any:
    x, factor = node.input(0), node.input(1)
    if factor is None:
        factor = b.const(np.float32(node.attr("alpha", 1.0)))
    scaled = b.Mul(b.Cast(x, to=F32.onnx), as_scalar(b, b.Cast(factor, to=F32.onnx)))
    z = b.CastLike(scaled, x)
    return b.Mul(z, b.Sigmoid(z))


def _scaled(b: Builder, x: Any, factor: float) -> Value:
    product: Value = b.Mul(x, number_like(b, factor, x))
    return product


@UPGRADES.rule("Affine")
def affine(b: Builder, node: OldNode) -> Any:
    x = node.input(0)
    return b.Add(_scaled(b, x, node.attr("alpha", 1.0)), number_like(b, node.attr("beta", 0.0), x))


@UPGRADES.rule("Scale")
def scale(b: Builder, node: OldNode) -> Any:
    return _scaled(b, node.input(0), node.attr("scale", 1.0))


@UPGRADES.rule("ScaledTanh ParametricSoftplus")
def scaled_activation(b: Builder, node: OldNode) -> Any:
    """alpha * tanh(beta * x), or the same with softplus."""
    alpha, beta = node.required_attrs("alpha", "beta")
    activation = b.Tanh if node.op_type == "ScaledTanh" else b.Softplus
    return _scaled(b, activation(_scaled(b, node.input(0), beta)), alpha)


@UPGRADES.rule("ImageScaler")
def image_scaler(b: Builder, node: OldNode) -> Any:
    """scale * x + bias, with one scale per image and one bias per channel."""
    x, (bias,) = node.input(0), node.required_attrs("bias")
    per_channel = b.CastLike(b.const(np.asarray(bias, np.float32).reshape(-1, 1, 1)), x)
    return b.Add(_scaled(b, x, node.attr("scale", 1.0)), per_channel)
