# /// script
# dependencies = ["osam==0.8.1"]
# ///
"""osam: of boxes that overlap, the best."""

import numpy as np
from osam.apis import non_maximum_suppression


def make():
    return non_maximum_suppression


def use(best):
    rng = np.random.default_rng(5)
    corner = rng.uniform(0, 400, (300, 2))
    boxes = np.hstack([corner, corner + rng.uniform(20, 120, (300, 2))]).astype(np.float32)
    scores = rng.uniform(0, 1, (300, 4)).astype(np.float32)
    return best(boxes, scores, iou_threshold=0.4, score_threshold=0.3, max_num_detections=50)
