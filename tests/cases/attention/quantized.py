"""Cases of QAttention.

Scales are powers of two, so that sums are exact, and zero points of results even: onnxruntime
rounds some results before it adds the zero point and some after, which is the same but for a half
and an odd zero point. tests/test_qlinear.py has scales and zero points of any kind.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.op_cases import Case, codes, f32, ms, no, of, zero

TOKENS, WEIGHT = codes(np.uint8, 2, 3, 8), codes(np.int8, 8, 24)


def attend(mask: Any = None, past: Any = None, **options: Any) -> Case:
    """Attention of 2 heads, 4 wide, over 2 sequences of 3 tokens."""
    scale, point = options.pop("weight", (of(2.0**-9), zero(0, np.int8)))
    return ms(
        "QAttention", options.pop("x", TOKENS), options.pop("w", WEIGHT), f32(24), of(2.0**-6),
        scale, None if mask is None else of(mask, np.int32), options.pop("zero", zero(120)), point,
        past, num_heads=2, ulps=32, **options,
    )  # fmt: skip


TRANSFORMERS_ATTENTION = [
    attend(),
    attend([2, 3]),
    attend([[1, 1, 0], [1, 1, 1]]),
    attend([2, 3, 1, 0]),
    attend(np.tril(np.ones((2, 3, 3)))),
    attend(unidirectional=1),
    attend(do_rotary=1),
    attend(past_present_share_buffer=1),
    attend(scale=0.3, mask_filter_value=-500.0, mask=[[1, 0, 1], [1, 1, 0]]),
    attend(past=f32(2, 2, 2, 4, 4), outputs=2),
    attend(past=f32(2, 2, 2, 4, 4), unidirectional=1, outputs=2),
    attend(outputs=2),
    attend(zero=None, weight=(of(2.0**-9), None)),
    attend(weight=(np.full(24, 2.0**-9, np.float32), np.zeros(24, np.int8))),
    attend(w=codes(np.uint8, 8, 24), weight=(of(2.0**-9), zero(120))),
    no("QAttention", TOKENS, WEIGHT, f32(24), of(1), f32(3), num_heads=2, match="columns"),
    no("QAttention", TOKENS, WEIGHT, f32(23), of(1), of(1), num_heads=2, match="bias"),
    no("QAttention", TOKENS, WEIGHT, f32(24), of(1), of(1), num_heads=5, match="heads"),
    no("QAttention", TOKENS, WEIGHT[:4], f32(24), of(1), of(1), num_heads=2, match="fit the inp"),
]


CASES = [
    *TRANSFORMERS_ATTENTION,
]
