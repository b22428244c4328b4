"""Ops of com.microsoft that standard ones say as well, most of them older than these."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dtype import F16, F32, I64
from sardonyx.graph.graph import Value
from sardonyx.graph.op import MICROSOFT
from sardonyx.load.upgrade import ANY, OldNode, upgrade
from sardonyx.ops.builder import Builder

_MODES: Final = {b"bilinear": b"linear", b"bicubic": b"cubic"}  # as GridSample calls them now


def _scalar(b: Builder, x: Value | None) -> Value | None:
    """One number without dims, which may have been given one."""
    if x is None:
        return None
    made: Value = b.Reshape(x, b.const(np.zeros(0, np.int64)))
    return made


def _two(b: Builder, x: Any, axis: int) -> tuple[Value, ...]:
    """The two parts of an axis of two."""
    parts: tuple[Value, ...] = b.Split(x, b.ints(1, 1), axis=axis, outputs=2)
    return parts


@upgrade("Trilu SampleOp", below=ANY, domain=MICROSOFT)
def same_op(b: Builder, node: OldNode) -> Any:
    names = {"SampleOp": "Identity"}
    return b.node(names.get(node.op_type, node.op_type), *node.inputs, **node.attrs).outputs


@upgrade("GatherND", below=ANY, domain=MICROSOFT)
def indices_may_be_short(b: Builder, node: OldNode) -> Any:
    return b.GatherND(node.input(0), b.Cast(node.input(1), to=I64.onnx))


@upgrade("ExpandDims", below=ANY, domain=MICROSOFT)
def axis_is_an_input(b: Builder, node: OldNode) -> Any:
    axis = b.Reshape(b.Cast(node.input(1), to=I64.onnx), b.ints(1))
    return b.Unsqueeze(node.input(0), axis)


@upgrade("Pad", below=ANY, domain=MICROSOFT)
def pads_may_be_a_row(b: Builder, node: OldNode) -> Any:
    pads = b.Reshape(node.input(1), b.ints(-1))
    return b.Pad(node.input(0), pads, _scalar(b, node.input(2)), **node.attrs)


@upgrade("Range", below=ANY, domain=MICROSOFT)
def delta_may_be_left_out(b: Builder, node: OldNode) -> Any:
    start, limit, delta = (_scalar(b, node.input(i)) for i in range(3))
    if delta is None:
        delta = b.CastLike(b.const(np.int64(1)), start)
    return b.Range(start, limit, delta)


@upgrade("Unique", below=ANY, domain=MICROSOFT)
def in_order_of_appearance(b: Builder, node: OldNode) -> Any:
    y, _, places, counts = b.Unique(node.input(0), sorted=0, outputs=4)
    return y, places, counts


@upgrade("GridSample", below=ANY, domain=MICROSOFT)
def modes_had_other_names(b: Builder, node: OldNode) -> Any:
    mode = node.attr("mode", b"bilinear")
    return b.GridSample(*node.inputs, **{**node.attrs, "mode": _MODES.get(mode, mode)})


@upgrade("TransposeMatMul", below=ANY, domain=MICROSOFT)
def renamed(b: Builder, node: OldNode) -> Any:
    return b.FusedMatMul(*node.inputs, domain=MICROSOFT, **node.attrs)


@upgrade("GemmFastGelu", below=ANY, domain=MICROSOFT)
def product_and_gelu(b: Builder, node: OldNode) -> Any:
    x, w = node.given(2, 3)[:2]
    return b.FastGelu(b.MatMul(x, w), node.input(2), domain=MICROSOFT)


@upgrade("BiasAdd", below=ANY, domain=MICROSOFT)
def bias_and_residual(b: Builder, node: OldNode) -> Any:
    x, bias, skip = node.given(3)
    return b.Add(b.Add(x, bias), skip)


@upgrade("BiasDropout", below=ANY, domain=MICROSOFT)
def bias_dropout_residual(b: Builder, node: OldNode) -> Any:
    x, bias, residual, *rest = (node.input(i) for i in range(5))
    y, mask = b.Dropout(b.Add(x, bias), *rest, outputs=2, **node.attrs)
    return y if residual is None else b.Add(y, residual), mask


@upgrade("BiasSoftmax", below=ANY, domain=MICROSOFT)
def bias_and_softmax(b: Builder, node: OldNode) -> Any:
    """Dims of 1 in the bias say which ones it is broadcast over, is_inner_broadcast or not."""
    total = b.Add(node.input(0), node.input(1))
    flat = b.Softmax(b.Flatten(total, axis=node.attr("axis", 1)), axis=1)
    return b.Reshape(flat, b.Shape(total), allowzero=1)


@upgrade("BiasSplitGelu", below=ANY, domain=MICROSOFT)
def gated_by_gelu(b: Builder, node: OldNode) -> Any:
    halves = b.Reshape(b.Add(node.input(0), node.input(1)), b.ints(0, 0, 2, -1))
    x, gate = (b.Squeeze(half, b.ints(2)) for half in _two(b, halves, 2))
    return b.Mul(x, b.Gelu(gate))


@upgrade("GemmaRotaryEmbedding", below=ANY, domain=MICROSOFT)
def turned_by_given_angles(b: Builder, node: OldNode) -> Any:
    angles, q, turned_q, k, turned_k = node.given(5)
    cos, sin = (
        b.Unsqueeze(b.Cast(part, to=F16.onnx), b.ints(1)) for part in (b.Cos(angles), b.Sin(angles))
    )
    pairs = ((q, turned_q), (k, turned_k))
    return tuple(b.Add(b.Mul(x, cos), b.Mul(turned, sin)) for x, turned in pairs)


@upgrade("ComplexMul ComplexMulConj", below=ANY, domain=MICROSOFT)
def complex_product(b: Builder, node: OldNode) -> Any:
    """The last axis holds the two parts of a number."""
    (a, c), (d, e) = (_two(b, x, -1) for x in node.given(2))
    if node.op_type == "ComplexMulConj":
        e = b.Neg(e)
    real = b.Sub(b.Mul(a, d), b.Mul(c, e))
    return b.Concat(real, b.Add(b.Mul(a, e), b.Mul(c, d)), axis=-1)


@upgrade("IsAllFinite", below=ANY, domain=MICROSOFT)
def all_finite(b: Builder, node: OldNode) -> Any:
    tests = [] if node.attr("isinf_only", 0) else ["IsNaN"]
    tests += [] if node.attr("isnan_only", 0) else ["IsInf"]
    found = [b.node(t, x).outputs[0] for x in node.inputs for t in tests]
    flags = [b.Unsqueeze(b.ReduceMax(flag, keepdims=0), b.ints(0)) for flag in found]
    return b.Not(b.ReduceMax(b.Concat(*flags, axis=0), keepdims=0))


@upgrade("TorchEmbedding", below=ANY, domain=MICROSOFT)
def table_lookup(b: Builder, node: OldNode) -> Any:
    """What follows the first two inputs is for training."""
    return b.Gather(*node.inputs[:2])


@upgrade("GatedAdd", below=ANY, domain=MICROSOFT)
def gated_sum(b: Builder, node: OldNode) -> Any:
    x, y, gate = node.given(3)
    return b.Add(x, b.Mul(y, gate))


@upgrade("ScaledSiLU", below=ANY, domain=MICROSOFT)
def scaled_silu(b: Builder, node: OldNode) -> Any:
    x, factor = node.input(0), node.input(1)
    if factor is None:
        factor = b.const(np.float32(node.attr("alpha", 1.0)))
    scaled = b.Mul(b.Cast(x, to=F32.onnx), _scalar(b, b.Cast(factor, to=F32.onnx)))
    z = b.CastLike(scaled, x)
    return b.Mul(z, b.Sigmoid(z))


@upgrade("LinearAttentionGate", below=ANY, domain=MICROSOFT)
def decay_and_rate(b: Builder, node: OldNode) -> Any:
    x, bias, factor = node.given(3, 4)[:3]
    decay = b.Mul(b.Softplus(b.Add(b.Cast(x, to=F32.onnx), bias)), factor)
    rate = node.input(3)
    if rate is None and node.n_outputs > 1:
        raise InvalidGraph("beta is made of b, which is missing")
    return b.CastLike(decay, x), None if rate is None else b.Sigmoid(rate)


@upgrade("GatedRMSNorm", below=ANY, domain=MICROSOFT)
def gated_norm(b: Builder, node: OldNode) -> Any:
    """Groups as long as the scale are normalized, then multiplied by their gates."""
    x, factor, gate = node.given(3)
    how = node.attr("activation", b"silu")
    if how not in (b"silu", b"swish", b"sigmoid"):
        raise InvalidGraph(f"activation {how!r} is none of silu, swish, sigmoid")
    shape = b.Concat(b.Shape(x, end=-1), b.ints(-1), b.Shape(factor), axis=0)
    groups = b.Reshape(b.Cast(x, to=F32.onnx), shape)
    epsilon = {"epsilon": node.attr("epsilon", float(np.float32(1e-5)))}
    y = b.Reshape(
        b.RMSNormalization(groups, b.Cast(factor, to=F32.onnx), **epsilon), b.Shape(x), allowzero=1
    )
    gate = b.Cast(gate, to=F32.onnx)
    opened = b.Sigmoid(gate) if how == b"sigmoid" else b.Mul(gate, b.Sigmoid(gate))
    return b.CastLike(b.Mul(y, opened), x)


def _signal_axes(node: OldNode, default: int | None) -> int:
    """How many axes the signal has; only whole-hearted wishes for what there is are taken."""
    count: Any = node.attr("signal_ndim", default)
    if count not in (1, 2, 3):
        raise InvalidGraph(f"signal_ndim is {count}, and may be 1, 2 or 3")
    if not node.attr("onesided", 1) or node.attr("normalized", 0):
        raise InvalidGraph(f"{node.op_type} is one-sided and not normalized (onesided, normalized)")
    return int(count)


@upgrade("Rfft", below=ANY, domain=MICROSOFT)
def real_transform(b: Builder, node: OldNode) -> Any:
    axes = _signal_axes(node, 1)
    y = b.DFT(b.Unsqueeze(node.input(0), b.ints(-1)), None, b.const(np.int64(-2)), onesided=1)
    for axis in range(3, axes + 2):
        y = b.DFT(y, None, b.const(np.int64(-axis)))
    return y


@upgrade("Irfft", below=ANY, domain=MICROSOFT)
def inverse_real_transform(b: Builder, node: OldNode) -> Any:
    y = node.input(0)
    for axis in range(_signal_axes(node, None) + 1, 2, -1):
        y = b.DFT(y, None, b.const(np.int64(-axis)), inverse=1)
    y = b.DFT(y, None, b.const(np.int64(-2)), onesided=1, inverse=1)
    return b.Squeeze(y, b.ints(-1))


UPGRADES: Final = (
    *same_op, *indices_may_be_short, *axis_is_an_input, *pads_may_be_a_row, *delta_may_be_left_out,
    *in_order_of_appearance, *modes_had_other_names, *renamed, *product_and_gelu,
    *bias_and_residual, *bias_dropout_residual, *bias_and_softmax, *gated_by_gelu,
    *turned_by_given_angles, *complex_product, *all_finite, *real_transform,
    *inverse_real_transform, *table_lookup, *gated_sum, *scaled_silu, *decay_and_rate, *gated_norm,
)  # fmt: skip
