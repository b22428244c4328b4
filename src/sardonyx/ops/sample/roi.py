"""MaxRoiPool and RoiAlign: pooling over regions of interest."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, RuntimeException, ShapeError
from sardonyx.graph.dtype import FLOATS
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op, required
from sardonyx.ops.arrays import Array, in_wide
from sardonyx.ops.inference import check_choice
from sardonyx.ops.sizes import SIZES
from sardonyx.ops.sliding_window import MAX_SPAN, Ints

MAX_SAMPLES: Final = 1 << 20  # along one axis of one region; more means invalid corners


def _check_pooled(shape: Ints) -> None:
    if len(shape) != 2 or any(not 0 < s <= MAX_SPAN for s in shape):
        raise ShapeError(f"the pooled size {shape} is not two numbers within [1, {MAX_SPAN}]")


def _check_image(g: Scope, x: Fact, rois: Fact, columns: int) -> None:
    if x.rank != 4 or rois.rank != 2:
        raise ShapeError(f"x must have rank 4 and rois rank 2, got {x.rank} and {rois.rank}")
    g.equal(rois.dims[1], columns, f"each region is {columns} numbers")


def _check_batch(index: Array, batch: int) -> None:
    if index.size and not 0 <= index.min() <= index.max() < batch:
        found = f"{index.min()} to {index.max()}"
        raise InvalidArgument(f"batch indices are {found}, the batch has {batch}")


max_roi_pool = Op(
    "MaxRoiPool",
    22,
    "x:T rois:T",
    "y:T",
    attrs={"pooled_shape": required("ints"), "spatial_scale": 1.0},
    types={"T": FLOATS},
)


@max_roi_pool.infer
def _(g: Scope, x: Fact, rois: Fact, *, pooled_shape: Ints, spatial_scale: float) -> Fact:
    _check_pooled(tuple(pooled_shape))
    _check_image(g, x, rois, 5)
    return Fact(x.dtype, (rois.dims[0], x.dims[1], *pooled_shape))


@max_roi_pool.reference
@in_wide
def _(x: Array, rois: Array, *, pooled_shape: Ints, spatial_scale: float) -> Array:
    if not np.all(np.isfinite(rois)):
        raise InvalidArgument("rois contain non-finite values")
    batch = rois[:, 0].astype(np.int64)
    _check_batch(batch, x.shape[0])
    # Corners are rounded half away from zero, like C's round().
    scaled = (rois[:, 1:] * rois.dtype.type(spatial_scale)).astype(np.float64)
    scaled = np.trunc(scaled + np.copysign(0.5, scaled))
    corners = np.clip(scaled, -(2**40), 2**40).astype(np.int64)
    y = np.empty((len(rois), x.shape[1], *pooled_shape), x.dtype)
    for r, (left, top, right, bottom) in enumerate(corners.tolist()):
        rows, no_row = _max_bins(x[batch[r]], (top, bottom), pooled_shape[0], 1)
        bins, no_column = _max_bins(rows, (left, right), pooled_shape[1], 2)
        y[r] = np.where(no_row[:, None] | no_column, 0, bins)
    return y


def _max_bins(x: Array, span: tuple[int, int], count: int, axis: int) -> tuple[Array, Array]:
    """Return the maximum of each of `count` bins of a span of one axis, and which are empty."""
    start, end = span
    size = x.shape[axis]
    each = np.float32(max(end - start + 1, 1)) / np.float32(count)
    bins = np.arange(count, dtype=np.float32)
    low = np.clip(np.floor(bins * each).astype(np.int64) + start, 0, size)
    high = np.clip(np.ceil((bins + 1) * each).astype(np.int64) + start, 0, size)
    spans = zip(low.tolist(), high.tolist(), strict=True)
    slices = [x[(slice(None),) * axis + (slice(a, b),)] for a, b in spans]
    return np.stack([p.max(axis=axis, initial=-np.inf) for p in slices], axis), high <= low


roi_align = Op(
    "RoiAlign",
    22,
    "x:T rois:T batch_indices:I",
    "y:T",
    attrs={
        "coordinate_transformation_mode": b"half_pixel",
        "mode": b"avg",
        "output_height": 1,
        "output_width": 1,
        "sampling_ratio": 0,
        "spatial_scale": 1.0,
    },
    types={"T": FLOATS, "I": SIZES},
)


@roi_align.infer
def _(g: Scope, x: Fact, rois: Fact, batch_indices: Fact, **attrs: Any) -> Fact:
    pooled = (attrs["output_height"], attrs["output_width"])
    _check_pooled(pooled)
    _check_image(g, x, rois, 4)
    check_choice("mode", attrs["mode"], (b"avg", b"max"))
    transform = "coordinate_transformation_mode"
    check_choice(transform, attrs[transform], (b"half_pixel", b"output_half_pixel"))
    if attrs["sampling_ratio"] < 0:
        raise ShapeError(f"sampling_ratio must not be negative, got {attrs['sampling_ratio']}")
    if batch_indices.rank != 1:
        raise ShapeError(f"batch_indices must be a vector, got rank {batch_indices.rank}")
    g.equal(batch_indices.dims[0], rois.dims[0], "rois and batch_indices differ in number")
    return Fact(x.dtype, (rois.dims[0], x.dims[1], *pooled))


@roi_align.reference
@in_wide
def _(x: Array, rois: Array, batch_indices: Array, **attrs: Any) -> Array:
    _check_batch(batch_indices, x.shape[0])
    aligned = attrs["coordinate_transformation_mode"] == b"half_pixel"
    corners = rois * rois.dtype.type(attrs["spatial_scale"]) - rois.dtype.type(0.5 * aligned)
    sizes = corners[:, 2:] - corners[:, :2]
    if not aligned:
        sizes = np.maximum(sizes, 1)
    counts = (attrs["output_width"], attrs["output_height"])
    pool = _average_grid if attrs["mode"] == b"avg" else _max_grid
    y = np.empty((len(rois), x.shape[1], counts[1], counts[0]), x.dtype)
    ratio = attrs["sampling_ratio"]
    for r, image in enumerate(batch_indices.tolist()):
        across, down = (
            _samples((corners[r, i], sizes[r, i]), counts[i], ratio, x.shape[3 - i]) for i in (0, 1)
        )
        y[r] = pool(x[image], down, across)
    return y


SampleAxis = tuple[Array, Array, Array]  # low neighbours, their weights, high neighbours' weights


def _samples(span: tuple[Any, Any], bins: int, ratio: int, size: int) -> SampleAxis:
    """Return the sampling points along one axis, (bins, samples): lower neighbour, both weights."""
    start, length = span
    step = length / span[0].dtype.type(bins)
    n_samples = ratio if ratio > 0 else math.ceil(step) if np.isfinite(step) else MAX_SAMPLES + 1
    if n_samples * bins > MAX_SAMPLES:
        samples = f"{n_samples} samples in each of {bins} bins"
        raise RuntimeException(f"a region of {length} elements needs {samples}")
    inner = (np.arange(max(n_samples, 0), dtype=step.dtype) + step.dtype.type(0.5)) * step
    position = start + np.arange(bins, dtype=step.dtype)[:, None] * step
    position = position + (inner / step.dtype.type(max(n_samples, 1)))[None, :]
    # As in onnxruntime, samples up to 1 outside the image are clamped; those further out are 0.
    is_inside = (position >= -1) & (position <= size)
    position = np.clip(np.where(is_inside, position, 0), 0, max(size - 1, 0))
    low = np.minimum(position.astype(np.int64), max(size - 2, 0))
    fraction = position - low
    return low, np.where(is_inside, 1 - fraction, 0), np.where(is_inside, fraction, 0)


def _average_grid(x: Array, rows: SampleAxis, columns: SampleAxis) -> Array:
    """Mean of bilinear samples: separable, so one small matrix per axis."""
    down, first_row = _mean_matrix(rows, x.shape[1])
    across, first_column = _mean_matrix(columns, x.shape[2])
    rows_read = x[:, first_row : first_row + down.shape[1]]
    read = rows_read[:, :, first_column : first_column + across.shape[1]]
    return np.asarray(np.matmul(np.matmul(down, read), across.T))


def _mean_matrix(grid: SampleAxis, size: int) -> tuple[Array, int]:
    """Return (bins, elements) weights of the elements that samples read, and the first element."""
    low, near, far = grid
    bins, samples = low.shape
    if low.size == 0 or size == 0:
        return np.zeros((bins, 0), near.dtype), 0
    first, last = int(low.min()), min(int(low.max()) + 1, size - 1)
    matrix = np.zeros((bins, last - first + 1), near.dtype)
    row = np.repeat(np.arange(bins), samples)
    for index, weight in ((low, near), (np.minimum(low + 1, last), far)):
        np.add.at(matrix, (row, index.reshape(-1) - first), weight.reshape(-1) / samples)
    return matrix, first


def _max_grid(x: Array, rows: SampleAxis, columns: SampleAxis) -> Array:
    """ONNX's max mode: the maximum of the weighted neighbours, not of interpolated samples."""
    (top, near_y, far_y), (left, near_x, far_x) = rows, columns
    height, width = x.shape[1:]
    if top.size == 0 or left.size == 0 or x.size == 0:
        return np.zeros((x.shape[0], len(top), len(left)), x.dtype)
    best: Any = None
    for y, wy in ((top, near_y), (np.minimum(top + 1, height - 1), far_y)):
        for z, wx in ((left, near_x), (np.minimum(left + 1, width - 1), far_x)):
            read = x[:, y[:, :, None, None], z[None, None]]
            term = (read * (wy[:, :, None, None] * wx[None, None])).max(axis=(2, 4))
            best = term if best is None else np.maximum(best, term)
    return np.asarray(best)


OPS: Final = (max_roi_pool, roi_align)
