"""Pooling and its gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from sardonyx.dynamo.aten_builder import AtenBuilder, Dimension, Unsupported, expression_of, static
from sardonyx.dynamo.axis_maps import Matrix, apply_along
from sardonyx.dynamo.table import lowers
from sardonyx.graph.dtype import F32, I64
from sardonyx.graph.graph import Node, Value


def _n_axes(b: AtenBuilder) -> int:
    """Return the number of spatial axes that the op's name says."""
    return int(str(b.call_node.target).split("pool")[1][0])


def _spread(numbers: Sequence[int], n: int) -> tuple[int, ...]:
    """Return one number per spatial axis; torch gives one for all of them as a list of one."""
    return tuple(numbers) * n if len(numbers) == 1 else tuple(numbers)


def _window(
    kernel: Sequence[int], stride: Any, padding: Any, n: int, ceil_mode: bool
) -> dict[str, Any]:
    return {
        "kernel_shape": _spread(kernel, n),
        "strides": _spread(stride or kernel, n),
        "pads": _spread(padding, n) * 2,
        "ceil_mode": int(ceil_mode),
    }


def _batched(b: AtenBuilder, x: Value, n: int) -> tuple[Value, bool]:
    """Add a batch axis where torch lets it be absent."""
    is_single = x.tensor.rank == n + 1
    return (b.Unsqueeze(x, b.ints(0)) if is_single else x), is_single


def _unbatched(b: AtenBuilder, x: Value, is_single: bool) -> Value:
    return b.Squeeze(x, b.ints(0)) if is_single else x


# Max pooling


@lowers("max_pool2d_with_indices.default", "max_pool3d_with_indices.default")
def _(
    b: AtenBuilder,
    x: Value,
    kernel: Any,
    stride: Any = (),
    padding: Any = (0,),
    dilation: Any = (1,),
    ceil_mode: bool = False,
) -> tuple[Value, ...]:
    n = _n_axes(b)
    x, is_single = _batched(b, x, n)
    attrs = _window(kernel, stride, padding, n, ceil_mode)
    y, indices = _max_pool(b, x, {**attrs, "dilations": _spread(dilation, n)})
    return tuple(_unbatched(b, v, is_single) for v in (y, indices))


def _max_pool(b: AtenBuilder, x: Value, attrs: dict[str, Any]) -> tuple[Value, Value]:
    """Add a MaxPool; ONNX counts indices over the whole tensor, torch within each plane."""
    n = x.tensor.rank - 2
    y, indices = b.node("MaxPool", x, outputs=2, **attrs).outputs
    shape = b.Shape(x)
    lead, spatial = b.Slice(shape, b.ints(0), b.ints(2)), b.Slice(shape, b.ints(2), b.ints(2 + n))
    n_planes, plane = (b.ReduceProd(v, b.ints(0), keepdims=0) for v in (lead, spatial))
    firsts = b.Mul(b.arange(n_planes), plane)  # index of each plane's first element
    return y, b.Sub(indices, b.Reshape(firsts, b.Concat(lead, b.ints(*(1,) * n), axis=0)))


@lowers(
    "max_pool2d_with_indices_backward.default",
    "max_pool3d_with_indices_backward.default",
    "adaptive_max_pool2d_backward.default",
    "adaptive_max_pool3d_backward.default",
)
def _(b: AtenBuilder, dy: Value, x: Value, *rest: Any) -> Value:
    indices, dtype = rest[-1], dy.tensor.dtype
    shape = b.Shape(x)
    lead = b.Slice(shape, b.ints(0), b.ints(x.tensor.rank - _n_axes(b)))
    plane = b.Slice(shape, b.ints(x.tensor.rank - _n_axes(b)), b.ints(x.tensor.rank))
    # Planes become rows; windows may overlap, so gradients of one element add up.
    rows = b.Concat(lead, b.ReduceProd(plane, b.ints(0)), axis=0)
    # Unlike the plane, the result may be empty: -1 needs at least one other element.
    outs = b.Slice(b.Shape(dy), b.ints(x.tensor.rank - _n_axes(b)), b.ints(x.tensor.rank))
    row_outs = b.Concat(lead, b.ReduceProd(outs, b.ints(0)), axis=0)
    index, updates = (b.Reshape(v, row_outs, allowzero=1) for v in (indices, b.as_f32(dy)))
    zeros = b.Expand(b.const(0, F32), rows)
    sums = b.ScatterElements(zeros, index, updates, axis=-1, reduction=b"add")
    return b.cast(b.Reshape(sums, shape, allowzero=1), dtype)


# Average pooling


def _average(b: AtenBuilder, x: Value, window: dict[str, Any], count: bool) -> Node:
    return b.node("AveragePool", x, count_include_pad=int(count), **window)


def _padded_window(b: AtenBuilder, x: Value, window: dict[str, Any]) -> tuple[Any, Any]:
    """Return the pads of explicit padding, with which every window is complete, and the window."""
    n = len(window["kernel_shape"])
    outs = [static(d, "the size of the image") for d in b.out.shape[-n:]]
    if "backward" in str(b.call_node.target):
        outs = [static(d, "the size of the image") for d in b.fake(0).shape[-n:]]
        sizes = [static(d, "the size of the image") for d in b.fake(1).shape[-n:]]
    else:
        sizes = [static(d, "the size of the image") for d in b.fake(0).shape[-n:]]
    begins = window["pads"][:n]
    spans = zip(outs, window["strides"], window["kernel_shape"], sizes, begins, strict=True)
    ends = [max(0, (o - 1) * s + k - size - begin) for o, s, k, size, begin in spans]
    return (*begins, *ends), {**window, "pads": (0,) * (2 * n), "ceil_mode": 0}


@lowers("avg_pool2d.default", "avg_pool3d.default", "avg_pool1d.default")
def _(
    b: AtenBuilder,
    x: Value,
    kernel: Any,
    stride: Any = (),
    padding: Any = (0,),
    ceil_mode: bool = False,
    count: bool = True,
    divisor: Any = None,
) -> Value:
    n = _n_axes(b)
    x, is_single = _batched(b, x, n)
    window = _window(kernel, stride, padding, n, ceil_mode)
    if divisor is None:
        return _unbatched(b, _average(b, x, window, count).outputs[0], is_single)
    # sum / divisor is the average of complete windows times their size / divisor.
    pads, inner = _padded_window(b, x, window)
    padded = b.Pad(b.as_f32(x), b.ints(*pads), None, b.ints(*range(2, 2 + n)))
    y = b.Mul(_average(b, padded, inner, True).outputs[0], _share(window, divisor))
    return _unbatched(b, b.cast(y, x.tensor.dtype), is_single)


def _share(window: dict[str, Any], divisor: int) -> float:
    return float(math.prod(window["kernel_shape"]) / divisor)


@lowers("avg_pool2d_backward.default", "avg_pool3d_backward.default")
def _(
    b: AtenBuilder,
    dy: Value,
    x: Value,
    kernel: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count: bool,
    divisor: Any,
) -> Value:
    n, dtype = _n_axes(b), dy.tensor.dtype
    x, is_single = _batched(b, b.as_f32(x), n)
    dy, _ = _batched(b, b.as_f32(dy), n)
    window = _window(kernel, stride, padding, n, ceil_mode)
    if divisor is None:
        (dx,) = b.gradients(_average(b, x, window, count), dy, [True])
    else:
        pads, inner = _padded_window(b, x, window)
        axes = b.ints(*range(2, 2 + n))
        padded = b.Pad(x, b.ints(*pads), None, axes)
        dy = b.Mul(dy, _share(window, divisor))
        (dx,) = b.gradients(_average(b, padded, inner, True), dy, [True])
        assert dx is not None
        begins = b.ints(*pads[:n])
        ends = b.Add(begins, b.Slice(b.Shape(x), b.ints(2), b.ints(2 + n)))
        dx = b.Slice(dx, begins, ends, axes)
    assert dx is not None
    return _unbatched(b, b.cast(dx, dtype), is_single)


# Adaptive pooling: window i of `out` begins at floor(i * size / out), ends before
# ceil((i + 1) * size / out).


def _windows(size: int, out: int) -> list[range]:
    return [range(i * size // out, -(-(i + 1) * size // out)) for i in range(out)]


def _averages(size: int, out: int) -> Matrix:
    """Return the matrix [out, size] that averages adaptive windows."""
    matrix = np.zeros((out, size), np.float32)
    for row, window in zip(matrix, _windows(size, out), strict=True):
        row[window.start : window.stop] = 1 / len(window)
    return matrix


def _spatial(fake: torch.Tensor, n: int) -> list[int]:
    return [static(d, "the size of the image") for d in fake.shape[-n:]]


def _is_one(sizes: Sequence[Dimension]) -> bool:
    return all(expression_of(d) == 1 for d in sizes)


@lowers("_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default")
def _(b: AtenBuilder, x: Value, output_size: Sequence[Dimension]) -> Value:
    n, dtype = _n_axes(b), x.tensor.dtype
    axes = range(x.tensor.rank - n, x.tensor.rank)
    y = b.as_f32(x)
    if _is_one(output_size):  # of open sizes, too
        return b.cast(b.ReduceMean(y, b.ints(*axes)), dtype)
    sizes = _spatial(b.fake(0), n)
    outs = [static(d, "the output size") for d in output_size]
    factors = _whole_factors(sizes, outs)
    if factors is not None:
        y, is_single = _batched(b, y, n)
        y = b.AveragePool(y, kernel_shape=factors, strides=factors)
        return b.cast(_unbatched(b, y, is_single), dtype)
    for axis, size, out in zip(axes, sizes, outs, strict=True):
        y = apply_along(b, y, _averages(size, out), axis)
    return b.cast(y, dtype)


def _whole_factors(sizes: Sequence[int], outs: Sequence[int]) -> tuple[int, ...] | None:
    """Return the size of windows that are all alike; None if they are not."""
    pairs = list(zip(sizes, outs, strict=True))
    if all(o and s and s % o == 0 for s, o in pairs):
        return tuple(s // o for s, o in pairs)
    return None


@lowers("_adaptive_avg_pool2d_backward.default", "_adaptive_avg_pool3d_backward.default")
def _(b: AtenBuilder, dy: Value, x: Value) -> Value:
    n, dtype = _n_axes(b), dy.tensor.dtype
    axes = range(x.tensor.rank - n, x.tensor.rank)
    dx = b.as_f32(dy)
    if _is_one(b.fake(0).shape[-n:]):
        shape = b.Shape(x)
        plane = b.ReduceProd(b.Slice(shape, b.ints(axes[0]), b.ints(x.tensor.rank)), b.ints(0))
        return b.cast(b.Expand(b.Div(dx, b.cast(plane, F32)), shape), dtype)
    outs, sizes = (_spatial(b.fake(i), n) for i in range(2))
    factors = _whole_factors(sizes, outs)
    if factors is not None:
        image, is_single = _batched(b, b.as_f32(x), n)
        dx, _ = _batched(b, dx, n)
        forward = b.node("AveragePool", image, kernel_shape=factors, strides=factors)
        (grad,) = b.gradients(forward, dx, [True])
        assert grad is not None
        return b.cast(_unbatched(b, grad, is_single), dtype)
    for axis, size, out in zip(axes, sizes, outs, strict=True):
        dx = apply_along(b, dx, np.ascontiguousarray(_averages(size, out).T), axis)
    return b.cast(dx, dtype)


@lowers("adaptive_max_pool2d.default", "adaptive_max_pool3d.default")
def _(b: AtenBuilder, x: Value, output_size: Sequence[int]) -> tuple[Value, ...]:
    n = _n_axes(b)
    sizes, outs = _spatial(b.fake(0), n), list(output_size)
    factors = _whole_factors(sizes, outs)
    if factors is not None:
        x, is_single = _batched(b, x, n)
        results = _max_pool(b, x, {"kernel_shape": factors, "strides": factors})
        return tuple(_unbatched(b, v, is_single) for v in results)
    if not all(sizes) or not all(outs):
        raise Unsupported("the image is empty")
    return _adaptive_max(b, x, sizes, outs)


def _adaptive_max(b: AtenBuilder, x: Value, sizes: list[int], outs: list[int]) -> tuple[Value, ...]:
    """Gather all windows as [..., windows, elements]; short ones read their last element again."""
    n, rank, plane = len(sizes), x.tensor.rank, math.prod(sizes)
    flat = np.zeros((1, 1), np.int64)  # [windows, elements] -> the index in the plane
    for size, out in zip(sizes, outs, strict=True):
        windows = _windows(size, out)
        length = max(map(len, windows))
        along = np.array([[w[min(k, len(w) - 1)] for k in range(length)] for w in windows])
        pairs = flat[:, None, :, None] * size + along[None, :, None, :]
        flat = pairs.reshape(flat.shape[0] * out, -1)
    lead = b.Slice(b.Shape(x), b.ints(0), b.ints(rank - n))
    rows = b.Reshape(x, b.Concat(lead, b.ints(plane), axis=0))
    elements = b.Gather(rows, b.const(flat, I64), axis=rank - n)
    best = b.ArgMax(elements, axis=-1, keepdims=0)  # the first of equal ones, as in torch
    first = b.const(np.arange(flat.shape[0]) * flat.shape[1], I64)
    indices = b.Gather(b.const(flat.reshape(-1), I64), b.Add(best, first), axis=0)
    shape = b.Concat(lead, b.ints(*outs), axis=0)
    y = b.ReduceMax(elements, b.ints(-1), keepdims=0)
    return b.Reshape(y, shape), b.Reshape(indices, shape)
