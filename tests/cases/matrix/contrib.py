"""Cases of CDist, DynamicTimeWarping and Inverse."""

from __future__ import annotations

import numpy as np

from tests.op_cases import f32, f64, ints, ms, no

SQUARE = np.eye(4, dtype=np.float32) * 2 + f32(3, 4, 4) * np.float32(0.3)


MATRIX = [
    ms("Inverse", SQUARE, ulps=16),
    ms("Inverse", SQUARE[0].astype(np.float64), ulps=16),
    ms("Inverse", SQUARE.astype(np.float16), ulps=8),
    ms("Inverse", f32(2, 0, 0)),
    ms("Inverse", f32(1, 1)),
    no("Inverse", f32(2, 3), match="square"),
    no("Inverse", f32(3), match="square"),
    no("Inverse", np.zeros((2, 2), np.float32), match="singular"),
    ms("CDist", f32(5, 3), f32(4, 3), ulps=64, why="a difference of squares and products"),
    ms("CDist", f32(5, 3), f32(4, 3), metric="euclidean", ulps=64),
    ms("CDist", f64(5, 17), f64(7, 17), metric="euclidean", ulps=64),
    ms("CDist", f32(0, 3), f32(4, 3)),
    no("CDist", f32(5, 3), f32(4, 2), match="different lengths"),
    no("CDist", f32(5, 3), f32(4, 3), metric="cosine", match="must be one of sqeuclidean"),
    ms("DynamicTimeWarping", f32(5, 7)),
    ms("DynamicTimeWarping", f32(1, 7, 4)),
    ms("DynamicTimeWarping", ints(np.float32, 6, 6, low=0, high=3)),
    ms("DynamicTimeWarping", f32(1, 1)),
    no("DynamicTimeWarping", f32(3), match="matrix"),
    no("DynamicTimeWarping", f32(0, 3), match="empty"),
]


CASES = [
    *MATRIX,
]
