"""Gradients of GridSample, AffineGrid, RoiAlign and MaxRoiPool, by decomposition."""

from __future__ import annotations

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.graph.dtype import F32, F64, I64
from sardonyx.graph.graph import Node, Value, input_of
from sardonyx.ops.gradient_rules import GradientBuilder, decompose, ranked
from sardonyx.ops.normalize.standard import widened
from sardonyx.ops.sample.grid import CUBIC_A
from sardonyx.ops.sample.taps import (
    Axis,
    Tap,
    axis_of_image,
    channels_first,
    clamped,
    gathered,
    inside,
    weighted_sum,
    weighted_terms,
    zero_outside,
)

Span = tuple[Value, Value]  # lowest and highest position


@decompose("GridSample")
def _(b: GradientBuilder, node: Node) -> Value:
    x, grid = input_of(node, 0), input_of(node, 1)
    image, points = widened(b, x), widened(b, grid)
    n, dtype = ranked(x).rank - 2, points.tensor.dtype
    axes = []
    for i in range(n):
        axis = axis_of_image(b, x, 2 + i, dtype)
        # The grid's last axis is (x, y, ...): the innermost axis first.
        point = b.Gather(points, b.const(n - 1 - i, I64), axis=-1)
        axes.append(_taps(b, node, point, axis))
    count = b.length(x, 0)
    samples = weighted_sum(b, image, b.along(b.arange(count), 0, n + 1), axes)
    return b.cast(channels_first(b, samples), x.tensor.dtype)


def _taps(b: GradientBuilder, node: Node, point: Value, axis: Axis) -> list[Tap]:
    """Return the neighbours along one axis of points in [-1, 1]."""
    mode, padding = node.attrs["mode"], node.attrs["padding_mode"]
    zero = b.const(0, point.tensor.dtype)
    # The pixels' centers, or their edges half a pixel further out.
    span = (zero, axis.last)
    if not node.attrs["align_corners"]:
        span = (b.const(-0.5, point.tensor.dtype), b.Sub(axis.size, 0.5))
    position = b.Mul(b.Mul(b.Add(point, 1.0), 0.5), b.Sub(span[1], span[0]))
    position = b.Add(position, span[0])
    if mode == b"nearest":
        position = b.Round(position)
    if padding == b"border" and mode != b"cubic":  # cubic clamps each of its neighbours instead
        # At the border itself the derivative is that outside, as in PyTorch.
        is_inside = b.And(b.Greater(position, zero), b.Less(position, axis.last))
        border = b.Where(b.Greater(position, zero), axis.last, zero)
        position = b.Where(is_inside, position, border)
    elif padding == b"reflection":
        position = _reflected(b, position, span)
    position = clamped(b, position, axis)
    low = b.Floor(position)
    pairs = _weighted_neighbours(b, low, b.Sub(position, low), mode)
    if padding == b"zeros":
        return [zero_outside(b, index, weight, axis) for index, weight in pairs]
    if padding == b"reflection":
        pairs = [(_reflected(b, index, span), weight) for index, weight in pairs]
    return [Tap(inside(b, b.Floor(index), axis), weight) for index, weight in pairs]


def _reflected(b: GradientBuilder, position: Value, span: Span) -> Value:
    """Reflect positions at the borders, repeatedly, into the span."""
    low, high = span
    width = b.Sub(high, low)
    # Of an axis of size 1 with aligned corners, every position is 0.
    width = b.Where(b.Greater(width, 0.0), width, b.const(1, width.tensor.dtype))
    # A reflected axis is periodic with twice its width; the second half runs backwards.
    period, shifted = b.Mul(width, 2.0), b.Sub(position, low)
    folded = b.Sub(shifted, b.Mul(b.Floor(b.Div(shifted, period)), period))
    return b.Add(b.Where(b.Greater(folded, width), b.Sub(period, folded), folded), low)


def _weighted_neighbours(
    b: GradientBuilder, low: Value, fraction: Value, mode: bytes
) -> list[tuple[Value, Value]]:
    """Return the indices and weights of the neighbours of positions low + fraction."""
    one = b.const(1, fraction.tensor.dtype)
    if mode == b"nearest":
        return [(low, b.expand(one, low))]
    if mode == b"linear":
        return [(low, b.Sub(one, fraction)), (b.Add(low, 1.0), fraction)]
    a = CUBIC_A

    def near(t: Value) -> Value:
        steep = b.Sub(b.Mul(t, a + 2), a + 3)
        return b.Add(b.Mul(steep, b.Mul(t, t)), 1.0)

    def far(t: Value) -> Value:
        quadratic = b.Add(b.Mul(b.Sub(b.Mul(t, a), 5 * a), t), 8 * a)
        return b.Sub(b.Mul(quadratic, t), 4 * a)

    # Keys' cubic convolution, as `cubic_weights` in interpolate.py.
    rest = b.Sub(one, fraction)
    weights = (far(b.Add(fraction, 1.0)), near(fraction), near(rest), far(b.Add(rest, 1.0)))
    return [(b.Add(low, float(i - 1)), weight) for i, weight in enumerate(weights)]


@decompose("AffineGrid")
def _(b: GradientBuilder, node: Node) -> Value:
    """The grid of the identity, with a column of ones, times theta."""
    theta, size = input_of(node, 0), b.cast(input_of(node, 1), I64)
    wide, n = widened(b, theta), ranked(node.outputs[0]).rank - 2
    identity = b.const(np.eye(n, n + 1)[None], wide.tensor.dtype)
    one_image = b.Concat(b.ints(1), b.Slice(size, b.ints(1), b.ints(n + 2)), axis=0)
    base = b.AffineGrid(identity, one_image, align_corners=node.attrs["align_corners"])
    # [points, n + 1] times [batch, n + 1, n].
    flat, one = b.Reshape(base, b.ints(-1, n)), b.const(1, wide.tensor.dtype)
    points = b.Pad(flat, b.ints(0, 0, 0, 1), one)
    grid = b.MatMul(points, b.transposed(wide))
    return b.cast(b.reshape(grid, node.outputs[0]), theta.tensor.dtype)


@frozen
class RegionSamples:
    """The samples of regions along one axis, all [regions, bins, samples]."""

    taps: list[Tap]
    is_used: Value  # regions have different numbers of samples

    def reshaped(self, b: GradientBuilder, *new_axes: int) -> RegionSamples:
        """Return the same with new axes of size 1."""
        at = b.ints(*new_axes)
        taps = [Tap(b.Unsqueeze(t.index, at), b.Unsqueeze(t.weight, at)) for t in self.taps]
        return RegionSamples(taps, b.Unsqueeze(self.is_used, at))


@decompose("RoiAlign")
def _(b: GradientBuilder, node: Node) -> Value:
    x = input_of(node, 0)
    # Rows are [regions, bins, samples, 1, 1] and columns [regions, 1, 1, bins, samples].
    rows, columns = _samples(b, node, 1).reshaped(b, 3, 4), _samples(b, node, 0).reshaped(b, 1, 2)
    number = b.Reshape(input_of(node, 2), b.ints(-1, 1, 1, 1, 1))
    terms = weighted_terms(b, widened(b, x), number, (rows.taps, columns.taps))
    over = b.ints(1, 3, 5)  # combinations of neighbours, and samples along both axes
    if node.attrs["mode"] == b"avg":
        pooled = b.ReduceSum(terms, over, keepdims=0)
    else:
        # The maximum of the weighted neighbours, not of interpolated samples, as ONNX defines it.
        is_used = b.Unsqueeze(b.And(rows.is_used, columns.is_used), b.ints(1, -1))
        pooled = _largest(b, terms, is_used, over)
    return b.cast(channels_first(b, pooled), x.tensor.dtype)


def _largest(b: GradientBuilder, terms: Value, is_used: Value, axes: Value) -> Value:
    """Return the maximum over the terms that are used; 0 where none is."""
    lowest = b.const(-np.inf, terms.tensor.dtype)
    largest = b.ReduceMax(b.Where(is_used, terms, lowest), axes, keepdims=0)
    count = b.ReduceSum(b.cast(is_used, terms.tensor.dtype), axes, keepdims=0)
    return b.where(b.Greater(count, 0.0), largest)


def _samples(b: GradientBuilder, node: Node, i: int) -> RegionSamples:
    """Return the sampling points of all regions: across (i = 0) or down (i = 1)."""
    x, rois, attrs = input_of(node, 0), widened(b, input_of(node, 1)), node.attrs
    is_aligned = attrs["coordinate_transformation_mode"] == b"half_pixel"
    dtype, bins = rois.tensor.dtype, attrs["output_height" if i else "output_width"]
    axis = axis_of_image(b, x, 3 - i, dtype)
    corners = b.Sub(b.Mul(rois, attrs["spatial_scale"]), 0.5 if is_aligned else 0.0)
    start, end = (b.Unsqueeze(b.Gather(corners, b.ints(k), axis=1), b.ints(2)) for k in (i, i + 2))
    one, length = b.const(1, dtype), b.Sub(end, start)  # [regions, 1, 1]
    # Not times 1 / bins: rounding must not change the number of samples.
    step = b.Div(length if is_aligned else b.Max(length, one), float(bins))
    count = b.Max(b.Ceil(step), b.const(0, dtype))
    if attrs["sampling_ratio"] > 0:
        count = b.const([[[attrs["sampling_ratio"]]]], dtype)
    most = b.cast(b.Max(b.ReduceMax(count, keepdims=0), b.const(0, dtype)), I64)
    sample, share = b.cast(b.along(b.arange(most), 2, 3), dtype), b.Max(count, one)
    bin_start = b.Mul(b.const(np.arange(bins).reshape(1, bins, 1), dtype), step)
    position = b.Add(b.Add(start, bin_start), b.Div(b.Mul(b.Add(sample, 0.5), step), share))
    is_used = b.expand(b.Less(sample, count), position)
    # As in onnxruntime, samples up to 1 outside the image are clamped; those further out are 0.
    is_near = b.And(b.GreaterOrEqual(position, -1.0), b.LessOrEqual(position, axis.size))
    position = inside(b, b.where(is_near, position), axis)
    low = b.Min(b.Floor(position), b.Max(b.Sub(axis.size, 2.0), b.const(0, dtype)))
    fraction, has_weight = b.Sub(position, low), b.And(is_near, is_used)
    taps = []
    for index, weight in ((low, b.Sub(one, fraction)), (b.Add(low, 1.0), fraction)):
        weight = b.Div(weight, share) if attrs["mode"] == b"avg" else weight
        taps.append(Tap(inside(b, index, axis), b.where(has_weight, weight)))
    return RegionSamples(taps, is_used)


@decompose("MaxRoiPool")
def _(b: GradientBuilder, node: Node) -> Value:
    x, rois = input_of(node, 0), widened(b, input_of(node, 1))
    columns, rows = (_bins(b, node, i) for i in (0, 1))
    # Rows are [regions, bins, elements, 1, 1] and columns [regions, 1, 1, bins, elements].
    down, across = b.ints(3, 4), b.ints(1, 2)
    number = b.Reshape(b.Gather(rois, b.const(0, I64), axis=1), b.ints(-1, 1, 1, 1, 1))
    image = widened(b, x)
    indices = [b.Unsqueeze(rows[0], down), b.Unsqueeze(columns[0], across)]
    values = gathered(b, image, number, indices)
    is_used = b.And(b.Unsqueeze(rows[1], down), b.Unsqueeze(columns[1], across))
    pooled = _largest(b, values, b.Unsqueeze(is_used, b.ints(-1)), b.ints(2, 4))
    return b.cast(channels_first(b, pooled), x.tensor.dtype)


def _bins(b: GradientBuilder, node: Node, i: int) -> tuple[Value, Value]:
    """Return the elements of each region's bins along one axis, and which of them are in the bin.

    Both are [regions, bins, elements of the longest bin]; i is 0 for columns and 1 for rows.
    """
    x, rois, attrs = input_of(node, 0), widened(b, input_of(node, 1)), node.attrs
    count, axis = attrs["pooled_shape"][1 - i], axis_of_image(b, x, 3 - i, F64)
    scaled = b.cast(b.Mul(rois, attrs["spatial_scale"]), F64)
    # Corners are rounded half away from zero, like C's round().
    corners = b.Mul(b.Sign(scaled), b.Floor(b.Add(b.Abs(scaled), 0.5)))
    start, end = (b.Gather(corners, b.ints(k), axis=1) for k in (1 + i, 3 + i))
    # Bins are cut in float32, as the op does it: rounding decides what is on their edges.
    extent = b.Max(b.Add(b.Sub(end, start), 1.0), b.const(1, F64))
    each = b.Div(b.cast(extent, F32), float(count))
    bins = b.const(np.arange(count)[None], F32)
    low, high = (
        _inside_or_end(b, b.Add(b.cast(edge, F64), start), axis)
        for edge in (b.Floor(b.Mul(bins, each)), b.Ceil(b.Mul(b.Add(bins, 1.0), each)))
    )
    longest = b.ReduceMax(b.Sub(high, low), keepdims=0)
    most = b.cast(b.Max(longest, b.const(0, F64)), I64)
    last = b.ints(2)
    element = b.Add(b.Unsqueeze(low, last), b.cast(b.along(b.arange(most), 2, 3), F64))
    return inside(b, element, axis), b.Less(element, b.Unsqueeze(high, last))


def _inside_or_end(b: GradientBuilder, edge: Value, axis: Axis) -> Value:
    """Return edges clipped to the axis, whose end is an edge, too."""
    return b.Clip(edge, b.const(0, edge.tensor.dtype), axis.size)
