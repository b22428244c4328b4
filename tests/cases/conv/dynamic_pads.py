"""Cases of ConvTransposeWithDynamicPads."""

from __future__ import annotations

import numpy as np

from tests.op_cases import f32, ms, no, of

WINDOWS = [
    ms(
        "ConvTransposeWithDynamicPads",
        *(f32(1, 2, 4, 4), f32(2, 3, 3, 3), of([1, 1, 0, 0], np.int64), f32(3)),
        strides=[2, 2],
        ulps=16,
    ),
    ms(
        "ConvTransposeWithDynamicPads",
        *(f32(1, 2, 4, 4), f32(2, 3, 3, 3)),
        oracle="none",
        why="onnxruntime wants pads, which the schema lets be left out",
    ),
    no(
        "ConvTransposeWithDynamicPads",
        *(f32(1, 2, 4, 4), f32(2, 3, 3, 3), of([1, 1], np.int64)),
        match="ads",
    ),
]


CASES = [
    *WINDOWS,
]
