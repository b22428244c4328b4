"""Cases of integer ops that are upgraded when loaded: com.microsoft, old experiments."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tests.op_cases import f32, ints, ms, of

NOT_ON_CPU: dict[str, Any] = {"why": "onnxruntime has it on other devices only"}


SHORTS = ints(np.int16, 3, 5, low=-3000, high=3000), ints(np.int16, 5, 4, low=-3000, high=3000)


BYTES = ints(np.uint8, 2, 3, high=200), ints(np.uint8, 3, high=200)


F8 = ml_dtypes.float8_e4m3fn
E4M3 = [f32(*shape).astype(F8) for shape in ((3, 5), (5, 4))]
_PRODUCT = 0.5 * 0.25 * (E4M3[0].astype(np.float64) @ E4M3[1].astype(np.float64)) / 0.125


FUSED_QUANTIZE = [
    ms(
        "QLinearMatMul",
        *(E4M3[0], of(0.5), of(0, F8), E4M3[1], of(0.25), of(0, F8), of(0.125), of(0, F8)),
        expect=(_PRODUCT.astype(F8),),
        why="onnxruntime writes it and has no kernel",
    ),
    ms("MatMulInteger16", *SHORTS),
    ms(
        "MulInteger",
        *(BYTES[0], of(7, np.uint8), BYTES[1]),
        expect=((BYTES[0].astype(np.int32) - 7) * BYTES[1],),
        **NOT_ON_CPU,
    ),
    ms(
        "ReduceSumInteger",
        BYTES[0],
        axes=[1],
        keepdims=0,
        expect=(BYTES[0].sum(1, dtype=np.int32),),
        **NOT_ON_CPU,
    ),
]


CASES = [
    *FUSED_QUANTIZE,
]
