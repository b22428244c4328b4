"""Cases of MaxRoiPool and RoiAlign."""

from __future__ import annotations

import numpy as np

from tests.op_cases import case, f16, f32, f64, fails, of

X = f32(2, 3, 10, 12)


ROIS = of([[0, 0, 5, 4], [2.3, 1.1, 9.7, 8.2], [-2, -3, 1.5, 2], [8, 7, 14, 13], [3, 3, 3.2, 3.1]])


BATCH = of([0, 1, 1, 0, 1], np.int64)


BOXED = np.concatenate((BATCH[:, None], ROIS), axis=1).astype(np.float32)


SIZE = {"output_height": 3, "output_width": 4}


ALIGN = [
    *(case("RoiAlign", X, ROIS, BATCH, opset=16, mode=m, sampling_ratio=s, ulps=64,
           coordinate_transformation_mode=c, why="positions are rounded", **SIZE)
      for m in ("avg", "max") for s in (0, 2) for c in ("half_pixel", "output_half_pixel")),
    case("RoiAlign", X, ROIS, BATCH, spatial_scale=0.5, ulps=64, why="positions are rounded"),
    case("RoiAlign", X, ROIS, BATCH, opset=10, ulps=64, why="positions are rounded", **SIZE),
    case("RoiAlign", X, ROIS[:0], BATCH[:0], opset=16, **SIZE),
    case("RoiAlign", f64(1, 2, 5, 5), ROIS[:2].astype(np.float64), of([0, 0], np.int64), ulps=64),
    case("RoiAlign", f16(1, 2, 5, 5), ROIS[:2].astype(np.float16), of([0, 0], np.int64),
         oracle="none", why="the oracle rounds float16 at every step"),
    fails("RoiAlign", X, ROIS, BATCH + 1, match="images? (1 to )?2, and the batch has 2"),
    fails("RoiAlign", X, ROIS, BATCH[:3], match="differ in number"),
    fails("RoiAlign", X, BOXED, BATCH, match="each region is 4 numbers"),
    fails("RoiAlign", X, ROIS * 1e30, BATCH, match="samples"),
    fails("RoiAlign", X, ROIS, BATCH, mode="mean", match="mode must be .*got mean"),
    fails("RoiAlign", X, ROIS, BATCH, output_width=0, match="pooled size"),
]  # fmt: skip


MAX = [
    case("MaxRoiPool", X, BOXED, pooled_shape=[3, 4], opset=11),
    case("MaxRoiPool", X, BOXED, pooled_shape=[2, 2], spatial_scale=0.5, opset=1),
    case("MaxRoiPool", f64(1, 1, 4, 4), of([[0, 0, 0, 1, 3]], np.float64), pooled_shape=[2, 1],
         oracle="none", why="no oracle has version 22"),
    fails("MaxRoiPool", X, BOXED + 1, pooled_shape=[2, 2], match="images? (1 to )?2"),
    fails("MaxRoiPool", X, BOXED * np.float32(np.nan), pooled_shape=[2, 2], match="finite"),
    fails("MaxRoiPool", X, ROIS, pooled_shape=[2, 2], match="each region is 5 numbers"),
]  # fmt: skip


CASES = [
    *ALIGN,
    *MAX,
]
