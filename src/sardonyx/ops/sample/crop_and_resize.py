"""CropAndResize of com.microsoft: boxes of images, resampled to one size."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, InvalidGraph
from sardonyx.graph.dtype import I32, IEEE
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import MICROSOFT, Op
from sardonyx.ops.arrays import Array, in_wide
from sardonyx.ops.attention.heads import same_dims, same_rank
from sardonyx.ops.inference import check_choice
from sardonyx.ops.sample.interpolate import weighted_sum

crop: Final = Op(
    "CropAndResize",
    1,
    "X:T rois:T batch_indices:I crop_size:I",
    "Y:T",
    domain=MICROSOFT,
    attrs={"extrapolation_value": 0.0, "mode": b"bilinear"},
    types={"T": IEEE, "I": frozenset((I32,))},
)


@crop.infer
def _(g: Scope, x: Fact, rois: Fact, batches: Fact, size: Fact, **attrs: Any) -> Fact:
    check_choice("mode", attrs["mode"], (b"bilinear", b"nearest"), InvalidGraph)
    same_rank(4, X=x)
    same_rank(2, rois=rois)
    same_dims(g, rois.dims, (rois.dims[0], 4), "rois")
    same_dims(g, batches.dims, (rois.dims[0],), "batch_indices")
    same_dims(g, size.dims, (2,), "crop_size")
    height, width = size.sym or (g.new_dim("height"), g.new_dim("width"))
    for number in (height, width) if size.sym else ():
        g.at_least(number, 1, "crop_size must be at least 1")
    return x.shaped((rois.dims[0], x.dims[1], height, width))


@crop.reference
@in_wide
def _(x: Array, rois: Array, batches: Array, size: Array, **attrs: Any) -> Array:
    wrong = batches[(batches < 0) | (batches >= x.shape[0])]
    if wrong.size:
        raise InvalidArgument(f"batch index {int(wrong[0])} is outside [0, {x.shape[0]})")
    if size.min() < 1:
        raise InvalidArgument(f"crop_size must be at least 1, got {size.tolist()}")
    height, width = size.tolist()
    y = np.full((len(rois), x.shape[1], height, width), attrs["extrapolation_value"], x.dtype)
    for k, (top, left, bottom, right) in enumerate(rois):
        rows = _sample_positions(top, bottom, x.shape[2], height, x.dtype)
        columns = _sample_positions(left, right, x.shape[3], width, x.dtype)
        in_rows = (rows >= 0) & (rows <= x.shape[2] - 1)
        in_columns = (columns >= 0) & (columns <= x.shape[3] - 1)
        samples = _sampled(x[batches[k]], rows[in_rows], columns[in_columns], attrs["mode"])
        y[k][:, in_rows[:, None] & in_columns] = samples
    return y


def _sample_positions(first: Any, last: Any, size: int, count: int, dtype: Any) -> Array:
    """Return the sample positions of a box along an axis; the outermost are its corners."""
    kind = dtype.type
    if count == 1:
        return np.asarray([kind(0.5) * (first + last) * kind(size - 1)])
    step = (last - first) * kind(size - 1) / kind(count - 1)
    return np.asarray(first * kind(size - 1) + np.arange(count).astype(dtype) * step)


def _sampled(image: Array, rows: Array, columns: Array, mode: bytes) -> Array:
    """Return the samples (channels, positions) at every pair of a row and a column."""
    points = [p.reshape(-1) for p in np.meshgrid(rows, columns, indexing="ij")]
    axes = []
    for p, size in zip(points, image.shape[1:], strict=True):
        # Positions of large images are rounded, perhaps to one after the last.
        low, high = (np.minimum(f(p).astype(int), size - 1) for f in (np.floor, np.ceil))
        weight = p - low.astype(p.dtype)
        axes.append([(low, 1 - weight), (high, weight)])
    if mode == b"nearest":
        i, j = (np.where(far[1] >= 0.5, far[0], near[0]) for near, far in axes)
        return image[:, i, j]
    return weighted_sum(image, axes)


OPS: Final = (crop,)
