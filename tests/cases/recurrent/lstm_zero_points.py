"""Cases of DynamicQuantizeLSTM with zero points.

Scales are powers of two, so that sums are exact, and zero points of results even: onnxruntime
rounds some results before it adds the zero point and some after, which is the same but for a half
and an odd zero point. tests/test_qlinear.py has scales and zero points of any kind.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.op_cases import Case, codes, f32, no


def lstm(
    *, r: tuple[int, ...] = (1, 6, 24), columns: tuple[int, ...] = (1,), **options: Any
) -> Case:
    """A quantized LSTM of 4 inputs and 6 cells whose parts may not fit."""
    return no(
        "DynamicQuantizeLSTM", f32(5, 3, 4), codes(np.int8, 1, 4, 24), codes(np.int8, *r), None,
        None,
        None, None, None, np.ones(columns, np.float32), np.zeros(columns, np.int8),
        np.ones(1, np.float32), np.zeros(1, np.int8), outputs=3, **options,
    )  # fmt: skip


PRODUCTS_RECURRENT = [
    lstm(r=(1, 5, 24), match="R must have shape"),
    lstm(columns=(2,), match="a scale or zero point must have shape"),
    lstm(hidden_size=7, match="hidden_size is not that of R"),
    lstm(direction="bidirectional", match="must have shape"),
    lstm(activations=["Cube", "Tanh", "Tanh"], match="got cube"),
]


CASES = [
    *PRODUCTS_RECURRENT,
]
