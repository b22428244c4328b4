"""Cases of Det."""

from __future__ import annotations

import numpy as np

from tests.op_cases import case, f16, f32, f64, fails, of

DET = [
    case("Det", f32(3, 3), ulps=32),
    case("Det", f32(2, 5, 4, 4), ulps=64, why="onnxruntime eliminates in float32"),
    case("Det", f64(1, 1)),
    case("Det", f32(0, 3, 3)),
    case("Det", of([[1, 2], [2, 4]]), expect=(of(0.0),)),
    case(
        "Det", f16(2, 3, 3), expect=(np.linalg.det(f16(2, 3, 3).astype(float)).astype(np.float16),)
    ),
    fails("Det", f32(2, 3), match="not square: 2 and 3"),
    fails("Det", f32(3), match="needs square matrices"),
]


CASES = [
    *DET,
]
