"""Regions of interest: pooling inside boxes, and choosing among boxes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, RuntimeException, ShapeError
from sardonyx.graph.dtype import F32, FLOATS, I64
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op, required
from sardonyx.ops.rules import Array, in_wide, one_int
from sardonyx.ops.window import MAX_SPAN, Ints

INDEX: Final = frozenset((I64,))
FLOAT: Final = frozenset((F32,))
MAX_SAMPLES: Final = 1 << 20  # along one axis of one region; more means garbage for corners


def _check_pooled(shape: Ints) -> None:
    if len(shape) != 2 or any(not 0 < s <= MAX_SPAN for s in shape):
        raise ShapeError(f"the pooled size {shape} is not two numbers within [1, {MAX_SPAN}]")


def _check_image(g: Scope, x: Fact, rois: Fact, columns: int) -> None:
    if x.rank != 4 or rois.rank != 2:
        raise ShapeError(f"x has rank 4 and rois have rank 2, not {x.rank} and {rois.rank}")
    g.equal(rois.dims[1], columns, f"each region is {columns} numbers")


def _check_batch(index: Array, batch: int) -> None:
    if index.size and not 0 <= index.min() <= index.max() < batch:
        raise InvalidArgument(
            f"regions name images {index.min()} to {index.max()}, and the batch has {batch}"
        )


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


def _max_roi_pool(x: Array, rois: Array, *, pooled_shape: Ints, spatial_scale: float) -> Array:
    if not np.all(np.isfinite(rois)):
        raise InvalidArgument("rois hold numbers that are not finite")
    batch = rois[:, 0].astype(np.int64)
    _check_batch(batch, x.shape[0])
    # Corners round half away from zero, as C's round does.
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
    """The largest value of each of `count` bins that share a span of one axis; which are empty."""
    start, end = span
    size = x.shape[axis]
    each = np.float32(max(end - start + 1, 1)) / np.float32(count)
    bins = np.arange(count, dtype=np.float32)
    low = np.clip(np.floor(bins * each).astype(np.int64) + start, 0, size)
    high = np.clip(np.ceil((bins + 1) * each).astype(np.int64) + start, 0, size)
    spans = zip(low.tolist(), high.tolist(), strict=True)
    parts = [x[(slice(None),) * axis + (slice(a, b),)] for a, b in spans]
    return np.stack([p.max(axis=axis, initial=-np.inf) for p in parts], axis), high <= low


max_roi_pool.reference(in_wide(_max_roi_pool))

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
    types={"T": FLOATS, "I": INDEX},
)


@roi_align.infer
def _(g: Scope, x: Fact, rois: Fact, batch_indices: Fact, **attrs: Any) -> Fact:
    pooled = (attrs["output_height"], attrs["output_width"])
    _check_pooled(pooled)
    _check_image(g, x, rois, 4)
    allowed = {
        "mode": (b"avg", b"max"),
        "coordinate_transformation_mode": (b"half_pixel", b"output_half_pixel"),
    }
    for name, values in allowed.items():
        if attrs[name] not in values:
            raise ShapeError(f"{name} is {attrs[name]!r}, and may be one of {values}")
    if attrs["sampling_ratio"] < 0:
        raise ShapeError(f"sampling_ratio is {attrs['sampling_ratio']}, and must not be negative")
    if batch_indices.rank != 1:
        raise ShapeError(f"batch_indices has rank {batch_indices.rank}, and must be a vector")
    g.equal(batch_indices.dims[0], rois.dims[0], "rois and batch_indices differ in number")
    return Fact(x.dtype, (rois.dims[0], x.dims[1], *pooled))


def _roi_align(x: Array, rois: Array, batch_indices: Array, **attrs: Any) -> Array:
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


Grid = tuple[Array, Array, Array]  # low neighbours, their weights, high neighbours' weights


def _samples(span: tuple[Any, Any], bins: int, ratio: int, size: int) -> Grid:
    """Sampling points along one axis, as (bins, samples): lower neighbour and both weights."""
    start, length = span
    step = length / span[0].dtype.type(bins)
    wanted = ratio if ratio > 0 else math.ceil(step) if np.isfinite(step) else MAX_SAMPLES + 1
    if wanted * bins > MAX_SAMPLES:
        raise RuntimeException(
            f"a region of {length} elements asks for {wanted} samples in each of {bins} bins"
        )
    inner = (np.arange(max(wanted, 0), dtype=step.dtype) + step.dtype.type(0.5)) * step
    position = start + np.arange(bins, dtype=step.dtype)[:, None] * step
    position = position + (inner / step.dtype.type(max(wanted, 1)))[None, :]
    hit = (position >= -1) & (position <= size)
    position = np.clip(np.where(hit, position, 0), 0, max(size - 1, 0))
    low = np.minimum(position.astype(np.int64), max(size - 2, 0))
    part = position - low
    return low, np.where(hit, 1 - part, 0), np.where(hit, part, 0)


def _average_grid(x: Array, rows: Grid, columns: Grid) -> Array:
    """Bilinear samples and their mean are separable: one small matrix for each side."""
    down, first_row = _mean_matrix(rows, x.shape[1])
    across, first_column = _mean_matrix(columns, x.shape[2])
    part = x[
        :,
        first_row : first_row + down.shape[1],
        first_column : first_column + across.shape[1],
    ]
    return np.asarray(np.matmul(np.matmul(down, part), across.T))


def _mean_matrix(grid: Grid, size: int) -> tuple[Array, int]:
    """(bins, elements) weights over the elements that the samples touch, and the first of them."""
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


def _max_grid(x: Array, rows: Grid, columns: Grid) -> Array:
    """ONNX takes the largest of the weighted neighbours, not of the interpolated samples."""
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


roi_align.reference(in_wide(_roi_align))

non_max = Op(
    "NonMaxSuppression",
    11,
    "boxes:F scores:F most:I? iou_threshold:F? score_threshold:F?",
    "indices:I",
    attrs={"center_point_box": 0},
    types={"F": FLOAT, "I": INDEX},
    singles="most iou_threshold score_threshold",
)


@non_max.infer
def _(g: Scope, boxes: Fact, scores: Fact, *_: Fact | None, center_point_box: int) -> Fact:
    if boxes.rank != 3 or scores.rank != 3:
        raise ShapeError(f"boxes and scores have rank 3, not {boxes.rank} and {scores.rank}")
    g.equal(boxes.dims[2], 4, "each box is 4 numbers")
    g.equal(boxes.dims[0], scores.dims[0], "boxes and scores differ in batch")
    g.equal(boxes.dims[1], scores.dims[2], "boxes and scores differ in number")
    return Fact(I64, (g.fresh("selected"), 3))


def _non_max(
    boxes: Array,
    scores: Array,
    most: Array | None = None,
    iou_threshold: Array | None = None,
    score_threshold: Array | None = None,
    *,
    center_point_box: int,
) -> Array:
    limit = 0 if most is None else one_int(most, "max_output_boxes_per_class")
    overlap = np.float32(0 if iou_threshold is None else iou_threshold.reshape(-1)[0])
    if not 0 <= overlap <= 1:
        raise InvalidArgument(f"iou_threshold is {overlap}, outside [0, 1]")
    least = -np.inf if score_threshold is None else score_threshold.reshape(-1)[0]
    chosen = []
    for batch in range(scores.shape[0] if limit > 0 else 0):
        suppresses = _overlaps(_corners(boxes[batch], center_point_box), overlap)
        for label in range(scores.shape[1]):
            kept = _pick(scores[batch, label], least, limit, suppresses)
            chosen += [(batch, label, box) for box in kept]
    return np.array(chosen, np.int64).reshape(-1, 3)


def _corners(boxes: Array, center_point_box: int) -> Array:
    """Boxes as (low, low, high, high), whatever the axes are called."""
    first, second = boxes[:, :2], boxes[:, 2:]
    if center_point_box:
        return np.concatenate((first - second / 2, first + second / 2), axis=1)
    return np.concatenate((np.minimum(first, second), np.maximum(first, second)), axis=1)


def _overlaps(boxes: Array, threshold: Any) -> Callable[[int, Array], Array]:
    """Which of some boxes a chosen one suppresses."""
    low, high = boxes[:, :2], boxes[:, 2:]
    area = (high - low).prod(axis=1)

    def suppressed(chosen: int, others: Array) -> Array:
        corner = np.maximum(low[others], low[chosen])
        sides = np.minimum(high[others], high[chosen]) - corner
        shared = np.where((sides > 0).all(axis=1), sides.prod(axis=1), 0)
        union = area[others] + area[chosen] - shared
        return np.asarray((shared > 0) & (union > 0) & (shared / union > threshold))

    return suppressed


def _pick(
    scores: Array, least: Any, limit: int, suppressed: Callable[[int, Array], Array]
) -> list[int]:
    """Box after box, the best first, as long as no better one overlaps it."""
    open_ = np.flatnonzero(scores > least)
    open_ = open_[np.argsort(-scores[open_], kind="stable")]
    kept: list[int] = []
    while open_.size and len(kept) < limit:
        best, open_ = int(open_[0]), open_[1:]
        kept.append(best)
        open_ = open_[~suppressed(best, open_)]
    return kept


non_max.reference(np.errstate(all="ignore")(_non_max))

OPS: Final = (max_roi_pool, roi_align, non_max)
