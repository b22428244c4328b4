"""Cases of the Gelu ops of com.microsoft."""

from __future__ import annotations

import numpy as np

from tests.op_cases import f16, f32, ints, ms, no, of

GELU = [
    ms("Gelu", f32(3, 7)),
    ms("Gelu", of([np.nan, np.inf, -np.inf, 0.0, -5.0, 90.0]), oracle="none"),
    ms("Gelu", f16(3, 7), oracle="none"),
    ms("FastGelu", f32(3, 7), ulps=8),
    ms("FastGelu", f32(2, 3, 7), f32(7), ulps=8),
    ms("BiasGelu", f32(2, 3, 7), f32(7), ulps=8),
    ms("BiasGelu", f32(0, 7), f32(7)),
    ms("QuickGelu", f32(3, 7), ulps=8),
    ms("QuickGelu", f32(3, 7), alpha=1.0, ulps=8),
    ms(
        "QOrderedGelu",
        of([[-128, -40, -1, 0], [1, 33, 64, 127]], np.int8),
        of(1 / 32),
        of(1 / 64),
        expect=(of([[0, -8, -1, 0], [1, 56, 125, 127]], np.int8),),
        why="onnxruntime has it on CUDA only",
    ),
    ms("QOrderedGelu", ints(np.int8, 3, 40), of([0.5]), of([0.25]), order_X=1, oracle="none"),
    no("QOrderedGelu", ints(np.int8, 3), of(1), of(1), order_X=1, order_Y=2, match="must be equal"),
    no("QOrderedGelu", ints(np.int8, 3), of([1, 2]), of(1), match="scale_X is one number"),
    no("BiasGelu", f32(2, 7), f32(6), match="does not fit the last dim"),
    no("FastGelu", f32(2, 7), f32(2, 7), match="one vector"),
]


CASES = [
    *GELU,
]
