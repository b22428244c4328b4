"""Regions of interest: boxes of an image pooled, sampled or cropped."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor

from sardonyx.base.records import as_tuple, frozen
from sardonyx.errors import InvalidArgument, RuntimeException
from sardonyx.graph.dtype import F16, F32, F64, I32, I64
from sardonyx.graph.op import MICROSOFT, ONNX
from sardonyx.ops.arrays import Array
from sardonyx.ops.sample.roi import MAX_SAMPLES
from sardonyx.ops.sliding_window import Ints
from sardonyx.providers.torch.dtypes import wide
from sardonyx.providers.torch.kernel import REALS, TorchKernel, TorchKernels

_CHUNK: Final = 1 << 26  # elements that samples of some regions take at once


def _images(index: Tensor, batch: int) -> Tensor:
    """Numbers of images, all inside the batch."""
    if index.numel() and index.device.type == "cpu":
        low, high = (int(v) for v in torch.aminmax(index))
        if not 0 <= low <= high < batch:
            raise InvalidArgument(f"regions name images {low} to {high}, and the batch has {batch}")
    return index.long().clamp(0, max(batch - 1, 0))


def max_roi_pool(x: Tensor, rois: Tensor, *, pooled_shape: Ints, spatial_scale: float) -> Tensor:
    """The largest value in each part of each region."""
    image, boxes = wide(x), wide(rois)
    if boxes.device.type == "cpu" and not bool(torch.isfinite(boxes).all()):
        raise InvalidArgument("rois hold numbers that are not finite")
    batch = _images(boxes[:, 0], x.shape[0])
    # Corners round half away from zero, as C's round does.
    scaled = (boxes[:, 1:] * spatial_scale).double()
    corners = (scaled + torch.copysign(torch.full_like(scaled, 0.5), scaled)).trunc()
    corners = torch.nan_to_num(corners).clamp(-(2.0**40), 2.0**40).long()
    height, width = x.shape[2:]
    rows = _bins(corners[:, 1], corners[:, 3], pooled_shape[0], height)
    columns = _bins(corners[:, 0], corners[:, 2], pooled_shape[1], width)
    y = []
    for r in range(len(rois)):  # one after the other: an image for each would not fit
        part = image.index_select(0, batch[r : r + 1])
        part = torch.where(rows[r][:, None, :, None], part, -math.inf).amax(2)
        part = torch.where(columns[r][:, None, None], part, -math.inf).amax(-1)
        y.append(part.permute(2, 1, 0))
    made = torch.stack(y) if y else image.new_zeros((0, x.shape[1], *pooled_shape))
    empty = ~(rows.any(2)[:, :, None] & columns.any(2)[:, None])
    return made.masked_fill(empty[:, None], 0).to(x.dtype)


def _bins(start: Tensor, end: Tensor, count: int, size: int) -> Tensor:
    """Which elements of an axis each of `count` bins of each region holds: [rois, bins, size]."""
    each = ((end - start + 1).clamp(min=1).float() / count)[:, None]
    bins = torch.arange(count, dtype=torch.float32, device=start.device)
    low = (bins * each).floor().long() + start[:, None]
    high = ((bins + 1) * each).ceil().long() + start[:, None]
    place = torch.arange(size, device=start.device)
    return (place >= low[..., None]) & (place < high[..., None])


def roi_align(x: Tensor, rois: Tensor, batch_indices: Tensor, **attrs: Any) -> Tensor:
    """Samples between the elements of each region: their mean or their largest, bin by bin."""
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
    step = max(1, _CHUNK // (n_samples * x.shape[1]))
    channels = image.permute(0, 2, 3, 1)
    for first in range(0, len(rois), step):
        part = slice(first, first + step)
        down, across = (g.part(part) for g in grids)
        pooled = _pooled(channels, batch[part], down, across, attrs["mode"])
        made[part] = pooled.permute(0, 3, 1, 2)
    return made.to(x.dtype)


@frozen
class Grid:
    """Samples along one axis of every region: [rois, bins, samples]."""

    low: Tensor  # the neighbour before a sample
    high: Tensor  # and the one behind it
    near: Tensor  # their weights
    far: Tensor
    is_live: Tensor  # regions with fewer samples than the most have some that do not count
    count: Tensor  # how many do

    def part(self, which: slice) -> Grid:
        """The samples of some regions."""
        return Grid(*(each[which] for each in as_tuple(self)))


def _samples(start: Tensor, length: Tensor, bins: int, how: tuple[int, int]) -> Grid:
    ratio, size = how
    step = (length / bins)[:, None, None]
    counts = torch.full_like(step, ratio) if ratio else step.ceil().clamp(min=0)
    most = ratio if ratio or not len(start) else float(counts.max())
    if not most * bins <= MAX_SAMPLES:
        raise RuntimeException(f"a region asks for {most} samples in each of {bins} bins")
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
    return Grid(low, (low + 1).clamp(max=max(size - 1, 0)), near, far, is_live, counts)


def _pooled(x: Tensor, batch: Tensor, down: Grid, across: Grid, mode: bytes) -> Tensor:
    """Of images [batch, height, width, channels]: [rois, bins, bins, channels]."""
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


def crop_and_resize(x: Tensor, rois: Tensor, batches: Tensor, size: Array, **attrs: Any) -> Tensor:
    """Boxes cut out of images and brought to one size."""
    image, boxes = wide(x), wide(rois)
    batch = _images(batches, x.shape[0]).reshape(-1, 1, 1)
    height, width = size.tolist()
    if min(height, width) < 1:
        raise InvalidArgument(f"crop_size {size.tolist()} is not 1 or more")
    rows = _places(boxes[:, 0], boxes[:, 2], x.shape[2], height)[:, :, None]
    columns = _places(boxes[:, 1], boxes[:, 3], x.shape[3], width)[:, None, :]
    outside = (rows < 0) | (rows > x.shape[2] - 1) | (columns < 0) | (columns > x.shape[3] - 1)
    outside = outside | rows.isnan() | columns.isnan()
    rows, columns = (
        torch.nan_to_num(p).clamp(0, max(n - 1, 0))
        for p, n in ((rows, x.shape[2]), (columns, x.shape[3]))
    )
    channels = image.permute(0, 2, 3, 1)
    if attrs["mode"] == b"nearest":
        y = channels[batch, (rows + 0.5).floor().long(), (columns + 0.5).floor().long()]
    else:
        top, left = rows.floor(), columns.floor()
        down, across = (rows - top)[..., None], (columns - left)[..., None]
        upper, lower = (
            channels[batch, i.long(), left.long()] * (1 - across)
            + channels[batch, i.long(), columns.ceil().long()] * across
            for i in (top, rows.ceil())
        )
        y = upper * (1 - down) + lower * down
    y = y.masked_fill(outside[..., None], attrs["extrapolation_value"])
    return y.permute(0, 3, 1, 2).to(x.dtype)


def _places(first: Tensor, last: Tensor, size: int, count: int) -> Tensor:
    """Where along an axis the samples of boxes lie: their corners are the outermost."""
    if count == 1:
        return (0.5 * (first + last) * (size - 1))[:, None]
    step = (last - first) * (size - 1) / (count - 1)
    steps = torch.arange(count, dtype=first.dtype, device=first.device)
    return (first * (size - 1))[:, None] + steps * step[:, None]


KERNELS: Final[TorchKernels] = {
    (ONNX, "MaxRoiPool"): TorchKernel(max_roi_pool, REALS),
    # How many samples a region takes may depend on its size.
    (ONNX, "RoiAlign"): TorchKernel(roi_align, REALS | {I64}, syncs=True),
    (MICROSOFT, "CropAndResize"): TorchKernel(
        crop_and_resize, frozenset((F16, F32, F64, I32)), host=(3,)
    ),
}
