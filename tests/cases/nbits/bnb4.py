"""Cases of MatMulBnb4.

Scales are powers of two, so that sums are exact, and zero points of results even: onnxruntime
rounds some results before it adds the zero point and some after, which is the same but for a half
and an odd zero point. tests/test_qlinear.py has scales and zero points of any kind.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.op_cases import Case, codes, f32, ms, no


def bnb4(rows: tuple[int, ...], k: int, n: int, block: int = 16, **options: Any) -> Case:
    """A product with weights of a table."""
    size = k if options.get("transB", 1) else n
    dtype = options.pop("dtype", np.float32)
    return ms(
        "MatMulBnb4", f32(*rows, size).astype(dtype), codes(np.uint8, (n * k + 1) // 2),
        np.abs(f32(-(-n * k // block))).astype(dtype), K=k, N=n, block_size=block,
        **{"quant_type": 1, "ulps": 32, **options},
    )  # fmt: skip


BNB = [
    bnb4((3,), 16, 5),
    bnb4((2, 3), 64, 32, block=64, quant_type=0),
    bnb4((), 33, 7),
    bnb4((4,), 32, 12, transB=0, oracle="none",
         why="onnxruntime reads transposed weights all the same, and past their end"),
    bnb4((0,), 16, 4),
    bnb4((3,), 48, 20, dtype=np.float16),
    no("MatMulBnb4", f32(2, 8), codes(np.uint8, 8), f32(1), K=8, N=2, block_size=16, quant_type=2,
       match="quant_type must be .*got 2"),
    no("MatMulBnb4", f32(2, 8), codes(np.uint8, 7), f32(1), K=8, N=2, block_size=16, quant_type=1,
       match="B must have shape"),
    no("MatMulBnb4", f32(2, 8), codes(np.uint8, 8), f32(1), K=8, N=2, block_size=15, quant_type=1,
       match="power of two"),
    no("MatMulBnb4", f32(2, 7), codes(np.uint8, 8), f32(1), K=8, N=2, block_size=16, quant_type=1,
       match="last dim of A"),
]  # fmt: skip


CASES = [
    *BNB,
]
