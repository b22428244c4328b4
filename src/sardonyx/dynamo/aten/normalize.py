"""Normalizations and their backward ops.

Statistics and sums are float32 for 16-bit inputs, and every result is rounded once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from sardonyx.base.records import frozen
from sardonyx.dynamo.aten_builder import AtenBuilder
from sardonyx.dynamo.table import lowers
from sardonyx.graph.dtype import F64
from sardonyx.graph.graph import Value

Results = tuple[Value | None, ...]


def _ones(b: AtenBuilder, x: Value, shape: Value) -> Value:
    return b.Expand(b.const(1, x.tensor.dtype), shape)


def _sum_outer(b: AtenBuilder, x: Value, n_outer: int) -> Value:
    """Return the sum over the first axes."""
    return b.ReduceSum(x, b.ints(*range(n_outer)), keepdims=0) if n_outer else x


@lowers("native_layer_norm.default")
def _(
    b: AtenBuilder, x: Value, shape: Any, weight: Value | None, bias: Value | None, eps: float
) -> Results:
    axis = x.tensor.rank - len(shape)
    dtype = x.tensor.dtype
    weight = _ones(b, x, b.sizes(shape)) if weight is None else b.cast(weight, dtype)
    bias = None if bias is None else b.cast(bias, dtype)
    return b.typed_as_out(*_layer_norm(b, x, weight, bias, axis, eps))


def _layer_norm(
    b: AtenBuilder, x: Value, weight: Value, bias: Value | None, axis: int, eps: float
) -> Results:
    """Return the normalized x, its means and reciprocal standard deviations."""
    if x.tensor.dtype is not F64:
        node = b.node("LayerNormalization", x, weight, bias, axis=axis, epsilon=eps, outputs=3)
        return node.outputs
    # Statistics of LayerNormalization are float32, from which gradients would lose precision.
    axes = b.ints(*range(axis, x.tensor.rank))
    mean = b.ReduceMean(x, axes, keepdims=1)
    centered = b.Sub(x, mean)
    variance = b.ReduceMean(b.Mul(centered, centered), axes, keepdims=1)
    rstd = b.Reciprocal(b.Sqrt(b.Add(variance, eps)))
    y = b.Mul(b.Mul(centered, rstd), weight)
    return (y if bias is None else b.Add(y, bias)), mean, rstd


@lowers("native_layer_norm_backward.default")
def _(
    b: AtenBuilder,
    dy: Value,
    x: Value,
    shape: Any,
    mean: Value,
    rstd: Value,
    weight: Value | None,
    bias: Value | None,
    mask: Any,
) -> Results:
    n_outer = x.tensor.rank - len(shape)
    inner = b.ints(*range(n_outer, x.tensor.rank))
    dy, x, mean, rstd = (b.wide(v) for v in (dy, x, mean, rstd))
    normalized = b.Mul(b.Sub(x, mean), rstd)
    dx = dw = db = None
    if mask[0]:
        # With g = dy w: dx = (g - mean(g) - normalized mean(g normalized)) rstd.
        scaled = dy if weight is None else b.Mul(dy, b.wide(weight))
        first = b.ReduceMean(scaled, inner, keepdims=1)
        second = b.ReduceMean(b.Mul(scaled, normalized), inner, keepdims=1)
        dx = b.Mul(b.Sub(b.Sub(scaled, first), b.Mul(normalized, second)), rstd)
    if mask[1] and weight is not None:
        dw = _sum_outer(b, b.Mul(dy, normalized), n_outer)
    if mask[2] and bias is not None:
        db = _sum_outer(b, dy, n_outer)
    return b.typed_as_out(dx, dw, db)


@lowers("_fused_rms_norm.default")
def _(b: AtenBuilder, x: Value, shape: Any, weight: Value | None, eps: float | None) -> Results:
    axis = x.tensor.rank - len(shape)
    epsilon = float(torch.finfo(torch.float32).eps if eps is None else eps)
    if eps is None and b.fake(0).dtype is torch.float64:
        epsilon = float(torch.finfo(torch.float64).eps)
    scale = _ones(b, x, b.sizes(shape)) if weight is None else b.cast(weight, x.tensor.dtype)
    node = b.node(
        "SimplifiedLayerNormalization", x, scale, axis=axis, epsilon=epsilon, outputs=2
    )  # fmt: skip
    return b.typed_as_out(*node.outputs)


@lowers("_fused_rms_norm_backward.default")
def _(
    b: AtenBuilder, dy: Value, x: Value, shape: Any, rstd: Value, weight: Value | None, mask: Any
) -> Results:
    n_outer = x.tensor.rank - len(shape)
    dy, x, rstd = (b.wide(v) for v in (dy, x, rstd))
    normalized = b.Mul(x, rstd)
    dx = dw = None
    if mask[0]:
        # With g = dy w: dx = (g - normalized mean(g normalized)) rstd.
        scaled = dy if weight is None else b.Mul(dy, b.wide(weight))
        inner = b.ints(*range(n_outer, x.tensor.rank))
        mean = b.ReduceMean(b.Mul(scaled, normalized), inner, keepdims=1)
        dx = b.Mul(b.Sub(scaled, b.Mul(normalized, mean)), rstd)
    if mask[1] and weight is not None:
        dw = _sum_outer(b, b.Mul(dy, normalized), n_outer)
    return b.typed_as_out(dx, dw)


# Group normalization


@lowers("native_group_norm.default")
def _(
    b: AtenBuilder,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    n: Any,
    c: Any,
    hw: Any,
    group: int,
    eps: float,
) -> Results:
    """A layer normalization of [n * group, c / group * hw], then a scale and a bias per channel."""
    shape = b.Shape(x)
    rows = b.Reshape(x, b.sizes((n * group, c // group * hw)))
    ones = _ones(b, x, b.sizes((c // group * hw,)))
    y, mean, rstd = _layer_norm(b, rows, ones, None, 1, eps)
    assert y is not None
    y = b.Reshape(y, shape)
    if weight is not None:
        y = b.Mul(y, _per_channel(b, b.cast(weight, y.tensor.dtype), x))
    if bias is not None:
        y = b.Add(y, _per_channel(b, b.cast(bias, y.tensor.dtype), x))
    pairs = b.sizes((n, group))
    return b.typed_as_out(y, b.Reshape(mean, pairs), b.Reshape(rstd, pairs))


@lowers("native_group_norm_backward.default")
def _(
    b: AtenBuilder,
    dy: Value,
    x: Value,
    mean: Value,
    rstd: Value,
    weight: Value | None,
    n: Any,
    c: Any,
    hw: Any,
    group: int,
    mask: Any,
) -> Results:
    shape, grouped = b.Shape(x), b.sizes((n, group, c // group, hw))
    dy, x = (b.Reshape(b.wide(v), grouped) for v in (dy, x))
    mean, rstd = (b.Unsqueeze(b.wide(v), b.ints(2, 3)) for v in (mean, rstd))
    normalized = b.Mul(b.Sub(x, mean), rstd)
    dx = dw = db = None
    if mask[0]:
        scaled = dy
        if weight is not None:
            scaled = b.Mul(dy, b.Reshape(b.wide(weight), b.sizes((group, c // group, 1))))
        first = b.ReduceMean(scaled, b.ints(2, 3), keepdims=1)
        second = b.ReduceMean(b.Mul(scaled, normalized), b.ints(2, 3), keepdims=1)
        dx = b.Mul(b.Sub(b.Sub(scaled, first), b.Mul(normalized, second)), rstd)
        dx = b.Reshape(dx, shape)
    if mask[1]:
        sums = b.ReduceSum(b.Mul(dy, normalized), b.ints(0, 3), keepdims=0)
        dw = b.Reshape(sums, b.sizes((c,)))
    if mask[2]:
        db = b.Reshape(b.ReduceSum(dy, b.ints(0, 3), keepdims=0), b.sizes((c,)))
    return b.typed_as_out(dx, dw, db)


# Batch normalization


def _per_channel(b: AtenBuilder, v: Value, x: Value) -> Value:
    """Return one number per channel, to broadcast with x."""
    return b.Reshape(v, b.ints(-1, *(1,) * (x.tensor.rank - 2)))


def _channel_axes(b: AtenBuilder, x: Value) -> Value:
    return b.ints(0, *range(2, x.tensor.rank))


def _count(b: AtenBuilder, x: Value) -> Value:
    """Return the number of elements per channel."""
    return b.cast(b.ReduceProd(b.Gather(b.Shape(x), _channel_axes(b, x))), x.tensor.dtype)


@frozen
class BatchNorm:
    """The operands of a batch normalization."""

    x: Value
    weight: Value | None
    bias: Value | None
    mean: Value | None  # running
    var: Value | None
    momentum: float
    eps: float


def _scaled(b: AtenBuilder, norm: BatchNorm, centered: Value, rstd: Value) -> Value:
    scale = rstd if norm.weight is None else b.Mul(rstd, b.wide(norm.weight))
    y = b.Mul(centered, _per_channel(b, scale, norm.x))
    return y if norm.bias is None else b.Add(y, _per_channel(b, b.wide(norm.bias), norm.x))


def _trained(b: AtenBuilder, norm: BatchNorm) -> Results:
    """Return y, the batch's mean and 1 / deviation, and the new running mean and variance."""
    x, axes = b.wide(norm.x), _channel_axes(b, norm.x)
    mean = b.ReduceMean(x, axes, keepdims=0)
    centered = b.Sub(x, _per_channel(b, mean, x))
    var = b.ReduceMean(b.Mul(centered, centered), axes, keepdims=0)
    rstd = b.Reciprocal(b.Sqrt(b.Add(var, norm.eps)))
    new_mean = new_var = None
    if norm.mean is not None and norm.var is not None:
        # The running variance is unbiased: n / (n - 1) of the batch's.
        count = _count(b, x)
        unbiased = b.Mul(var, b.Div(count, b.Sub(count, 1.0)))
        new_mean = _moved(b, norm.mean, mean, norm.momentum)
        new_var = _moved(b, norm.var, unbiased, norm.momentum)
    return _scaled(b, norm, centered, rstd), mean, rstd, new_mean, new_var


def _moved(b: AtenBuilder, old: Value, new: Value, momentum: float) -> Value:
    return b.Add(b.Mul(b.wide(old), 1 - momentum), b.Mul(new, momentum))


def _evaluated(b: AtenBuilder, norm: BatchNorm) -> Results:
    """Return the same; torch saves nothing, and the backward op reads the running statistics.

    As in torch, y is x with one factor and one shift per channel, which fold into a convolution if
    all are constants.
    """
    if norm.mean is None or norm.var is None:
        raise AssertionError("batch normalization without training has running statistics")
    x = b.wide(norm.x)
    rstd = b.Reciprocal(b.Sqrt(b.Add(b.wide(norm.var), norm.eps)))
    scale = rstd if norm.weight is None else b.Mul(rstd, b.wide(norm.weight))
    moved = b.Mul(b.wide(norm.mean), scale)
    shift = b.Neg(moved) if norm.bias is None else b.Sub(b.wide(norm.bias), moved)
    y = b.Add(b.Mul(x, _per_channel(b, scale, x)), _per_channel(b, shift, x))
    empty = b.const(np.zeros(0), x.tensor.dtype)
    return y, empty, empty, norm.mean, norm.var


@lowers(
    "_native_batch_norm_legit_functional.default",
    "_native_batch_norm_legit.default",
    "native_batch_norm.default",
)
def _(
    b: AtenBuilder,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value | None,
    var: Value | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Results:
    norm = BatchNorm(x, weight, bias, mean, var, momentum, eps)
    return b.typed_as_out(*(_trained if training else _evaluated)(b, norm))


@lowers("_native_batch_norm_legit.no_stats")
def _(
    b: AtenBuilder,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Results:
    return b.typed_as_out(*_trained(b, BatchNorm(x, weight, bias, None, None, momentum, eps)))


@lowers("_native_batch_norm_legit_no_training.default")
def _(b: AtenBuilder, *args: Any) -> Results:
    return b.typed_as_out(*_evaluated(b, BatchNorm(*args)))


def _with_reserve(b: AtenBuilder, results: Results) -> Results:
    """Insert the workspace of cuDNN, which is empty here, before the running statistics."""
    return b.typed_as_out(*results[:3], b.operand(np.zeros(0), torch.uint8), *results[3:])


@lowers("_batch_norm_with_update_functional.default")
def _(b: AtenBuilder, *args: Any) -> Results:
    return _with_reserve(b, _trained(b, BatchNorm(*args)))


@lowers("_batch_norm_no_update.default")
def _(b: AtenBuilder, *args: Any) -> Results:
    return _with_reserve(b, _evaluated(b, BatchNorm(*args)))


@lowers("native_batch_norm_backward.default", "batch_norm_backward.default")
def _(
    b: AtenBuilder,
    dy: Value,
    x: Value,
    weight: Value | None,
    running_mean: Any,
    running_var: Any,
    mean: Value,
    rstd: Value,
    train: bool,
    eps: float,
    mask: Any,
    reserve: Value | None = None,
) -> Results:
    axes = _channel_axes(b, x)
    if not train:
        mean = running_mean
        rstd = b.Reciprocal(b.Sqrt(b.Add(b.wide(running_var), eps)))
    dy, x, mean, rstd = (b.wide(v) for v in (dy, x, mean, rstd))
    normalized = b.Mul(b.Sub(x, _per_channel(b, mean, x)), _per_channel(b, rstd, x))
    dw = b.ReduceSum(b.Mul(dy, normalized), axes, keepdims=0)
    db = b.ReduceSum(dy, axes, keepdims=0)
    scale = rstd if weight is None else b.Mul(rstd, b.wide(weight))
    dx = dy
    if train:
        # dx = scale (dy - mean(dy) - normalized * mean(dy * normalized)), means over each channel.
        count = _count(b, x)
        dx = b.Sub(dx, _per_channel(b, b.Div(db, count), x))
        dx = b.Sub(dx, b.Mul(normalized, _per_channel(b, b.Div(dw, count), x)))
    dx = b.Mul(dx, _per_channel(b, scale, x))
    results = (dx, None if weight is None else dw, db)
    return b.typed_as_out(*(r if m else None for r, m in zip(results, mask, strict=True)))
