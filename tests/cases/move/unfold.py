"""Cases of UnfoldTensor."""

from __future__ import annotations

from tests.op_cases import f16, f32, i64, ms, no

CROP_MOVE = [
    ms("UnfoldTensor", f32(2, 7), size=3, step=2),
    ms("UnfoldTensor", i64(7, 2, 3), size=4, dim=0),
    ms("UnfoldTensor", f32(2, 5, 3), size=5, dim=-2),
    ms("UnfoldTensor", f16(6), size=1, step=4, oracle="none", why="onnxruntime lacks the type"),
    no("UnfoldTensor", f32(2, 3), size=4, match="longer than the dim"),
    no("UnfoldTensor", f32(2, 3), size=0, match="at least 1"),
    no("UnfoldTensor", f32(2, 3), size=1, dim=2, match="dim 2"),
]


CASES = [
    *CROP_MOVE,
]
