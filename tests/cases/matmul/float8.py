"""Cases of GemmFloat8."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto as T

from tests.op_cases import case, f16, f32, fails, of

MS = {"domain": "com.microsoft"}


E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2


def gemm8(a: Any, b: Any, *rest: Any, **options: Any) -> Any:
    return case("GemmFloat8", a, b, *rest, **MS, **options)


A, B = f32(3, 4), f32(4, 5)


A8, B8 = A.astype(E4M3), B.astype(E5M2)


PRODUCT = A8.astype(np.float32) @ B8.astype(np.float32)


OF_MATMUL = [
    gemm8(A8, B8, None, of([2.0]), of([0.5]), expect=(PRODUCT,)),
    gemm8(A8.T.copy(), B8.T.copy(), transA=1, transB=1, alpha=2.0, expect=(2 * PRODUCT,)),
    gemm8(A, B, f32(5), beta=0.5, activation="RELU", expect=(np.maximum(A @ B + f32(5) / 2, 0),)),
    gemm8(A8, B8, dtype=T.FLOAT8E4M3FN, expect=(PRODUCT.astype(E4M3),)),
    gemm8(
        f16(2, 3),
        f16(3, 2),
        dtype=T.FLOAT16,
        expect=((f16(2, 3).astype("f") @ f16(3, 2).astype("f")).astype(np.float16),),
    ),
    fails("GemmFloat8", A, B, activation="TANH", match="NONE, RELU or GELU", **MS),
    fails("GemmFloat8", A, B, dtype=7, match="float type of 8 to 32 bits", **MS),
]


CASES = [
    *OF_MATMUL,
]
