"""Rows for the quantized ops of com.microsoft.

Scales are powers of two, so that sums are exact, and zero points of results even: onnxruntime
rounds some results before it adds the zero point and some after, which is the same but for a half
and an odd zero point. tests/test_qlinear.py has scales and zero points of any kind.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.rows import Array, Row, case, fails

DOMAIN = "com.microsoft"


LIMITS = {np.uint8: (0, 256), np.int8: (-128, 128)}


def ms(op: str, *inputs: Any, **options: Any) -> Row:
    """A row of this domain."""
    return case(op, *inputs, domain=DOMAIN, **options)


def no(op: str, *inputs: Any, match: str, **options: Any) -> Row:
    """A row of this domain that is refused."""
    return fails(op, *inputs, domain=DOMAIN, match=match, **options)


def steps(dtype: Any, *shape: int) -> Array:
    """Bytes over their whole range."""
    low, high = LIMITS[dtype]
    rng = np.random.default_rng(sum(shape) * 13 + len(shape))
    return rng.integers(low, high, shape).astype(dtype)


IMAGE, IMAGE_NHWC = steps(np.uint8, 2, 3, 6, 8), steps(np.uint8, 2, 6, 8, 3)


POOL_POOLING = [
    *(
        ms("NhwcMaxPool", x, kernel_shape=[3, 2], pads=[1, 0, 1, 1], strides=[2, 1])
        for x in (IMAGE_NHWC, IMAGE_NHWC.view(np.int8))
    ),
    ms("NhwcMaxPool", IMAGE_NHWC, kernel_shape=[2, 2], dilations=[2, 3], ceil_mode=1),
    ms("NhwcMaxPool", IMAGE_NHWC[0], kernel_shape=[2], auto_pad="SAME_UPPER"),
    no("NhwcMaxPool", IMAGE_NHWC[0], kernel_shape=[2, 2], match="kernel_shape"),
    no("NhwcMaxPool", IMAGE_NHWC[0, 0], kernel_shape=[], match="rank 2"),
]


A, B = steps(np.uint8, 5, 8), steps(np.int8, 8, 4)


CASES = [
    *POOL_POOLING,
]
