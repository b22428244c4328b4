"""Cases of matmul ops that are upgraded when loaded: com.microsoft, old experiments."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.op_cases import f32, ms

NOT_ON_CPU: dict[str, Any] = {"why": "onnxruntime has it on other devices only"}


SAME_MATMUL = [
    ms("TransposeMatMul", f32(5, 3), f32(4, 5), transA=1, transB=1, alpha=0.3, ulps=16),
]


X, BIAS = f32(2, 3, 8), f32(8)


SUM = X.astype(np.float64) + BIAS


GELU_TANH = 0.5 * SUM * (1 + np.tanh(np.sqrt(2 / np.pi) * (SUM + 0.044715 * SUM**3)))


PARTS_MATMUL = [
    ms(
        "GemmFastGelu",
        X,
        np.eye(8, dtype=np.float32),
        BIAS,
        ulps=16,
        expect=(GELU_TANH.astype(np.float32),),
        **NOT_ON_CPU,
    ),
]


CASES = [
    *SAME_MATMUL,
    *PARTS_MATMUL,
]
