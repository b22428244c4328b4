"""Fusions into Conv and Gemm: pads, batch normalization, scales, biases and activations."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.graph.dtype import F32
from sardonyx.graph.graph import Node, Value, optional_input
from sardonyx.graph.op import MICROSOFT
from sardonyx.ops.builder import Builder
from sardonyx.ops.elementwise.fused_activation import ACTIVATION_ATTRS
from sardonyx.passes.rule import P, hole, known_size, need, present, ranked, rule, scalar

x, w, bias, factor = hole("x"), hole("w"), hole("bias"), hole("factor")
pads = hole("pads")
# With or without a bias: `rest` admits further inputs.
_CONV: Final = P.Conv(x, w, rest=True).named("conv")


def _conv(b: Builder, conv: Node, w: Value, bias: Value | None) -> Value:
    """The Conv with other weights and another bias."""
    return b.Conv(conv.inputs[0], w, bias, like=conv.outputs[0], **conv.attrs)


def _need_per_channel(value: Value, rank: int) -> None:
    """Abandon a rewrite unless a constant has one element, or one per channel at this rank."""
    shape = present(value.tensor.static, "not a constant")
    need(value.is_const, "not a constant")
    channels = (1,) * (rank - len(shape)) + shape
    is_single = all(d == 1 for i, d in enumerate(channels) if i != 1)
    need(len(shape) <= rank and is_single, "not per channel")


@rule(
    P.Conv(P.Pad(x, pads, rest=True).named("pad"), w, rest=True).named("conv"), aliases="Pad_Fusion"
)
def conv_pad(b: Builder, x: Value, pads: Value, w: Value, pad: Node, conv: Node) -> Value:
    """Fold zeros around an image into the pads of the Conv."""
    ranked(x)
    value, axes, rank = optional_input(pad, 2), optional_input(pad, 3), x.tensor.rank
    need(pad.attrs["mode"] == b"constant" and (value is None or scalar(value) == 0), "not zeros")
    need(conv.attrs["auto_pad"] == b"NOTSET", "the pads of the Conv follow from sizes")
    amounts = present(pads.tensor.ints, "pads are not constant")
    padded = range(rank) if axes is None else present(axes.tensor.ints, "axes are not constant")
    sides = [[0] * rank, [0] * rank]
    for i, amount in enumerate(amounts):
        sides[i // len(padded)][padded[i % len(padded)]] += amount
    need(not any(sides[0][:2] + sides[1][:2]), "batch or channels are padded")
    need(min(amounts, default=0) >= 0, "a pad cuts")
    around = np.add((*sides[0][2:], *sides[1][2:]), conv.attrs["pads"] or 0)
    attrs = {**conv.attrs, "pads": tuple(map(int, around))}
    return b.Conv(x, *conv.inputs[1:], like=conv.outputs[0], **attrs)


@rule(P.BatchNormalization(_CONV, rest=True).named("norm"), aliases="ConvBNFusion conv_norm")
def conv_batch_norm(b: Builder, x: Value, w: Value, conv: Node, norm: Node) -> Value:
    """Fold a BatchNormalization with constant statistics into weights and bias."""
    operands = (*norm.inputs[1:5], optional_input(conv, 2))
    vectors = [v for v in operands if v is not None]
    need(w.is_const and all(v.is_const for v in vectors), "weights are not constant")
    # In training the statistics are those of the batch.
    need(not norm.attrs["training_mode"], "statistics come from the batch")
    dtype = w.tensor.dtype
    need(all(v.tensor.dtype is dtype for v in vectors), "types differ")
    gamma, beta, mean, variance, *bias = (_as_float64(v) for v in vectors)
    # gamma (conv + bias - mean) / sqrt(var + eps) + beta is a factor and a shift per channel. In
    # float64: the result is rounded once, to the type of the weights.
    with np.errstate(all="ignore"):
        factor = gamma / np.sqrt(variance + norm.attrs["epsilon"])
        shift = beta - (mean - bias[0] if bias else mean) * factor
    return _conv(b, conv, _scaled(b, w, factor), b.const(shift, dtype))


def _as_float64(vector: Value) -> Any:
    """A short constant in float64, so that folded results are rounded only once."""
    const = present(vector.const, "not a constant")
    need(const.is_small, "not a short constant")
    return const.read().astype(np.float64)


def _channel_vector(value: Value, w: Value) -> Any:
    """A constant with one element or one per channel, as one number per channel."""
    channels = known_size(w.tensor.dims[0], "the number of channels is unknown")
    numbers = _as_float64(value).reshape(-1)
    need(numbers.size in (1, channels), "it adds channels")
    return np.broadcast_to(numbers, (channels,))


def _scaled(b: Builder, w: Value, factor: Any) -> Value:
    """Weights with each output channel multiplied by its factor."""
    vector = b.const(factor.reshape(-1, *(1,) * (w.tensor.rank - 1)), w.tensor.dtype)
    return b.Mul(w, vector, like=w)


@rule(_CONV * factor, aliases="ConvMulFusion")
def conv_scale(b: Builder, x: Value, w: Value, conv: Node, factor: Value) -> Value:
    """Fold a multiplication by a constant per channel into weights and bias."""
    old = optional_input(conv, 2)
    ranked(w)
    _need_per_channel(factor, w.tensor.rank)
    need(w.is_const and (old is None or old.is_const), "weights are not constant")
    need(factor.tensor.dtype is w.tensor.dtype, "types differ")
    # (conv + bias) * factor scales the bias too.
    vector = _channel_vector(factor, w)
    bias = None if old is None else b.const(_as_float64(old) * vector, w.tensor.dtype)
    return _conv(b, conv, _scaled(b, w, vector), bias)


@rule(_CONV + bias, aliases="ConvAddFusion")
def conv_shift(b: Builder, x: Value, w: Value, conv: Node, bias: Value) -> Value:
    """Fold the addition of a constant per channel into the bias."""
    old = optional_input(conv, 2)
    ranked(w)
    _need_per_channel(bias, w.tensor.rank)
    need(bias.tensor.dtype is w.tensor.dtype, "types differ")
    vector = _channel_vector(bias, w) + (0 if old is None else _as_float64(old))
    return _conv(b, conv, w, b.const(vector, w.tensor.dtype))


@rule(P.MatMul(x, w) + bias, aliases="MatMulAddFusion")
def matmul_bias(b: Builder, x: Value, w: Value, bias: Value) -> Value:
    """Fuse MatMul and Add of a bias per column into one Gemm."""
    ranked(x, w)
    # Gemm has no batches; MatMul with a bias of higher rank stays.
    need(x.tensor.rank == 2 and w.tensor.rank == 2, "operands are not matrices")
    columns = w.tensor.dims[1]
    is_vector = bias.tensor.shape in ((columns,), (1, columns))
    need(is_vector, "the bias is not one number per column")
    need(x.tensor.dtype.is_float, "not floating point")
    return b.Gemm(x, w, bias)


# Those that onnxruntime fuses; the pattern of Clip differs, as its parameters are inputs.
_ACTIVATIONS: Final = ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid")


def _activation_params(node: Node) -> tuple[float, ...]:
    """The parameters of an activation in the order of FusedConv's activation_params."""
    if node.op.name != "Clip":
        return tuple(node.attrs[name] for name in ACTIVATION_ATTRS[node.op.name])
    bounds = (scalar(optional_input(node, i)) for i in (1, 2))
    return tuple(present(bound, "bounds are not constant") for bound in bounds)


@rule(
    *(getattr(P, op)(_CONV).named("act") for op in _ACTIVATIONS),
    P.Clip(_CONV, rest=True).named("act"),
    aliases="ConvActivationFusion",
)
def conv_activation(b: Builder, x: Value, w: Value, conv: Node, act: Node) -> Value:
    """Fuse a Conv and its activation into FusedConv."""
    # As onnxruntime, so that saved models load there.
    need(x.tensor.dtype is F32, "FusedConv is for float32")
    params = _activation_params(act) or None
    attrs = {**conv.attrs, "activation": act.op.name.encode(), "activation_params": params}
    return b.FusedConv(*conv.inputs, domain=MICROSOFT, like=conv.outputs[0], **attrs)


# The results of these are standard ops; FusedConv is one of com.microsoft, hence a higher level.
BASIC: Final[tuple[Any, ...]] = (
    *conv_pad, *conv_batch_norm, *conv_scale, *conv_shift, *matmul_bias,
)  # fmt: skip
EXTENDED: Final[tuple[Any, ...]] = conv_activation
