"""NonMaxSuppression: greedy selection of boxes by score and IoU (intersection over union)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, ShapeError
from sardonyx.graph.dtype import F32, I64
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op
from sardonyx.ops.arrays import Array, one_int
from sardonyx.ops.sizes import SIZES

non_max = Op(
    "NonMaxSuppression",
    11,
    "boxes:F scores:F max_output_boxes_per_class:I? iou_threshold:F? score_threshold:F?",
    "indices:I",
    attrs={"center_point_box": 0},
    types={"F": frozenset((F32,)), "I": SIZES},
    singles="max_output_boxes_per_class iou_threshold score_threshold",
)


@non_max.infer
def _(g: Scope, boxes: Fact, scores: Fact, *_: Fact | None, center_point_box: int) -> Fact:
    if boxes.rank != 3 or scores.rank != 3:
        raise ShapeError(f"boxes and scores must have rank 3, got {boxes.rank} and {scores.rank}")
    g.equal(boxes.dims[2], 4, "each box is 4 numbers")
    g.equal(boxes.dims[0], scores.dims[0], "boxes and scores differ in batch")
    g.equal(boxes.dims[1], scores.dims[2], "boxes and scores have different numbers of boxes")
    return Fact(I64, (g.new_dim("selected"), 3))


@non_max.reference
@np.errstate(all="ignore")
def _(boxes: Array, scores: Array, *limits: Array | None, center_point_box: int) -> Array:
    count, iou_threshold, score_threshold = limits
    limit = 0 if count is None else one_int(count, "max_output_boxes_per_class")
    overlap = np.float32(0 if iou_threshold is None else iou_threshold.reshape(-1)[0])
    if not 0 <= overlap <= 1:
        raise InvalidArgument(f"iou_threshold is {overlap}, outside [0, 1]")
    min_score = -np.inf if score_threshold is None else score_threshold.reshape(-1)[0]
    chosen = []
    for batch in range(scores.shape[0] if limit > 0 else 0):
        # Classes do not suppress each other, but share the boxes and their areas.
        suppresses = _overlaps(_corners(boxes[batch], center_point_box), overlap)
        for label in range(scores.shape[1]):
            selected = _pick(scores[batch, label], min_score, limit, suppresses)
            chosen += [(batch, label, box) for box in selected]
    return np.array(chosen, np.int64).reshape(-1, 3)


def _corners(boxes: Array, center_point_box: int) -> Array:
    """Return boxes as (low, low, high, high) corners; the axis order does not matter for IoU."""
    first, second = boxes[:, :2], boxes[:, 2:]
    if center_point_box:
        return np.concatenate((first - second / 2, first + second / 2), axis=1)
    return np.concatenate((np.minimum(first, second), np.maximum(first, second)), axis=1)


def _overlaps(boxes: Array, threshold: Any) -> Callable[[int, Array], Array]:
    """Return a predicate: which of the other boxes a chosen one suppresses (IoU > threshold)."""
    low, high = boxes[:, :2], boxes[:, 2:]
    area = (high - low).prod(axis=1)

    def suppressed(chosen: int, others: Array) -> Array:
        corner = np.maximum(low[others], low[chosen])
        sides = np.minimum(high[others], high[chosen]) - corner
        intersection = np.where((sides > 0).all(axis=1), sides.prod(axis=1), 0)
        union = area[others] + area[chosen] - intersection
        return np.asarray((intersection > 0) & (union > 0) & (intersection / union > threshold))

    return suppressed


def _pick(
    scores: Array, min_score: Any, limit: int, suppressed: Callable[[int, Array], Array]
) -> list[int]:
    """Select boxes greedily by score; each selection removes the boxes it suppresses."""
    candidates = np.flatnonzero(scores > min_score)
    candidates = candidates[np.argsort(-scores[candidates], kind="stable")]
    selected: list[int] = []
    while candidates.size and len(selected) < limit:
        best, candidates = int(candidates[0]), candidates[1:]
        selected.append(best)
        candidates = candidates[~suppressed(best, candidates)]
    return selected


OPS: Final = (non_max,)
