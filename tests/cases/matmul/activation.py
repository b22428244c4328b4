"""Cases of FusedMatMulActivation."""

from __future__ import annotations

from typing import Any

from tests.op_cases import f32, ms, no

NOT_ON_CPU: dict[str, Any] = {"oracle": "none", "why": "onnxruntime has it on other devices only"}


A, B = f32(2, 3, 5), f32(5, 4)


FUSED_MATMUL = [
    ms("FusedMatMulActivation", A, B, activation="Relu", alpha=0.5, ulps=16, **NOT_ON_CPU),
    ms(
        "FusedMatMulActivation",
        *(A, f32(4, 5)),
        activation="LeakyRelu",
        activation_alpha=0.2,
        transB=1,
        ulps=16,
        **NOT_ON_CPU,
    ),
    ms(
        "FusedMatMulActivation",
        *(f32(3, 2, 5), f32(2, 5, 4)),
        activation="Tanh",
        transBatchA=1,
        ulps=16,
        **NOT_ON_CPU,
    ),
    no("FusedMatMulActivation", A, B, activation="Cube", match="Cube"),
]


CASES = [
    *FUSED_MATMUL,
]
