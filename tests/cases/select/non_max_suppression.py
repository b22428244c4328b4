"""Cases of NonMaxSuppression."""

from __future__ import annotations

import numpy as np

from tests.op_cases import case, fails, of

_RNG = np.random.default_rng(5)


BOXES = _RNG.uniform(0, 10, (2, 40, 4)).astype(np.float32)


SCORES = _RNG.uniform(0, 1, (2, 3, 40)).astype(np.float32)


def one(number: int) -> np.ndarray:
    return of([number], np.int64)


NMS = [
    *(case("NonMaxSuppression", BOXES, SCORES, one(7), of([t]), of([0.2]), center_point_box=c)
      for t in (0.0, 0.3, 0.7, 1.0) for c in (0, 1)),
    case("NonMaxSuppression", BOXES, SCORES, of(100, np.int64), of(0.4)),
    case("NonMaxSuppression", BOXES, np.round(SCORES), one(40), of([0.5])),
    case("NonMaxSuppression", BOXES, SCORES),
    case("NonMaxSuppression", BOXES, SCORES, one(3), None, of([2.0])),
    case("NonMaxSuppression", BOXES[:, :0], SCORES[:, :, :0], one(3)),
    case("NonMaxSuppression", BOXES, SCORES, one(3), opset=10),
    fails("NonMaxSuppression", BOXES, SCORES, one(3), of([1.5]), match="iou_threshold is 1.5"),
    fails("NonMaxSuppression", BOXES, SCORES[:, :, 1:], one(3), match="boxes: 40 and 39"),
]  # fmt: skip


CASES = [
    *NMS,
]
