"""Convolutions and matrix products take in what follows them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.graph.dtype import F32
from sardonyx.graph.graph import Node, Value
from sardonyx.graph.op import MICROSOFT
from sardonyx.ops.builder import Builder
from sardonyx.passes.pattern import P, hole, scalar
from sardonyx.passes.rule import need, ranked, rule

x, w, bias, factor = hole("x"), hole("w"), hole("bias"), hole("factor")
_CONV: Final = P.Conv(x, w, rest=True).named("conv")


def _bias(conv: Node) -> Value | None:
    return conv.inputs[2] if len(conv.inputs) > 2 else None


def _conv(b: Builder, conv: Node, w: Value, bias: Value | None) -> Value:
    made: Value = b.Conv(conv.inputs[0], w, bias, like=conv.outputs[0], **conv.attrs)
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
    P.BatchNormalization(_CONV, hole("scale"), hole("shift"), hole("mean"), hole("var")).named(
        "norm"
    ),
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
    rows = (scale, shift, mean, var, *(() if old is None else (old,)))
    need(w.is_const and all(v.is_const for v in rows), "weights are not constant")
    need(not norm.attrs["training_mode"], "statistics come from the batch")
    dtype = w.tensor.dtype
    need(all(v.tensor.dtype is dtype for v in rows), "types differ")
    gamma, beta, centre, spread, *bias = (_numbers(v) for v in rows)
    with np.errstate(all="ignore"):
        factor = gamma / np.sqrt(spread + norm.attrs["epsilon"])
        moved = beta - (centre - bias[0] if bias else centre) * factor
    return _conv(b, conv, _scaled(b, w, factor), b.const(moved, dtype))


def _numbers(row: Value) -> Any:
    """The numbers of a short constant, in the type that sums of them are made in."""
    need(row.const is not None and row.const.is_small, "not a short constant")
    assert row.const is not None
    return row.const.read().astype(np.float64)


def _row(value: Value, w: Value) -> Any:
    """The numbers of a constant of one element or one per channel, one per channel."""
    channels, numbers = w.tensor.dims[0], _numbers(value).reshape(-1)
    need(isinstance(channels, int) and numbers.size in (1, channels), "adds channels")
    assert isinstance(channels, int)
    return np.broadcast_to(numbers, (channels,))


def _scaled(b: Builder, w: Value, factor: Any) -> Value:
    """Weights with each output channel multiplied by its factor."""
    row = b.const(factor.reshape(-1, *(1,) * (w.tensor.rank - 1)), w.tensor.dtype)
    made: Value = b.Mul(w, row, like=w)
    return made


@rule(_CONV * factor, ort="ConvMulFusion")
def conv_scale(b: Builder, x: Value, w: Value, conv: Node, factor: Value) -> Value:
    old = _bias(conv)
    ranked(w)
    _per_channel(factor, w.tensor.rank)
    need(w.is_const and (old is None or old.is_const), "weights are not constant")
    need(factor.tensor.dtype is w.tensor.dtype, "types differ")
    row = _row(factor, w)
    bias = None if old is None else b.const(_numbers(old) * row, w.tensor.dtype)
    return _conv(b, conv, _scaled(b, w, row), bias)


@rule(_CONV + bias, ort="ConvAddFusion")
def conv_shift(b: Builder, x: Value, w: Value, conv: Node, bias: Value) -> Value:
    old = _bias(conv)
    ranked(w)
    _per_channel(bias, w.tensor.rank)
    need(bias.tensor.dtype is w.tensor.dtype, "types differ")
    row = _row(bias, w) if old is None else _row(bias, w) + _numbers(old)
    return _conv(b, conv, w, b.const(row, w.tensor.dtype))


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


_ACTIVATIONS: Final = ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid")


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


@rule(
    *(getattr(P, op)(_CONV).named("act") for op in _ACTIVATIONS),
    P.Clip(_CONV, rest=True).named("act"),
    ort="ConvActivationFusion",
)
def conv_activation(b: Builder, x: Value, w: Value, conv: Node, act: Node) -> Value:
    need(x.tensor.dtype is F32, "FusedConv is for float32")
    params = tuple(_activation(act))
    made: Value = b.FusedConv(
        *conv.inputs,
        domain=MICROSOFT,
        like=conv.outputs[0],
        activation=act.op.name.encode(),
        activation_params=params if params else None,
        **conv.attrs,
    )
    return made


BASIC: Final[tuple[Any, ...]] = (*conv_norm, *conv_scale, *conv_shift, *matmul_bias)
EXTENDED: Final[tuple[Any, ...]] = conv_activation
