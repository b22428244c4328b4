"""Cases of DynamicQuantizeMatMul and MatMulIntegerToFloat."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.op_cases import Array, f32, ints, ms, no, of

BYTES = {np.int8: (-100, 100), np.uint8: (0, 255)}


def weights(dtype: Any, *shape: int) -> Array:
    """8-bit weights over most of their range."""
    low, high = BYTES[dtype]
    return ints(dtype, *shape, low=low, high=high)


QUANTIZED_QUANTIZE = [
    ms("DynamicQuantizeMatMul", f32(2, 3, 5), weights(np.int8, 5, 4), of(0.1)),
    ms(
        "DynamicQuantizeMatMul",
        f32(3, 5),
        weights(np.uint8, 5, 4),
        np.abs(f32(4)),
        ints(np.uint8, 4, low=100, high=130),
        f32(4),
    ),
    ms("DynamicQuantizeMatMul", np.zeros((3, 5), np.float32), weights(np.int8, 5, 4), of(0.1)),
    ms("DynamicQuantizeMatMul", np.abs(f32(3, 5)) + 2, weights(np.int8, 5, 4), of([0.1])),
    ms(
        "MatMulIntegerToFloat",
        weights(np.uint8, 3, 5),
        weights(np.int8, 5, 4),
        of(0.1),
        np.abs(f32(4)),
        of(120, np.uint8),
        ints(np.int8, 4),
        f32(4),
    ),
    ms("MatMulIntegerToFloat", weights(np.int8, 2, 3, 5), weights(np.int8, 5, 4), of(0.1), of(0.2)),
    no("DynamicQuantizeMatMul", f32(3, 5), weights(np.int8, 4, 4), of(0.1), match="inner dim"),
    no("DynamicQuantizeMatMul", f32(3, 5), weights(np.int8, 5, 4), f32(3), match="columns of B"),
]


CASES = [
    *QUANTIZED_QUANTIZE,
]
