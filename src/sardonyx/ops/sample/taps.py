"""Interpolation at fractional positions, built of standard ops: gathered neighbours and weights.

Gradients follow from these ops: the Gather's adds to the image, the weights' leads to positions.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from sardonyx.base.records import frozen
from sardonyx.graph.dtype import I64, DType
from sardonyx.graph.graph import Value
from sardonyx.ops.gradient_rules import GradientBuilder, ranked


@frozen
class Tap:
    """One neighbour of each position along an axis."""

    index: Value  # floats, all of them inside the axis
    weight: Value  # 0 where the neighbour is outside


@frozen
class Axis:
    """A spatial axis of an image: its size as an integer, and as a number of positions' type."""

    count: Value
    size: Value
    last: Value  # size - 1


def axis_of_image(b: GradientBuilder, x: Value, axis: int, dtype: DType) -> Axis:
    """Return a spatial axis of an image."""
    count = b.length(x, axis)
    size = b.cast(count, dtype)
    return Axis(count, size, b.Sub(size, 1.0))


def clamped(b: GradientBuilder, position: Value, axis: Axis) -> Value:
    """Clamp positions far outside (and NaN) to where all their taps are still outside."""
    far = b.const(-3, position.tensor.dtype)
    return b.Clip(b.Where(b.IsNaN(position), far, position), far, b.Add(axis.size, 2.0))


def inside(b: GradientBuilder, index: Value, axis: Axis) -> Value:
    """Return indices clipped to the axis."""
    return b.Clip(index, b.const(0, index.tensor.dtype), axis.last)


def zero_outside(b: GradientBuilder, index: Value, weight: Value, axis: Axis) -> Tap:
    """Return a tap whose weight is 0 where its index is outside the axis."""
    is_inside = b.And(b.GreaterOrEqual(index, 0.0), b.Less(index, axis.size))
    return Tap(inside(b, index, axis), b.where(is_inside, weight))


def linear_taps(b: GradientBuilder, position: Value, axis: Axis) -> list[Tap]:
    """Return the two linear taps of each position, with zeros outside the axis."""
    position = clamped(b, position, axis)
    low = b.Floor(position)
    fraction = b.Sub(position, low)
    near = b.Sub(b.const(1, fraction.tensor.dtype), fraction)
    pairs = ((low, near), (b.Add(low, 1.0), fraction))
    return [zero_outside(b, index, weight, axis) for index, weight in pairs]


def gathered(b: GradientBuilder, x: Value, image: Value, indices: Sequence[Value]) -> Value:
    """Return the elements of images [N, C, ...] at positions: [R, ..., C].

    `image` has the number of the image to read; all indices broadcast to [R, ...].
    """
    rank = ranked(x).rank
    sizes = [b.length(x, axis) for axis in range(rank)]
    index = b.cast(image, I64)
    for size, each in zip(sizes[2:], indices, strict=True):
        index = b.Add(b.Mul(index, size), b.cast(each, I64))
    last = b.Transpose(x, perm=(0, *range(2, rank), 1))
    n_rows = sizes[0]
    for size in sizes[2:]:
        n_rows = b.Mul(n_rows, size)
    shape = b.Concat(b.Unsqueeze(n_rows, b.ints(0)), b.element(b.shape(x), 1), axis=0)
    return b.Gather(b.Reshape(last, shape, allowzero=1), index)


def weighted_terms(
    b: GradientBuilder, x: Value, image: Value, axes: Sequence[Sequence[Tap]]
) -> Value:
    """Return the weighted neighbours of positions, for all combinations of taps: [R, K, ..., C].

    All combinations are gathered at once, so that the image's gradient is one scatter.
    """
    combinations = list(itertools.product(*axes))
    weights = []
    for taps in combinations:
        weight = taps[0].weight
        for tap in taps[1:]:
            weight = b.Mul(weight, tap.weight)
        weights.append(b.Unsqueeze(weight, b.ints(1)))
    indices = [
        b.Concat(*(b.Unsqueeze(taps[i].index, b.ints(1)) for taps in combinations), axis=1)
        for i in range(len(axes))
    ]
    values = gathered(b, x, b.Unsqueeze(image, b.ints(1)), indices)
    stacked = b.Unsqueeze(b.Concat(*weights, axis=1), b.ints(-1))
    return b.Mul(values, b.cast(stacked, x.tensor.dtype))


def weighted_sum(
    b: GradientBuilder, x: Value, image: Value, axes: Sequence[Sequence[Tap]]
) -> Value:
    """Return images interpolated at positions, channels last: [R, ..., C]."""
    return b.ReduceSum(weighted_terms(b, x, image, axes), b.ints(1), keepdims=0)


def channels_first(b: GradientBuilder, x: Value) -> Value:
    """[N, ..., C] as [N, C, ...]."""
    rank = ranked(x).rank
    return b.Transpose(x, perm=(0, rank - 1, *range(1, rank - 1)))
