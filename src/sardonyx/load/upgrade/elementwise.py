"""Older forms of the elementwise ops."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dtype import F32, by_ort_name
from sardonyx.graph.graph import Value
from sardonyx.graph.op import MICROSOFT
from sardonyx.load.upgrade import ANY, OldNode, as_scalar, upgrade
from sardonyx.ops.builder import Builder


@upgrade("Relu LeakyRelu Elu HardSigmoid", below=6)
def activations_consume_nothing(b: Builder, node: OldNode) -> Any:
    """Opset 1 told which inputs a node might overwrite (consumed_inputs)."""
    kept = {k: v for k, v in node.attrs.items() if k != "consumed_inputs"}
    return b.node(node.op_type, *node.inputs, **kept).outputs


@upgrade("Selu", below=6)
def shorter_constants(b: Builder, node: OldNode) -> Any:
    """Opset 1 had Selu's constants with fewer digits."""
    alpha, gamma = node.attr("alpha", 1.6732), node.attr("gamma", 1.0507)
    return b.Selu(*node.inputs, alpha=alpha, gamma=gamma)


@upgrade("PRelu", below=7)
def slope_per_channel(b: Builder, node: OldNode) -> Any:
    """Before opset 7 the slope was one number, or one per channel: of the second dim."""
    x, slope = node.input(0), node.input(1)
    n_trailing = b.Max(b.Sub(b.Size(b.Shape(x)), b.ints(2)), b.ints(0))
    ones = b.Expand(b.ints(1), n_trailing)
    return b.PRelu(x, b.Reshape(slope, b.Concat(b.ints(-1), ones, axis=0)))


@upgrade("Cast", below=6)
def type_by_name(b: Builder, node: OldNode) -> Any:
    """Before opset 6 the type was named: FLOAT, INT64."""
    name = node.attr("to", b"")
    dtype = by_ort_name(name.decode(errors="replace").lower()) if isinstance(name, bytes) else None
    if dtype is None:
        raise InvalidGraph(f"to is {name!r}, which names no type that Cast converts to")
    return b.Cast(*node.inputs, to=dtype.onnx)


@upgrade("Add Sub Mul Div And Or Xor Equal Greater Less Pow", below=7)
def explicit_broadcast(b: Builder, node: OldNode) -> Value:
    """Before opset 7 the second operand was lined up with an axis of the first, when told to."""
    axis = node.attr("axis")
    if not node.attr("broadcast", 0) or axis is None:
        return _value(b.node(node.op_type, *node.inputs).outputs[0])
    left, right = node.input(0), node.input(1)
    rank = b.Size(b.Shape(left))
    own = b.Size(b.Shape(right))
    start = b.ints(axis) if axis >= 0 else b.Add(rank, b.ints(axis))
    n_trailing = b.Sub(b.Sub(rank, start), own)
    ones = b.Expand(b.ints(1), b.Reshape(n_trailing, b.ints(1)))
    aligned = b.Reshape(right, b.Concat(b.Shape(right), ones, axis=0))
    return _value(b.node(node.op_type, left, aligned).outputs[0])


def _value(value: Any) -> Value:
    assert isinstance(value, Value)
    return value


@upgrade(
    "Abs Neg Ceil Floor Sqrt Exp Log Reciprocal Tanh Sigmoid Max Min Sum Mean",
    below=6,
)
def nothing_is_consumed(b: Builder, node: OldNode) -> Value:
    """Opset 1 told which inputs a node might overwrite (consumed_inputs)."""
    return _value(b.node(node.op_type, *node.inputs).outputs[0])


@upgrade("Clip", below=11)
def clip_bounds_become_inputs(b: Builder, node: OldNode) -> Value:
    """The bounds were attributes; from opset 6 on, the largest finite numbers by default."""
    x = node.input(0)
    if x is None:
        raise InvalidGraph("Clip has no input to clip")
    widest = None if node.version < 6 else float(np.finfo(np.float32).max)
    low = node.attr("min", None if widest is None else -widest)
    high = node.attr("max", widest)
    bounds = [None if v is None else b.CastLike(b.const(np.float32(v)), x) for v in (low, high)]
    return _value(b.Clip(x, *bounds))


def _two(b: Builder, x: Any, axis: int) -> tuple[Value, ...]:
    """The two parts of an axis of two."""
    parts: tuple[Value, ...] = b.node("Split", x, b.ints(1, 1), axis=axis, outputs=2).outputs
    return parts


@upgrade("BiasAdd", below=ANY, domain=MICROSOFT)
def bias_and_residual(b: Builder, node: OldNode) -> Any:
    x, bias, skip = node.given(3)
    return b.Add(b.Add(x, bias), skip)


@upgrade("BiasSplitGelu", below=ANY, domain=MICROSOFT)
def gated_by_gelu(b: Builder, node: OldNode) -> Any:
    halves = b.Reshape(b.Add(node.input(0), node.input(1)), b.ints(0, 0, 2, -1))
    x, gate = (b.Squeeze(half, b.ints(2)) for half in _two(b, halves, 2))
    return b.Mul(x, b.Gelu(gate))


@upgrade("ComplexMul ComplexMulConj", below=ANY, domain=MICROSOFT)
def complex_product(b: Builder, node: OldNode) -> Any:
    """The last axis holds the two parts of a number."""
    (a, c), (d, e) = (_two(b, x, -1) for x in node.given(2))
    if node.op_type == "ComplexMulConj":
        e = b.Neg(e)
    real = b.Sub(b.Mul(a, d), b.Mul(c, e))
    return b.Concat(real, b.Add(b.Mul(a, e), b.Mul(c, d)), axis=-1)


@upgrade("GatedAdd", below=ANY, domain=MICROSOFT)
def gated_sum(b: Builder, node: OldNode) -> Any:
    x, y, gate = node.given(3)
    return b.Add(x, b.Mul(y, gate))


@upgrade("ScaledSiLU", below=ANY, domain=MICROSOFT)
def scaled_silu(b: Builder, node: OldNode) -> Any:
    x, factor = node.input(0), node.input(1)
    if factor is None:
        factor = b.const(np.float32(node.attr("alpha", 1.0)))
    scaled = b.Mul(b.Cast(x, to=F32.onnx), as_scalar(b, b.Cast(factor, to=F32.onnx)))
    z = b.CastLike(scaled, x)
    return b.Mul(z, b.Sigmoid(z))


def _times(b: Builder, x: Any, factor: float) -> Value:
    return b.Mul(x, b.CastLike(b.const(np.float32(factor)), x))


@upgrade("Affine", below=ANY)
def affine(b: Builder, node: OldNode) -> Any:
    x = node.input(0)
    beta = b.CastLike(b.const(np.float32(node.attr("beta", 0.0))), x)
    return b.Add(_times(b, x, node.attr("alpha", 1.0)), beta)


@upgrade("Scale", below=ANY)
def scale(b: Builder, node: OldNode) -> Any:
    return _times(b, node.input(0), node.attr("scale", 1.0))


@upgrade("ScaledTanh", below=ANY)
def scaled_tanh(b: Builder, node: OldNode) -> Any:
    alpha, beta = node.needed_attrs("alpha", "beta")
    return _times(b, b.Tanh(_times(b, node.input(0), beta)), alpha)


@upgrade("ParametricSoftplus", below=ANY)
def parametric_softplus(b: Builder, node: OldNode) -> Any:
    alpha, beta = node.needed_attrs("alpha", "beta")
    return _times(b, b.Softplus(_times(b, node.input(0), beta)), alpha)


@upgrade("ImageScaler", below=ANY)
def image_scaler(b: Builder, node: OldNode) -> Any:
    """One factor for an image, and a number to add to each of its channels."""
    x, (bias,) = node.input(0), node.needed_attrs("bias")
    rows = b.CastLike(b.const(np.asarray(bias, np.float32).reshape(-1, 1, 1)), x)
    return b.Add(_times(b, x, node.attr("scale", 1.0)), rows)


UPGRADES: Final = (
    *activations_consume_nothing,
    *shorter_constants,
    *slope_per_channel,
    *type_by_name,
    *explicit_broadcast,
    *nothing_is_consumed,
    *clip_bounds_become_inputs,
    *bias_and_residual,
    *gated_by_gelu,
    *complex_product,
    *gated_sum,
    *scaled_silu,
    *affine,
    *scale,
    *scaled_tanh,
    *parametric_softplus,
    *image_scaler,
)
