"""Convolutions and matrix products take in what follows them."""

from __future__ import annotations

import math
from typing import Any, Final

from sardonyx.graph.build import Builder
from sardonyx.graph.dtype import F32
from sardonyx.graph.graph import Node, Value
from sardonyx.ops.declare import MICROSOFT
from sardonyx.passes.pattern import P, hole, scalar
from sardonyx.passes.rule import need, ranked, rule

x, w, bias, factor = hole("x"), hole("w"), hole("bias"), hole("factor")


def _bias(conv: Node) -> Value | None:
    return conv.inputs[2] if len(conv.inputs) > 2 else None


def _conv(b: Builder, conv: Node, w: Value, bias: Value | None) -> Value:
    made: Value = b.Conv(conv.inputs[0], w, bias, **conv.attrs)
    return made


def _per_channel(value: Value, rank: int) -> None:
    """Says no unless a constant has one element, or one per channel at this rank."""
    shape = value.tensor.static
    need(value.is_const and shape is not None, "not a constant")
    assert shape is not None
    channels = (1,) * (rank - len(shape)) + shape
    need(
        len(shape) <= rank and all(d == 1 for i, d in enumerate(channels) if i != 1),
        "not per channel",
    )


@rule(
    P.BatchNormalization(
        P.Conv(x, w, rest=True).named("conv"),
        hole("scale"),
        hole("shift"),
        hole("mean"),
        hole("var"),
    ).named("norm"),
    P.BatchNormalization(
        P.Conv(x, w).named("conv"), hole("scale"), hole("shift"), hole("mean"), hole("var")
    ).named("norm"),
    ort="ConvBNFusion",
)
def conv_norm(  # noqa: PLR0913 - the holes of the pattern
    b: Builder,
    x: Value,
    w: Value,
    conv: Node,
    scale: Value,
    shift: Value,
    mean: Value,
    var: Value,
    norm: Node,
) -> Value:
    """A normalization by constants scales and shifts channels, as weights and bias can."""
    old = _bias(conv)
    given = (w, scale, shift, mean, var, *(() if old is None else (old,)))
    need(all(v.is_const for v in given), "weights are not constant")
    need(not norm.attrs["training_mode"], "statistics come from the batch")
    need(len({v.tensor.dtype for v in given}) == 1, "types differ")
    factor = b.Div(scale, b.Sqrt(b.Add(var, float(norm.attrs["epsilon"]))))
    moved = mean if old is None else b.Sub(mean, old)
    return _conv(b, conv, _scaled(b, w, factor), b.Sub(shift, b.Mul(moved, factor)))


def _row(b: Builder, value: Value, w: Value) -> Value:
    """A constant of one element or one per channel, as one element per channel."""
    channels, shape = w.tensor.dims[0], value.tensor.static
    need(isinstance(channels, int), "the number of channels is open")
    need(shape is not None and math.prod(shape) in (1, channels), "adds channels")
    assert isinstance(channels, int)
    made: Value = b.Expand(b.Reshape(value, b.ints(-1)), b.ints(channels))
    return made


def _scaled(b: Builder, w: Value, factor: Value) -> Value:
    """Weights with each output channel multiplied by its factor."""
    axes = b.ints(*range(1, w.tensor.rank))
    made: Value = b.Mul(w, b.Unsqueeze(factor, axes))
    return made


@rule(
    P.Conv(x, w).named("conv") * factor,
    P.Conv(x, w, rest=True).named("conv") * factor,
    ort="ConvMulFusion",
)
def conv_scale(b: Builder, x: Value, w: Value, conv: Node, factor: Value) -> Value:
    old = _bias(conv)
    ranked(w)
    _per_channel(factor, w.tensor.rank)
    need(w.is_const and (old is None or old.is_const), "weights are not constant")
    need(factor.tensor.dtype is w.tensor.dtype, "types differ")
    flat = _row(b, factor, w)
    return _conv(b, conv, _scaled(b, w, flat), None if old is None else b.Mul(old, flat))


@rule(
    P.Conv(x, w).named("conv") + bias,
    P.Conv(x, w, rest=True).named("conv") + bias,
    ort="ConvAddFusion",
)
def conv_shift(b: Builder, x: Value, w: Value, conv: Node, bias: Value) -> Value:
    old = _bias(conv)
    ranked(w)
    _per_channel(bias, w.tensor.rank)
    need(bias.tensor.dtype is w.tensor.dtype, "types differ")
    flat = _row(b, bias, w)
    return _conv(b, conv, w, flat if old is None else b.Add(old, flat))


@rule(P.MatMul(x, w) + bias, ort="MatMulAddFusion")
def matmul_bias(b: Builder, x: Value, w: Value, bias: Value) -> Value:
    """x W + c of matrices is one Gemm."""
    ranked(x, w)
    need(x.tensor.rank == 2 and w.tensor.rank == 2, "operands are not matrices")
    need(
        bias.tensor.shape == w.tensor.dims[1:] or bias.tensor.shape == (1, w.tensor.dims[1]),
        "no row",
    )
    need(x.tensor.dtype.is_float, "not floating point")
    made: Value = b.Gemm(x, w, bias)
    return made


_ACTIVATIONS: Final = ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "Clip")


def _activation(node: Node) -> list[float]:
    """The parameters of an activation as FusedConv takes them."""
    name = node.op.name
    if name == "LeakyRelu":
        return [node.attrs["alpha"]]
    if name == "HardSigmoid":
        return [node.attrs["alpha"], node.attrs["beta"]]
    if name != "Clip":
        return []
    bounds = [scalar(node.inputs[i]) if len(node.inputs) > i else None for i in (1, 2)]
    need(None not in bounds, "bounds are not constant")
    return [v for v in bounds if v is not None]


_convs = (P.Conv(x, w).named("conv"), P.Conv(x, w, rest=True).named("conv"))


@rule(
    *(getattr(P, op)(c).named("act") for op in _ACTIVATIONS[:-1] for c in _convs),
    *(P.Clip(c, rest=True).named("act") for c in _convs),
    ort="ConvActivationFusion",
)
def conv_activation(b: Builder, x: Value, w: Value, conv: Node, act: Node) -> Value:
    need(x.tensor.dtype is F32, "FusedConv is for float32")
    params = tuple(_activation(act))
    made: Value = b.FusedConv(
        *conv.inputs,
        domain=MICROSOFT,
        activation=act.op.name.encode(),
        activation_params=params if params else None,
        **conv.attrs,
    )
    return made


BASIC: Final[tuple[Any, ...]] = (*conv_norm, *conv_scale, *conv_shift, *matmul_bias)
EXTENDED: Final[tuple[Any, ...]] = conv_activation
