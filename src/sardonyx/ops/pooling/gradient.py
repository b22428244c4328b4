"""Gradients of the pooling ops."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sardonyx.base.records import replace
from sardonyx.graph.dtype import F32, I64
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.ops.conv.gradient import ConvGeometry, conv_geometry, image_gradient
from sardonyx.ops.gradient_rules import GradientBuilder, gradient, ranked, saved
from sardonyx.ops.pooling.standard import pool_window, unpooled_shape
from sardonyx.ops.sliding_window import numbers, window_of


@gradient("MaxPool")
def _(b: GradientBuilder, node: Node, dy: Value | None, *_: Value | None) -> Value | None:
    if dy is None:
        return None
    # The indices count over the whole input; overlapping windows add up.
    x, index = input_of(node, 0), saved(b, node, 1)
    rank = ranked(x).rank
    # storage_order 1 is column-major: row-major over reversed spatial axes.
    order = (0, 1, *range(rank - 1, 1, -1)) if node.attrs["storage_order"] else tuple(range(rank))
    image = b.zeros(b.Transpose(x, perm=order))
    index, dy = (b.Reshape(v, b.ints(-1)) for v in (index, dy))
    added = b.ScatterElements(b.Reshape(image, b.ints(-1)), index, dy, reduction=b"add")
    return b.Transpose(b.reshape(added, image), perm=order)


@gradient("AveragePool")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    """dx spreads dy / count over each window: by upsampling, or by a convolution with ones."""
    x = input_of(node, 0)
    geometry = conv_geometry(window_of(tuple(node.attrs["kernel_shape"]), node.attrs), x)
    geometry = _clipped_to_image(geometry, x, dy)
    # In ceil mode the last of several windows may reach beyond the image.
    if _is_tiled(geometry) and (not node.attrs["ceil_mode"] or _is_single_window(dy)):
        size = b.const(math.prod(geometry.kernel), I64)
        return _upsampled(b, b.divided(dy, size), geometry, x)
    counts = _window_counts(b, x, dy, geometry, node.attrs)
    return _spread(b, b.divided(dy, counts), geometry, x)


def _spread(b: GradientBuilder, share: Value, geometry: ConvGeometry, x: Value) -> Value:
    """Add each window's share to all elements of the window."""
    channels = ranked(x).dims[1]
    if isinstance(channels, int):
        ones = _ones(b, share, b.ints(channels, 1, *geometry.kernel))
        return b.reshape(image_gradient(b, share, ones, replace(geometry, group=channels), x), x)
    ones, plane = _ones(b, share, b.ints(1, 1, *geometry.kernel)), _as_planes(b, x)
    return b.reshape(image_gradient(b, _as_planes(b, share), ones, geometry, plane), x)


def _is_single_window(dy: Value) -> bool:
    """Whether the output comes from a single window."""
    return all(out == 1 for out in ranked(dy).dims[2:])


def _clipped_to_image(geometry: ConvGeometry, x: Value, dy: Value) -> ConvGeometry:
    """Clip a single window to the image; some models use kernels larger than any image."""
    sizes = ranked(x).shaped(ranked(x).dims[2:]).static
    if sizes is None or not _is_single_window(dy) or not _is_plain(geometry):
        return geometry
    kernel = tuple(map(min, geometry.kernel, sizes))
    return replace(geometry, kernel=kernel, strides=kernel)


def _is_plain(geometry: ConvGeometry) -> bool:
    return not any(geometry.pads) and all(d == 1 for d in geometry.dilations)


def _is_tiled(geometry: ConvGeometry) -> bool:
    """Whether windows are adjacent and do not overlap, without padding."""
    return _is_plain(geometry) and geometry.kernel == geometry.strides


def _upsampled(b: GradientBuilder, share: Value, geometry: ConvGeometry, x: Value) -> Value:
    """Repeat every element over its window, and pad with zeros to the image's size."""
    n, beside = geometry.n, range(3, 3 + 2 * geometry.n, 2)
    sizes = b.shape(share)
    pairs = [b.ints(1)] * (2 * n)
    pairs[1::2] = [b.ints(k) for k in geometry.kernel]
    for i in range(n):
        pairs[2 * i] = b.Slice(sizes, b.ints(2 + i), b.ints(3 + i))
    expanded_shape = b.Concat(b.Slice(sizes, b.ints(0), b.ints(2)), *pairs, axis=0)
    copies = b.Expand(b.Unsqueeze(share, b.ints(*beside)), expanded_shape)
    flat = b.Reshape(copies, b.Mul(sizes, b.ints(1, 1, *geometry.kernel)), allowzero=1)
    rest = b.Sub(b.shape(x), b.shape(flat))
    return b.reshape(b.Pad(flat, b.Concat(b.Mul(rest, 0), rest, axis=0)), x)


def _ones(b: GradientBuilder, like: Value, shape: Value) -> Value:
    return b.Expand(b.const(1, like.tensor.dtype), shape)


def _as_planes(b: GradientBuilder, x: Value) -> Value:
    """Reshape every channel to its own image: [N * C, 1, ...]."""
    spatial = b.Slice(b.shape(x), b.ints(2), b.ints(ranked(x).rank))
    return b.Reshape(x, b.Concat(b.ints(-1, 1), spatial, axis=0))


def _window_counts(
    b: GradientBuilder, x: Value, dy: Value, geometry: ConvGeometry, attrs: Mapping[str, Any]
) -> Value:
    """Return the number of elements that each window averages, as [1, 1, ...]."""
    n, axes = geometry.n, b.ints(*range(2, 2 + geometry.n))
    counts_pads = attrs["count_include_pad"]
    spatial = b.Gather(b.shape(x), axes)
    ones = b.Expand(b.const(1, F32), b.Concat(b.ints(1, 1), spatial, axis=0))
    pad_value = b.const(1 if counts_pads else 0, F32)
    padded = b.Pad(ones, b.ints(*geometry.pads), pad_value, axes)
    # In ceil mode the last window may reach beyond the padding, which is never counted.
    last = b.Mul(b.Sub(b.Gather(b.shape(dy), axes), 1), b.ints(*geometry.strides))
    reach = b.Add(last, b.ints(*(geometry.extent(i) for i in range(n))))
    around = b.ints(*map(sum, zip(geometry.begins, geometry.ends, strict=True)))
    beyond = b.Sub(reach, b.Add(spatial, around))
    padded = b.Pad(padded, b.Concat(b.ints(*(0,) * n), beyond, axis=0), None, axes)
    kernel = _ones(b, ones, b.ints(1, 1, *geometry.kernel))
    return b.Conv(padded, kernel, strides=geometry.strides, dilations=geometry.dilations)


@gradient("GlobalAveragePool")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    x = input_of(node, 0)
    return b.expand(b.divided(dy, b.size(x, range(2, ranked(x).rank))), x)


@gradient("GlobalMaxPool")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    """The gradient is split evenly among the elements that attain the maximum."""
    x = input_of(node, 0)
    mask = b.Equal(x, node.outputs[0])
    axes = b.ints(*range(2, ranked(x).rank))
    return b.where(mask, b.divided(dy, b.count(mask, axes, x.tensor.dtype)))


@gradient("LpPool")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    x, window = input_of(node, 0), window_of(tuple(node.attrs["kernel_shape"]), node.attrs)
    slope, share = _norm_gradients(b, node, dy)
    return b.Mul(slope, _spread(b, share, conv_geometry(window, x), x))


@gradient("GlobalLpPool")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    slope, share = _norm_gradients(b, node, dy)
    return b.Mul(slope, share)


def _norm_gradients(b: GradientBuilder, node: Node, dy: Value) -> tuple[Value, Value]:
    """Return the factors of the gradient of (sum |x|^p)^(1/p): |x|^(p-1) sign x and dy y^(1-p)."""
    x, y, p = input_of(node, 0), node.outputs[0], node.attrs["p"]
    if p == 1:
        return b.Sign(x), dy
    # The norm has no derivative at 0, where all elements are 0.
    one, is_zero = b.const(1, y.tensor.dtype), b.Equal(y, b.const(0, y.tensor.dtype))
    norm = b.Where(is_zero, one, y)
    if p == 2:
        return x, b.where(b.Not(is_zero), b.Div(dy, norm))
    power = b.const(p - 1, x.tensor.dtype)
    slope = b.Mul(b.Pow(b.Abs(x), power), b.Sign(x))
    return slope, b.where(b.Not(is_zero), b.Div(dy, b.Pow(norm, power)))


@gradient("MaxUnpool")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    """Read the gradient where the elements were written."""
    x, index = input_of(node, 0), input_of(node, 1)
    if optional_input(node, 2) is not None:
        # Indices count in the default output shape, even if the output is larger.
        rank = ranked(x).rank
        one = numbers(unpooled_shape((1,) * rank, node.attrs))  # of one window
        steps = b.ints(1, 1, *pool_window(rank, node.attrs).strides)
        natural = b.Add(b.Mul(b.Sub(b.shape(x), 1), steps), b.ints(*one))
        dy = b.Slice(dy, b.ints(*(0,) * rank), natural)
    return b.Gather(b.Reshape(dy, b.ints(-1)), index)
