"""Cases of DynamicQuantizeLSTM."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.op_cases import Array, Case, f32, ints, ms, of

BYTES = {np.int8: (-100, 100), np.uint8: (0, 255)}


def weights(dtype: Any, *shape: int) -> Array:
    """8-bit weights over most of their range."""
    low, high = BYTES[dtype]
    return ints(dtype, *shape, low=low, high=high)


def lstm(dtype: Any, *, batch: int = 3, per_column: bool = False, **options: Any) -> Case:
    """A quantized LSTM of 4 inputs and 6 cells."""
    n = 2 if options.get("direction") == "bidirectional" else 1
    lens = options.pop("lens", None)
    shape = (n, 24) if per_column else (n,)
    zero = np.zeros(shape, dtype) if per_column else ints(dtype, *shape, low=0, high=3)
    state = f32(n, batch, 6)
    return ms(
        "DynamicQuantizeLSTM",
        f32(5, batch, 4),
        weights(dtype, n, 4, 24),
        weights(dtype, n, 6, 24),
        f32(n, 48),
        None if lens is None else of(lens, np.int32),
        state,
        state * np.float32(0.5),
        f32(n, 18) if options.pop("peepholes", False) else None,
        np.full(shape, 0.01, np.float32),
        zero,
        np.full(shape, 0.008, np.float32),
        zero,
        hidden_size=6,
        outputs=3,
        ulps=64,
        why="a step of the quantizer may fall either way",
        **options,
    )


QUANTIZED_RECURRENT = [
    lstm(np.int8),
    lstm(np.uint8, batch=1),
    lstm(np.int8, direction="bidirectional"),
    lstm(np.int8, direction="reverse", per_column=True),
    lstm(np.int8, batch=1, peepholes=True, clip=0.5),
    lstm(np.int8, batch=1, input_forget=1),
    lstm(np.int8, batch=1, lens=[3]),
]


CASES = [
    *QUANTIZED_RECURRENT,
]
