"""Cases of dropout ops that are upgraded when loaded: com.microsoft, old experiments."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.op_cases import f32, ms, of

NOT_ON_CPU: dict[str, Any] = {"why": "onnxruntime has it on other devices only"}


X, BIAS = f32(2, 3, 8), f32(8)


SUM = X.astype(np.float64) + BIAS


PARTS_RANDOM = [
    ms("BiasDropout", X, BIAS, outputs=2, oracle="none", **NOT_ON_CPU),
    ms("BiasDropout", X, BIAS, X, expect=((SUM + X).astype(np.float32),), **NOT_ON_CPU),
]


FUSED_RANDOM = [
    ms(
        "BitmaskDropout",
        f32(3, 11),
        outputs=2,
        expect=(f32(3, 11), of([2**32 - 1, 1], np.uint32)),
        **NOT_ON_CPU,
    ),
    ms("BitmaskDropout", f32(3, 9), expect=(f32(3, 9),), **NOT_ON_CPU),
    ms("BitmaskBiasDropout", f32(3, 9), f32(9), f32(3, 9), outputs=2, oracle="none", **NOT_ON_CPU),
]


CASES = [
    *PARTS_RANDOM,
    *FUSED_RANDOM,
]
