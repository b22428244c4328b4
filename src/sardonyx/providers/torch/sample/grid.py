"""Values at fractional positions, and grids of such positions made by affine maps."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from sardonyx.errors import InvalidArgument
from sardonyx.graph.dtype import I64
from sardonyx.graph.graph import Node
from sardonyx.graph.op import ONNX
from sardonyx.ops.arrays import Array
from sardonyx.ops.sample.grid_sample import CUBIC_A
from sardonyx.ops.sample.interpolate import cubic_weights
from sardonyx.providers.torch.dtypes import wide
from sardonyx.providers.torch.kernel import PLAIN, REALS, TorchKernel, TorchKernels

Taps = Sequence[tuple[Tensor, Tensor]]  # along one axis: indices and weights of the neighbours
_FAR: Final = 1e4  # a position outside every image, for those that are no number


def interpolable(x: Tensor) -> Tensor:
    """Return the tensor in a floating-point type for interpolation."""
    if x.is_floating_point():
        return wide(x)
    return x.float() if x.dtype.itemsize < 4 else x.double()


def to_type(y: Tensor, dtype: torch.dtype, *, rounds: bool = False) -> Tensor:
    """Return interpolated values in a type; integers are rounded (half up) or truncated."""
    if dtype.is_floating_point:
        return y.to(dtype)
    # A weighted sum of equal integers may be slightly low; truncation must not lose 1.
    y = (y + 0.5).floor() if rounds else ((y * 1e4).round() / 1e4).trunc()
    if dtype is not torch.bool:
        info = torch.iinfo(dtype)
        y = y.clamp(info.min, info.max)
    return y.to(dtype)


def linear_taps(position: Tensor, size: int) -> Taps:
    """Both neighbours of each position; outside the axis there is nothing."""
    position = _bounded(position, size)
    low = position.floor()
    part = position - low
    index = low.long()
    return [inside(index, 1 - part, size), inside(index + 1, part, size)]


def _bounded(position: Tensor, size: int) -> Tensor:
    return torch.nan_to_num(position, -3, size + 2, -3).clamp(-3, size + 2)


def inside(index: Tensor, weight: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The tap with no weight and no index (-1) where it lies outside the axis."""
    hit = (index >= 0) & (index < size)
    return torch.where(hit, index, -1), torch.where(hit, weight, 0)


def weigh(x: Tensor, axes: Sequence[Taps]) -> Tensor:
    """Sums x [n, channels, *sizes] over all combinations of taps [n, positions] of its axes."""
    sizes = x.shape[2:]
    flat = x.reshape(*x.shape[:2], -1)
    total: Any = None
    index: Any
    weight: Any
    hit: Any
    for combination in itertools.product(*axes):
        index, weight, hit = 0, 1, True
        for size, (i, w) in zip(sizes, combination, strict=True):
            index, weight, hit = index * size + i.clamp(min=0), weight * w, (i >= 0) & hit
        read = flat.gather(2, index[:, None].expand(-1, x.shape[1], -1))
        # What lies outside is 0, whatever the element that stands in for it holds.
        term = torch.where(hit[:, None], read, 0) * weight[:, None]
        total = term if total is None else total.add_(term)
    made: Tensor = total
    return made


_MODES: Final = {b"linear": "bilinear", b"nearest": "nearest", b"cubic": "bicubic"}


def grid_sample(x: Tensor, grid: Tensor, **attrs: Any) -> Tensor:
    """What an image holds at positions between -1 and 1."""
    sizes, outs = x.shape[2:], grid.shape[1:-1]
    if not x.numel() or not grid.numel():
        if grid.numel() and 0 in sizes:
            raise InvalidArgument(f"an image of sizes {tuple(sizes)} has nothing to sample")
        return x.new_zeros((*x.shape[:2], *outs))
    value, points = interpolable(x), wide(grid)
    mode, padding = attrs["mode"], attrs["padding_mode"]
    if value.dtype is points.dtype and (x.ndim == 4 or (x.ndim == 5 and mode != b"cubic")):
        corners = bool(attrs["align_corners"])
        points = torch.nan_to_num(points, -_FAR, _FAR, -_FAR)
        y = F.grid_sample(value, points, _MODES[mode], padding.decode(), corners)
        return to_type(y, x.dtype)
    axes = []
    for i, size in enumerate(sizes):
        span = (0.0, size - 1.0) if attrs["align_corners"] else (-0.5, size - 0.5)
        point = points[..., len(sizes) - 1 - i].reshape(x.shape[0], -1)
        place = (point + 1) / 2 * (span[1] - span[0]) + span[0]
        axes.append(_taps(place, size, span, (mode, padding)))
    return to_type(weigh(value, axes).reshape(*x.shape[:2], *outs), x.dtype)


def _taps(place: Tensor, size: int, span: tuple[float, float], how: tuple[bytes, bytes]) -> Taps:
    """Neighbours of each position along one axis, and their weights."""
    mode, padding = how
    if mode == b"nearest":
        place = place.round()
    outside = (place < span[0]) | (place > span[1])
    if padding == b"border" and mode != b"cubic":  # whose neighbours are clamped one by one
        place = torch.where(outside, place.clamp(0, size - 1), place)
    elif padding == b"reflection":
        place = torch.where(outside, _reflected(place, span), place)
    place = _bounded(place, size)
    low = place.floor()
    part, index = place - low, low.long()
    if mode == b"nearest":
        taps = [(index, torch.ones_like(part))]
    elif mode == b"linear":
        taps = [(index, 1 - part), (index + 1, part)]
    else:
        weights: Any = cubic_weights(part, CUBIC_A)  # type: ignore[arg-type]  # only arithmetic
        taps = [(index + i - 1, w) for i, w in enumerate(weights)]
    if padding == b"zeros":
        return [inside(i, w, size) for i, w in taps]
    if padding == b"reflection":
        taps = [(_reflected(i, span).long(), w) for i, w in taps]
    return [(i.clamp(0, size - 1), w) for i, w in taps]


def _reflected(place: Tensor, span: tuple[float, float]) -> Tensor:
    """Positions mirrored at the borders until they lie between them."""
    low, high = span
    width = high - low
    if width <= 0:
        return torch.zeros_like(place)
    folded = (place - low).remainder(2 * width)
    return torch.where(folded > width, 2 * width - folded, folded) + low


def affine_grid(theta: Tensor, size: Array, *, align_corners: int) -> Tensor:
    """The positions that an affine map gives the elements of an image."""
    sizes = size.tolist()[2:]
    matrix = wide(theta)
    lead = (theta.shape[0], *(1,) * len(sizes), len(sizes))
    made = matrix[:, :, -1].reshape(lead).expand(-1, *sizes, -1)
    for i, count in enumerate(sizes):
        steps = torch.arange(count, dtype=torch.float64, device=theta.device)
        if align_corners:
            line = steps * (2 / max(1, count - 1)) - 1
        else:
            line = (2 * steps + 1) / max(1, count) - 1
        line = line.to(matrix.dtype).reshape(-1, *(1,) * (len(sizes) - i))
        made = made + line * matrix[:, :, len(sizes) - 1 - i].reshape(lead)
    return made.to(theta.dtype)


def _loses(node: Node) -> str:
    """Why numbers would not come out as they went in; empty if they do."""
    if node.attrs["mode"] != b"nearest" or node.outputs[0].tensor.dtype is not I64:
        return ""
    return "torch samples i64 by way of f64, which does not hold them all; cast to i32"


KERNELS: Final[TorchKernels] = {
    (ONNX, "GridSample"): TorchKernel(grid_sample, PLAIN, refuses=_loses),
    (ONNX, "AffineGrid"): TorchKernel(affine_grid, REALS, host=(1,)),
}
