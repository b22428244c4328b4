"""Cases of NhwcMaxPool.

Scales are powers of two, so that sums are exact, and zero points of results even: onnxruntime
rounds some results before it adds the zero point and some after, which is the same but for a half
and an odd zero point. tests/test_qlinear.py has scales and zero points of any kind.
"""

from __future__ import annotations

import numpy as np

from tests.op_cases import codes, ms, no

IMAGE, IMAGE_NHWC = codes(np.uint8, 2, 3, 6, 8), codes(np.uint8, 2, 6, 8, 3)


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


CASES = [
    *POOL_POOLING,
]
