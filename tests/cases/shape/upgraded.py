"""Cases of shape ops that are upgraded when loaded: com.microsoft, old experiments."""

from __future__ import annotations

import numpy as np

from tests.op_cases import f32, ms, no, of

SAME_SHAPE = [
    ms("SampleOp", f32(2, 3)),
    ms("ExpandDims", f32(2, 3), of(1, np.int32)),
    ms("ExpandDims", f32(2, 3), of(-1, np.int32)),
    ms("Range", of(1, np.int32), of(9, np.int32), of(3, np.int32)),
    ms("Range", of([1.0]), of([4.5])),
    ms("Range", of(4, np.int64), of([9], np.int64)),
    no("ExpandDims", f32(2, 3), of(4, np.int32), match="axis 4"),
]


CASES = [
    *SAME_SHAPE,
]
