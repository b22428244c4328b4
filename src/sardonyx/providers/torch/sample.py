"""Sampling at fractional positions: GridSample, AffineGrid and regions of interest."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from sardonyx.base.records import as_tuple, frozen
from sardonyx.errors import InvalidArgument, RuntimeException
from sardonyx.graph.dtype import F16, F32, F64, I32, I64
from sardonyx.graph.graph import Node
from sardonyx.graph.op import MICROSOFT, ONNX
from sardonyx.ops.arrays import Array
from sardonyx.ops.sample.grid import CUBIC_A
from sardonyx.ops.sample.interpolate import cubic_weights
from sardonyx.ops.sample.roi import MAX_SAMPLES
from sardonyx.ops.sliding_window import Ints
from sardonyx.providers.torch.dtypes import wide
from sardonyx.providers.torch.kernel import PLAIN, REALS, TorchKernel, TorchKernels

Taps = Sequence[tuple[Tensor, Tensor]]  # along one axis: indices and weights of the neighbours
# In normalized coordinates, a position outside every image: for NaN and infinities.
_FAR: Final = 1e4
# Positions are bounded to this distance from the image: beyond it all neighbours, of which cubic
# interpolation reads one before and two after, are outside; closer integers do not overflow.
_MARGIN: Final = 3
_DECIMALS: Final = 1e4  # to which sums are rounded before truncation
# Bound of the corners of regions: far outside every image, and sums of them fit 64 bits.
_FAR_CORNER: Final = 2.0**40


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
    y = (y + 0.5).floor() if rounds else ((y * _DECIMALS).round() / _DECIMALS).trunc()
    if dtype is not torch.bool:
        info = torch.iinfo(dtype)
        y = y.clamp(info.min, info.max)
    return y.to(dtype)


def _bounded(position: Tensor, size: int) -> Tensor:
    low, high = -_MARGIN, size + _MARGIN - 1
    return torch.nan_to_num(position, low, high, low).clamp(low, high)


def _inside(index: Tensor, weight: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return a tap, with weight 0 and index -1 where it is outside of the axis."""
    hit = (index >= 0) & (index < size)
    return torch.where(hit, index, -1), torch.where(hit, weight, 0)


def weigh(x: Tensor, axes: Sequence[Taps]) -> Tensor:
    """Return the weighted sums of x [n, channels, *sizes] over all combinations of taps.

    Taps of an axis are [n, positions]; the weight of a combination is the product over axes.
    """
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
        # Elements outside are 0, even if the one read in their position is infinite or NaN.
        term = torch.where(hit[:, None], read, 0) * weight[:, None]
        total = term if total is None else total.add_(term)
    result: Tensor = total
    return result


_MODES: Final = {b"linear": "bilinear", b"nearest": "nearest", b"cubic": "bicubic"}


def grid_sample(x: Tensor, grid: Tensor, **attrs: Any) -> Tensor:
    """Return the interpolated values of images at positions, which are -1 to 1 inside of them."""
    sizes, outs = x.shape[2:], grid.shape[1:-1]
    if not x.numel() or not grid.numel():
        if grid.numel() and 0 in sizes:
            raise InvalidArgument(f"an image of sizes {tuple(sizes)} has nothing to sample")
        return x.new_zeros((*x.shape[:2], *outs))
    value, points = interpolable(x), wide(grid)
    mode, padding = attrs["mode"], attrs["padding_mode"]
    if value.dtype is points.dtype and (x.ndim == 4 or (x.ndim == 5 and mode != b"cubic")):
        corners = bool(attrs["align_corners"])
        # NaN and infinities count as positions outside of the image.
        points = torch.nan_to_num(points, -_FAR, _FAR, -_FAR)
        y = F.grid_sample(value, points, _MODES[mode], padding.decode(), corners)
        return to_type(y, x.dtype)
    axes = []
    for i, size in enumerate(sizes):
        span = (0.0, size - 1.0) if attrs["align_corners"] else (-0.5, size - 0.5)
        point = points[..., len(sizes) - 1 - i].reshape(x.shape[0], -1)
        # The last coordinate of a point is the first axis of the image.
        position = (point + 1) / 2 * (span[1] - span[0]) + span[0]
        axes.append(taps_of(position, size, span, (mode, padding)))
    return to_type(weigh(value, axes).reshape(*x.shape[:2], *outs), x.dtype)


def taps_of(
    position: Tensor, size: int, span: tuple[float, float], how: tuple[bytes, bytes]
) -> Taps:
    """Return the neighbours of each position along one axis, and their weights.

    `span` is the range of positions inside, `how` the interpolation and padding modes.
    """
    mode, padding = how
    if mode == b"nearest":
        position = position.round()
    outside = (position < span[0]) | (position > span[1])
    if padding == b"border" and mode != b"cubic":  # whose neighbours are clamped one by one
        position = torch.where(outside, position.clamp(0, size - 1), position)
    elif padding == b"reflection":
        position = torch.where(outside, _reflected(position, span), position)
    position = _bounded(position, size)
    low = position.floor()
    part, index = position - low, low.long()
    if mode == b"nearest":
        taps = [(index, torch.ones_like(part))]
    elif mode == b"linear":
        taps = [(index, 1 - part), (index + 1, part)]
    else:
        weights: Any = cubic_weights(part, CUBIC_A)  # type: ignore[arg-type]  # only arithmetic
        taps = [(index + i - 1, w) for i, w in enumerate(weights)]
    if padding == b"zeros":
        return [_inside(i, w, size) for i, w in taps]
    if padding == b"reflection":
        taps = [(_reflected(i, span).long(), w) for i, w in taps]
    return [(i.clamp(0, size - 1), w) for i, w in taps]


def _reflected(position: Tensor, span: tuple[float, float]) -> Tensor:
    """Return positions mirrored at the boundaries until they are inside: a triangle wave."""
    low, high = span
    width = high - low
    if width <= 0:
        return torch.zeros_like(position)
    folded = (position - low).remainder(2 * width)
    return torch.where(folded > width, 2 * width - folded, folded) + low


def affine_grid(theta: Tensor, size: Array, *, align_corners: int) -> Tensor:
    """Return the positions of an image's elements after an affine transformation."""
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


def _refuses_int64(node: Node) -> str:
    """Refuse nearest neighbours of int64; empty for other nodes."""
    if node.attrs["mode"] != b"nearest" or node.outputs[0].tensor.dtype is not I64:
        return ""
    return "torch samples int64 in float64, which cannot represent every int64; cast to int32"


_CHUNK: Final = 1 << 26  # elements of the samples of regions processed at once


def _images(index: Tensor, batch: int) -> Tensor:
    """Return image indices, all inside of the batch."""
    if index.numel() and index.device.type == "cpu":
        low, high = (int(v) for v in torch.aminmax(index))
        if not 0 <= low <= high < batch:
            raise InvalidArgument(f"batch indices are {low} to {high}, the batch has {batch}")
    return index.long().clamp(0, max(batch - 1, 0))


def max_roi_pool(x: Tensor, rois: Tensor, *, pooled_shape: Ints, spatial_scale: float) -> Tensor:
    """Return the maximum of each bin of each region."""
    image, boxes = wide(x), wide(rois)
    if boxes.device.type == "cpu" and not bool(torch.isfinite(boxes).all()):
        raise InvalidArgument("rois contain non-finite values")
    batch = _images(boxes[:, 0], x.shape[0])
    # Corners round half away from zero, as C's round does.
    scaled = (boxes[:, 1:] * spatial_scale).double()
    corners = (scaled + torch.copysign(torch.full_like(scaled, 0.5), scaled)).trunc()
    corners = torch.nan_to_num(corners).clamp(-_FAR_CORNER, _FAR_CORNER).long()
    height, width = x.shape[2:]
    rows = _bins(corners[:, 1], corners[:, 3], pooled_shape[0], height)
    columns = _bins(corners[:, 0], corners[:, 2], pooled_shape[1], width)
    y = []
    # One region at a time: a copy of an image per region would need too much memory.
    for r in range(len(rois)):
        part = image.index_select(0, batch[r : r + 1])
        part = torch.where(rows[r][:, None, :, None], part, -math.inf).amax(2)
        part = torch.where(columns[r][:, None, None], part, -math.inf).amax(-1)
        y.append(part.permute(2, 1, 0))
    made = torch.stack(y) if y else image.new_zeros((0, x.shape[1], *pooled_shape))
    empty = ~(rows.any(2)[:, :, None] & columns.any(2)[:, None])
    return made.masked_fill(empty[:, None], 0).to(x.dtype)


def _bins(start: Tensor, end: Tensor, count: int, size: int) -> Tensor:
    """Return the mask of the elements of each of `count` bins along an axis: [rois, bins, size]."""
    each = ((end - start + 1).clamp(min=1).float() / count)[:, None]
    bins = torch.arange(count, dtype=torch.float32, device=start.device)
    low = (bins * each).floor().long() + start[:, None]
    high = ((bins + 1) * each).ceil().long() + start[:, None]
    position = torch.arange(size, device=start.device)
    return (position >= low[..., None]) & (position < high[..., None])


def roi_align(x: Tensor, rois: Tensor, batch_indices: Tensor, **attrs: Any) -> Tensor:
    """Return the mean or maximum of each bin's bilinear samples."""
    image, boxes = wide(x), wide(rois)
    batch = _images(batch_indices, x.shape[0])
    bins = (attrs["output_height"], attrs["output_width"])
    is_aligned = attrs["coordinate_transformation_mode"] == b"half_pixel"
    corners = boxes * attrs["spatial_scale"] - 0.5 * is_aligned
    sizes = corners[:, 2:] - corners[:, :2]
    if not is_aligned:
        sizes = sizes.clamp(min=1)
    grids = [
        _samples(corners[:, i], sizes[:, i], bins[1 - i], (attrs["sampling_ratio"], x.shape[3 - i]))
        for i in (1, 0)
    ]
    made = image.new_zeros((len(rois), x.shape[1], *bins))
    n_samples = math.prod(g.low.shape[1] * g.low.shape[2] for g in grids)
    if not made.numel() or not n_samples or not x.numel():
        return made.to(x.dtype)
    # Regions in chunks of bounded memory.
    step = max(1, _CHUNK // (n_samples * x.shape[1]))
    channels = image.permute(0, 2, 3, 1)
    for first in range(0, len(rois), step):
        part = slice(first, first + step)
        down, across = (g.part(part) for g in grids)
        pooled = _pooled(channels, batch[part], down, across, attrs["mode"])
        made[part] = pooled.permute(0, 3, 1, 2)
    return made.to(x.dtype)


@frozen
class SampleGrid:
    """Samples along one axis of every region: [rois, bins, samples]."""

    low: Tensor  # index of the neighbour before a sample
    high: Tensor  # and after it
    near: Tensor  # their weights
    far: Tensor
    is_live: Tensor  # padding samples, of regions with fewer samples than others, are not live
    count: Tensor  # live samples of a bin

    def part(self, which: slice) -> SampleGrid:
        """Return the samples of some regions."""
        return SampleGrid(*(each[which] for each in as_tuple(self)))


def _samples(start: Tensor, length: Tensor, bins: int, how: tuple[int, int]) -> SampleGrid:
    ratio, size = how
    step = (length / bins)[:, None, None]
    counts = torch.full_like(step, ratio) if ratio else step.ceil().clamp(min=0)
    most = ratio if ratio or not len(start) else float(counts.max())
    if not most * bins <= MAX_SAMPLES:
        raise RuntimeException(
            f"a region needs {most} samples in each of {bins} bins, at most {MAX_SAMPLES} in all"
        )
    sample = torch.arange(int(most), dtype=step.dtype, device=step.device)
    bin_ = torch.arange(bins, dtype=step.dtype, device=step.device)[:, None]
    inner = (sample + 0.5) * step / counts.clamp(min=1)
    position = start[:, None, None] + bin_ * step + inner
    hit = (position >= -1) & (position <= size)
    position = torch.where(hit, position, 0).clamp(0, max(size - 1, 0))
    low = position.long().clamp(max=max(size - 2, 0))
    part = position - low
    near, far = torch.where(hit, 1 - part, 0), torch.where(hit, part, 0)
    is_live = (sample < counts).expand_as(low)
    return SampleGrid(low, (low + 1).clamp(max=max(size - 1, 0)), near, far, is_live, counts)


def _pooled(x: Tensor, batch: Tensor, down: SampleGrid, across: SampleGrid, mode: bytes) -> Tensor:
    """Return [rois, bins, bins, channels] from images [batch, height, width, channels]."""
    is_mean = mode == b"avg"
    is_live = down.is_live[:, :, :, None, None] & across.is_live[:, None, None]
    image = batch.reshape(-1, 1, 1, 1, 1)
    total: Any = None
    for y, wy in ((down.low, down.near), (down.high, down.far)):
        for z, wx in ((across.low, across.near), (across.high, across.far)):
            read = x[image, y[:, :, :, None, None], z[:, None, None]]
            weight = wy[:, :, :, None, None] * wx[:, None, None]
            if is_mean:
                term = (read * torch.where(is_live, weight, 0)[..., None]).sum((2, 4))
                total = term if total is None else total + term
            else:  # the largest of the weighted neighbours, not of the interpolated samples
                term = torch.where(is_live[..., None], read * weight[..., None], -math.inf)
                term = term.amax((2, 4))
                total = term if total is None else torch.maximum(total, term)
    samples = (down.count * across.count).reshape(-1, 1, 1, 1)
    made: Tensor = total / samples.clamp(min=1) if is_mean else total
    return torch.where(samples > 0, made, 0)


def _neighbours(positions: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the indices around positions, and the weight of the upper ones.

    Positions of large images are rounded, perhaps to one after the last.
    """
    last = max(size - 1, 0)
    low, high = (p.long().clamp(max=last) for p in (positions.floor(), positions.ceil()))
    return low, high, positions - low


def crop_and_resize(x: Tensor, rois: Tensor, batches: Tensor, size: Array, **attrs: Any) -> Tensor:
    """Return boxes of images, cropped and resized to one size."""
    image, boxes = wide(x), wide(rois)
    batch = _images(batches, x.shape[0]).reshape(-1, 1, 1)
    height, width = size.tolist()
    if min(height, width) < 1:
        raise InvalidArgument(f"crop_size must be at least 1, got {size.tolist()}")
    rows = _positions(boxes[:, 0], boxes[:, 2], x.shape[2], height)[:, :, None]
    columns = _positions(boxes[:, 1], boxes[:, 3], x.shape[3], width)[:, None, :]
    outside = (rows < 0) | (rows > x.shape[2] - 1) | (columns < 0) | (columns > x.shape[3] - 1)
    outside = outside | rows.isnan() | columns.isnan()
    rows, columns = (
        torch.nan_to_num(p).clamp(0, max(n - 1, 0))
        for p, n in ((rows, x.shape[2]), (columns, x.shape[3]))
    )
    channels = image.permute(0, 2, 3, 1)
    top, bottom, down = _neighbours(rows, x.shape[2])
    left, right, across = _neighbours(columns, x.shape[3])
    if attrs["mode"] == b"nearest":
        i, j = torch.where(down >= 0.5, bottom, top), torch.where(across >= 0.5, right, left)
        y = channels[batch, i, j]
    else:
        down, across = down[..., None], across[..., None]
        upper, lower = (
            channels[batch, i, left] * (1 - across) + channels[batch, i, right] * across
            for i in (top, bottom)
        )
        y = upper * (1 - down) + lower * down
    y = y.masked_fill(outside[..., None], attrs["extrapolation_value"])
    return y.permute(0, 3, 1, 2).to(x.dtype)


def _positions(first: Tensor, last: Tensor, size: int, count: int) -> Tensor:
    """Return the positions of the samples of boxes along an axis; corners are the outermost."""
    if count == 1:
        return (0.5 * (first + last) * (size - 1))[:, None]
    step = (last - first) * (size - 1) / (count - 1)
    steps = torch.arange(count, dtype=first.dtype, device=first.device)
    return (first * (size - 1))[:, None] + steps * step[:, None]


KERNELS: Final[TorchKernels] = {
    (ONNX, "GridSample"): TorchKernel(grid_sample, PLAIN, refuses=_refuses_int64),
    (ONNX, "AffineGrid"): TorchKernel(affine_grid, REALS, host=(1,)),
    (ONNX, "MaxRoiPool"): TorchKernel(max_roi_pool, REALS),
    # How many samples a region takes may depend on its size.
    (ONNX, "RoiAlign"): TorchKernel(roi_align, REALS | {I64}, syncs=True),
    (MICROSOFT, "CropAndResize"): TorchKernel(
        crop_and_resize, frozenset((F16, F32, F64, I32)), host=(3,)
    ),
}
