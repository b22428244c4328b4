"""Grid sampling and its gradients."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Final

from sardonyx.base.records import frozen
from sardonyx.dynamo.aten_builder import AtenBuilder, Unsupported, static
from sardonyx.dynamo.table import lowers
from sardonyx.graph.dtype import BF16, F16, F32, I64
from sardonyx.graph.graph import Value

_MODES: Final = (b"linear", b"nearest", b"cubic")  # indexed by torch's enum values
_PADDINGS: Final = (b"zeros", b"border", b"reflection")  # likewise
_CUBIC_A: Final = -0.75


@lowers("grid_sampler_2d.default", "grid_sampler_3d.default")
def _(b: AtenBuilder, x: Value, grid: Value, mode: int, padding: int, align: bool) -> Value:
    _check_type(x)
    attrs = {"mode": _MODES[mode], "padding_mode": _PADDINGS[padding]}
    return b.GridSample(x, grid, align_corners=int(align), **attrs)


def _check_type(x: Value) -> None:
    """Refuse 16-bit types: torch rounds positions to them, which moves samples by whole pixels."""
    if x.tensor.dtype in (F16, BF16):
        raise Unsupported(f"torch rounds the grid's positions to {x.tensor.dtype}")


@frozen
class NeighbourTap:
    """A neighbour of each position along one axis."""

    index: Value  # int64, inside the image
    weight: Value  # zero where the neighbour is outside
    slope: Value | None  # derivative of the weight with respect to the grid's coordinate


@lowers("grid_sampler_2d_backward.default", "grid_sampler_3d_backward.default")
def _(
    b: AtenBuilder,
    dy: Value,
    x: Value,
    grid: Value,
    mode: int,
    padding: int,
    align: bool,
    mask: Sequence[bool],
) -> tuple[Value | None, ...]:
    """Scatter dy by the weights, and multiply it by their derivatives for the grid.

    y[n, c, p] = sum over neighbours of x[n, c, neighbour] * product over axes of weight
    """
    _check_type(x)
    dtype, grid_type = x.tensor.dtype, grid.tensor.dtype
    n = x.tensor.rank - 2
    sizes = [static(d, "the size of the image") for d in b.fake(1).shape[2:]]
    dy, x, points = (b.as_f32(v) for v in (dy, x, grid))
    planes = b.Reshape(x, b.ints(0, 0, math.prod(sizes)))
    lead = b.Slice(b.Shape(dy), b.ints(0), b.ints(2))
    outs = b.ReduceProd(b.Slice(b.Shape(dy), b.ints(2), b.ints(2 + n)), b.ints(0))
    rows = b.Reshape(dy, b.Concat(lead, outs, axis=0), allowzero=1)  # [N, C, positions]
    batch = b.Slice(lead, b.ints(0), b.ints(1))
    points = b.Reshape(points, b.Concat(batch, outs, b.ints(n), axis=0), allowzero=1)
    axes = [
        # The grid's last axis is (x, y, ...): the innermost axis of the image first.
        _taps(b, b.Gather(points, b.const(n - 1 - i, I64), axis=2), size, (mode, padding, align))
        for i, size in enumerate(sizes)
    ]
    scatter = _Scatter(rows, planes, b.Shape(rows), sizes)
    dx = _image_gradient(b, scatter, axes) if mask[0] else None
    dgrid = _grid_gradient(b, scatter, axes, points) if mask[1] else None
    return (
        None if dx is None else b.cast(b.Reshape(dx, b.Shape(x)), dtype),
        None if dgrid is None else b.cast(b.Reshape(dgrid, b.Shape(grid), allowzero=1), grid_type),
    )


@frozen
class _Scatter:
    """What both gradients read: dy [N, C, positions], the image [N, C, pixels] and its sizes."""

    dy: Value
    planes: Value
    shape: Value
    sizes: list[int]

    def index(self, b: AtenBuilder, taps: Sequence[NeighbourTap]) -> Value:
        """Return the pixel of a neighbour for every channel, [N, C, positions]."""
        total = taps[0].index
        for tap, size in zip(taps[1:], self.sizes[1:], strict=True):
            total = b.Add(b.Mul(total, size), tap.index)
        return b.Expand(b.Unsqueeze(total, b.ints(1)), self.shape)


def _product(b: AtenBuilder, weights: Sequence[Value]) -> Value:
    total = weights[0]
    for weight in weights[1:]:
        total = b.Mul(total, weight)
    return total


def _image_gradient(b: AtenBuilder, scatter: _Scatter, axes: list[list[NeighbourTap]]) -> Value:
    total = b.Expand(b.const(0, F32), b.Shape(scatter.planes))
    for taps in itertools.product(*axes):
        weight = b.Unsqueeze(_product(b, [t.weight for t in taps]), b.ints(1))
        updates, index = b.Mul(scatter.dy, weight), scatter.index(b, taps)
        total = b.ScatterElements(total, index, updates, axis=-1, reduction=b"add")
    return total


def _grid_gradient(
    b: AtenBuilder, scatter: _Scatter, axes: list[list[NeighbourTap]], points: Value
) -> Value:
    n = len(axes)
    totals: list[Value | None] = [None] * n
    for taps in itertools.product(*axes):
        if taps[0].slope is None:  # nearest: constant almost everywhere
            return b.Expand(b.const(0, F32), b.Shape(points))
        pixels = b.GatherElements(scatter.planes, scatter.index(b, taps), axis=-1)
        each = b.ReduceSum(b.Mul(scatter.dy, pixels), b.ints(1), keepdims=0)  # [N, positions]
        for i in range(n):
            slopes = [t.slope if j == i else t.weight for j, t in enumerate(taps)]
            term = b.Mul(each, _product(b, slopes))  # type: ignore[arg-type]
            before = totals[i]
            totals[i] = term if before is None else b.Add(before, term)
    columns = [b.Unsqueeze(t, b.ints(-1)) for t in reversed(totals) if t is not None]
    return b.Concat(*columns, axis=-1)


def _taps(
    b: AtenBuilder, point: Value, size: int, options: tuple[int, int, bool]
) -> list[NeighbourTap]:
    """Return the neighbours of positions [N, positions] along one axis."""
    mode, padding, align = options
    # Pixels are at -1 ... 1 with aligned corners, else their outer edges are.
    factor = (size - 1 if align else size) / 2
    if align:
        position = b.Mul(b.Div(b.Add(point, 1.0), 2.0), size - 1.0)
    else:
        position = b.Div(b.Sub(b.Mul(b.Add(point, 1.0), float(size)), 1.0), 2.0)
    slope = b.Expand(b.const(factor, F32), b.Shape(point))
    if _MODES[mode] != b"cubic":  # cubic pads each neighbour instead
        position, slope = _padded(b, position, size, (padding, align), slope)
    if _MODES[mode] == b"nearest":
        near = b.Round(position)
        return [_tap(b, near, b.const(1.0, F32), None, (size, padding, align))]
    low = b.Floor(position)
    fraction = b.Sub(position, low)
    if _MODES[mode] == b"linear":
        ends = [(0.0, b.Sub(b.const(1.0, F32), fraction), -1.0), (1.0, fraction, 1.0)]
        return [
            _tap(b, b.Add(low, i), w, b.Mul(slope, s), (size, padding, align)) for i, w, s in ends
        ]
    taps = []
    for i in (-1.0, 0.0, 1.0, 2.0):
        # The distance to the neighbour; slopes are by the position, whose sign the neighbour has.
        weight, derivative = _cubic(b, b.Sub(fraction, i), i in (0.0, 1.0))
        index, _ = _padded(b, b.Add(low, i), size, (padding, align), slope)
        taps.append(_tap(b, index, weight, b.Mul(slope, derivative), (size, padding, align)))
    return taps


def _tap(
    b: AtenBuilder, at: Value, weight: Value, slope: Value | None, image: tuple[int, int, bool]
) -> NeighbourTap:
    """Return a neighbour; outside of the image its weight is zero."""
    size = image[0]
    inside = b.And(b.GreaterOrEqual(at, 0.0), b.LessOrEqual(at, size - 1.0))
    zero = b.const(0.0, F32)
    index = b.cast(b.Where(inside, at, zero), I64)
    return NeighbourTap(
        index, b.Where(inside, weight, zero), slope and b.Where(inside, slope, zero)
    )


def _cubic(b: AtenBuilder, t: Value, is_near: bool) -> tuple[Value, Value]:
    """Return the cubic convolution kernel at distance t (Keys, a = -0.75) and its derivative."""
    a, d = _CUBIC_A, b.Abs(t)
    if is_near:  # |t| <= 1: (a + 2)|t|^3 - (a + 3)|t|^2 + 1
        weight = b.Add(b.Mul(b.Mul(b.Sub(b.Mul(d, a + 2), a + 3), d), d), 1.0)
        derivative = b.Mul(b.Sub(b.Mul(d, 3 * (a + 2)), 2 * (a + 3)), d)
    else:  # a|t|^3 - 5a|t|^2 + 8a|t| - 4a
        weight = b.Sub(b.Mul(b.Add(b.Mul(b.Sub(b.Mul(d, a), 5 * a), d), 8 * a), d), 4 * a)
        derivative = b.Add(b.Mul(b.Sub(b.Mul(d, 3 * a), 10 * a), d), 8 * a)
    return weight, b.Mul(derivative, b.Sign(t))


def _padded(
    b: AtenBuilder, position: Value, size: int, padding: tuple[int, bool], slope: Value
) -> tuple[Value, Value]:
    """Return positions brought into the image, and the slopes that this leaves."""
    mode, align = padding
    if _PADDINGS[mode] == b"zeros":
        return position, slope
    if _PADDINGS[mode] == b"reflection":
        span = (0.0, size - 1.0) if align else (-0.5, size - 0.5)
        position, slope = _reflected(b, position, span, slope)
    last = size - 1.0
    is_free = b.And(b.Greater(position, 0.0), b.Less(position, last))
    # NaN clips to 0, as in torch.
    end = b.Where(b.GreaterOrEqual(position, last), b.const(last, F32), b.const(0.0, F32))
    clipped = b.Where(is_free, position, end)
    return clipped, b.Where(is_free, slope, b.const(0.0, F32))


def _reflected(
    b: AtenBuilder, position: Value, span: tuple[float, float], slope: Value
) -> tuple[Value, Value]:
    """Reflect positions at the ends of a span; every second reflection reverses the slope."""
    low, width = span[0], span[1] - span[0]
    if width <= 0:
        zero = b.Mul(slope, 0.0)
        return zero, zero
    shifted = b.Sub(position, low)
    slope = b.Mul(slope, b.Where(b.Less(shifted, 0.0), b.const(-1.0, F32), b.const(1.0, F32)))
    distance = b.Abs(shifted)
    flips = b.Floor(b.Div(distance, width))
    rest = b.Sub(distance, b.Mul(flips, width))
    is_odd = b.Greater(b.Mod(flips, 2.0, fmod=1), 0.5)
    back = b.Add(b.Where(is_odd, b.Sub(b.const(width, F32), rest), rest), low)
    return back, b.Where(is_odd, b.Neg(slope), slope)
