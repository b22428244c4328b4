"""Gradients of pools."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sardonyx.base.records import replace
from sardonyx.errors import NotImplemented
from sardonyx.graph.graph import Node, Value, given
from sardonyx.ops.conv.gradient import ConvGeometry, conv_geometry, image_gradient
from sardonyx.ops.gradients import GradientBuilder, gradient, ranked, saved
from sardonyx.ops.sliding_window import window_of


@gradient("MaxPool")
def _(b: GradientBuilder, node: Node, dy: Value | None, *_: Value | None) -> Value | None:
    if dy is None:
        return None
    if node.attrs["storage_order"]:
        raise NotImplemented(
            "a MaxPool with storage_order 1 has no gradient", hint="it has one with storage_order 0"
        )
    x, index = given(node, 0), saved(b, node, 1)
    flat = b.Reshape(b.zeros(x), b.ints(-1))
    row = b.ints(-1)
    put = b.ScatterElements(flat, b.Reshape(index, row), b.Reshape(dy, row), reduction=b"add")
    return b.reshape(put, x)


@gradient("AveragePool")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    """Each window's share goes back to its elements: copies of it, or a convolution by ones."""
    x = given(node, 0)
    moves = conv_geometry(window_of(tuple(node.attrs["kernel_shape"]), node.attrs), x)
    moves = _within(moves, x, dy)
    # Rounding up, the last of several windows may reach beyond the image.
    if _is_tiled(moves) and (not node.attrs["ceil_mode"] or _is_one(dy)):
        return _copies(b, b.Mul(dy, 1 / math.prod(moves.kernel)), moves, x)
    share = b.Div(dy, _counts(b, x, dy, moves, node.attrs))
    channels = ranked(x).dims[1]
    if isinstance(channels, int):
        ones = _ones(b, x, b.ints(channels, 1, *moves.kernel))
        return b.reshape(image_gradient(b, share, ones, replace(moves, group=channels), x), x)
    ones, plane = _ones(b, x, b.ints(1, 1, *moves.kernel)), _as_planes(b, x)
    return b.reshape(image_gradient(b, _as_planes(b, share), ones, moves, plane), x)


def _is_one(dy: Value) -> bool:
    """Whether a single window made the output."""
    return all(out == 1 for out in ranked(dy).dims[2:])


def _within(moves: ConvGeometry, x: Value, dy: Value) -> ConvGeometry:
    """A single window cut to the image: some are given as large as any image may be."""
    sizes = ranked(x).shaped(ranked(x).dims[2:]).static
    if sizes is None or not _is_one(dy) or not _is_plain(moves):
        return moves
    kernel = tuple(map(min, moves.kernel, sizes))
    return replace(moves, kernel=kernel, strides=kernel)


def _is_plain(moves: ConvGeometry) -> bool:
    return not any((*moves.begins, *moves.ends)) and all(d == 1 for d in moves.dilations)


def _is_tiled(moves: ConvGeometry) -> bool:
    """Whether windows lie side by side, with nothing around them."""
    return _is_plain(moves) and moves.kernel == moves.strides


def _copies(b: GradientBuilder, share: Value, moves: ConvGeometry, x: Value) -> Value:
    """Every element as often as its window is large, and zeros where no window was."""
    n, beside = moves.n, range(3, 3 + 2 * moves.n, 2)
    sizes = b.shape(share)
    pairs = [b.ints(1)] * (2 * n)
    pairs[1::2] = [b.ints(k) for k in moves.kernel]
    for i in range(n):
        pairs[2 * i] = b.Slice(sizes, b.ints(2 + i), b.ints(3 + i))
    room = b.Concat(b.Slice(sizes, b.ints(0), b.ints(2)), *pairs, axis=0)
    copies = b.Expand(b.Unsqueeze(share, b.ints(*beside)), room)
    flat = b.Reshape(copies, b.Mul(sizes, b.ints(1, 1, *moves.kernel)), allowzero=1)
    rest = b.Sub(b.shape(x), b.shape(flat))
    return b.reshape(b.Pad(flat, b.Concat(b.Mul(rest, 0), rest, axis=0)), x)


def _ones(b: GradientBuilder, like: Value, shape: Value) -> Value:
    return b.Expand(b.const(1, like.tensor.dtype), shape)


def _as_planes(b: GradientBuilder, x: Value) -> Value:
    """Every channel as an image of its own: [N * C, 1, ...]."""
    spatial = b.Slice(b.shape(x), b.ints(2), b.ints(ranked(x).rank))
    return b.Reshape(x, b.Concat(b.ints(-1, 1), spatial, axis=0))


def _counts(
    b: GradientBuilder, x: Value, dy: Value, moves: ConvGeometry, attrs: Mapping[str, Any]
) -> Value:
    """How many elements each window's mean is over, as [1, 1, ...]."""
    n, axes = moves.n, b.ints(*range(2, 2 + moves.n))
    counts_pads = attrs["count_include_pad"]
    spatial = b.Gather(b.shape(x), axes)
    ones = _ones(b, x, b.Concat(b.ints(1, 1), spatial, axis=0))
    edge = b.const(1 if counts_pads else 0, x.tensor.dtype)
    framed = b.Pad(ones, b.ints(*moves.begins, *moves.ends), edge, axes)
    # Rounding up, the last window may reach further, over what never counts.
    last = b.Mul(b.Sub(b.Gather(b.shape(dy), axes), 1), b.ints(*moves.strides))
    reach = b.Add(last, b.ints(*(moves.extent(i) for i in range(n))))
    room = b.Sub(
        reach, b.Add(spatial, b.ints(*map(sum, zip(moves.begins, moves.ends, strict=True))))
    )
    framed = b.Pad(framed, b.Concat(b.ints(*(0,) * n), room, axis=0), None, axes)
    kernel = _ones(b, x, b.ints(1, 1, *moves.kernel))
    return b.Conv(framed, kernel, strides=moves.strides, dilations=moves.dilations)


@gradient("GlobalAveragePool")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    x = given(node, 0)
    return b.expand(b.Div(dy, b.size(x, range(2, ranked(x).rank))), x)


@gradient("GlobalMaxPool")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    """Elements that are equal share the gradient."""
    x = given(node, 0)
    mask = b.Equal(x, node.outputs[0])
    axes = b.ints(*range(2, ranked(x).rank))
    count = b.ReduceSum(b.cast(mask, x.tensor.dtype), axes, keepdims=1)
    return b.where(mask, b.Div(dy, count))
