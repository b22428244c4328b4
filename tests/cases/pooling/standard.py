"""Cases of the pools."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tests.op_cases import bf16, case, f16, f32, f64, fails, ints, of

inf, nan = np.inf, np.nan
X = f32(2, 3, 9, 8)
AUTO = ("SAME_UPPER", "SAME_LOWER", "VALID")
GEOMETRY = (
    {"kernel_shape": [3, 2]},
    {"kernel_shape": [3, 3], "pads": [1, 2, 0, 1], "strides": [2, 3]},
    {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2], "ceil_mode": 1},
    {"kernel_shape": [2, 2], "strides": [3, 3], "ceil_mode": 1},
    {"kernel_shape": [12, 12], "strides": [12, 12], "ceil_mode": 1},
    {"kernel_shape": [2, 3], "dilations": [3, 2], "strides": [2, 1]},
    *({"kernel_shape": [3, 3], "strides": [2, 3], "auto_pad": a} for a in AUTO),
)  # fmt: skip
POOLED, PLACES = of([[[[1, 2], [3, 4]]]]), of([[[[5, 7], [13, 15]]]], np.int64)
SPREAD = np.zeros((1, 1, 4, 4), np.float32)
SPREAD[0, 0, 1::2, 1::2] = [[1, 2], [3, 4]]
WIDE = np.zeros((1, 1, 5, 5), np.float32)
WIDE[:, :, :4, :4] = SPREAD

MAX = [
    *(case("MaxPool", X, outputs=2, **g) for g in GEOMETRY),
    *(case("MaxPool", np.round(X), outputs=2, storage_order=1, **g) for g in GEOMETRY[:3]),
    case("MaxPool", f32(1, 2, 9), kernel_shape=[4], strides=[3], ceil_mode=1),
    case("MaxPool", f32(1, 2, 5, 6, 7), kernel_shape=[2, 2, 3], strides=[2, 1, 2], outputs=2),
    case("MaxPool", ints(np.int8, 1, 2, 6, 6), kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    case("MaxPool", ints(np.uint8, 1, 2, 6, 6), kernel_shape=[2, 3], strides=[2, 2]),
    case("MaxPool", f64(1, 2, 5), kernel_shape=[2]),
    case("MaxPool", f16(1, 2, 5), kernel_shape=[2]),
    case("MaxPool", bf16(1, 2, 5), kernel_shape=[2], oracle="none", why="no oracle has bfloat16"),
    case("MaxPool", f32(0, 3, 9, 8), kernel_shape=[3, 3], outputs=2),
    case("MaxPool", of([[[-inf, -inf, 1, nan, 2, 2]]]), kernel_shape=[2], outputs=2, strides=[1],
         pads=[1, 0], expect=(of([[[-inf, -inf, 1, nan, nan, 2]]]),
                              of([[[0, 0, 2, 3, 3, 4]]], np.int64)),
         why="onnxruntime loses NaN"),
    *(case("MaxPool", X, opset=v, **GEOMETRY[1]) for v in (1, 8, 10, 12)),
    fails("MaxPool", X, kernel_shape=[3], match=r"kernel_shape \(3,\) does not fit.*rank 4"),
    fails("MaxPool", X, kernel_shape=[10, 2], match="kernel does not fit.*: 9 is less than 10"),
    fails("MaxPool", X, kernel_shape=[0, 2], match="outside"),
    fails("MaxPool", X, kernel_shape=[1 << 40, 2], match="outside"),
]  # fmt: skip

AVERAGE = [
    *(case("AveragePool", X, ulps=16, count_include_pad=c, **g) for g in GEOMETRY for c in (0, 1)),
    case("AveragePool", f32(1, 1, 4), kernel_shape=[2], strides=[3], pads=[0, 1], ceil_mode=1),
    case("AveragePool", f32(1, 2, 9), kernel_shape=[9], ulps=16),
    case("AveragePool", f32(1, 2, 5, 6, 7), kernel_shape=[2, 2, 3], pads=[1, 0, 1, 0, 1, 1],
         ulps=16),
    case("AveragePool", f64(1, 2, 5), kernel_shape=[2]),
    case("AveragePool", f16(1, 2, 5), kernel_shape=[2], oracle="onnx"),
    *(case("AveragePool", X, opset=v, **GEOMETRY[1]) for v in (7, 10, 11, 19)),
    case("AveragePool", np.ones((1, 2, 4), np.float32), opset=1, kernel_shape=[3], pads=[1, 1],
         expect=(np.ones((1, 2, 4), np.float32),)),
]  # fmt: skip

NORM = [
    *(case("LpPool", X, p=p, ulps=32, **GEOMETRY[1]) for p in (1, 2, 3)),
    *(case("LpPool", X, ulps=32, **g) for g in GEOMETRY),
    case("LpPool", X, opset=1, kernel_shape=[3, 2], p=2.0, ulps=16, oracle="none",
         why="onnxruntime begins at version 2"),
    case("LpPool", of([[[1, 2, 3]]]), opset=1, kernel_shape=[2], p=1.5, ulps=16,
         expect=(of([[[(1 + 2**1.5) ** (2 / 3), (2**1.5 + 3**1.5) ** (2 / 3)]]]),)),
    case("LpPool", X, opset=2, kernel_shape=[3, 2], ulps=16),
    fails("LpPool", X, kernel_shape=[3, 2], p=0, match="p must be .*got 0"),
    *(case("GlobalLpPool", X, p=p, opset=2, ulps=32) for p in (1, 2, 3)),
    case("GlobalLpPool", f32(2, 3, 5), oracle="none", why="onnx has no reference for it"),
    *(case("GlobalLpPool", of([[[60, 80, 100]]], t), p=3, expect=(of([[[120]]], t),))
      for t in (np.float16, ml_dtypes.bfloat16)),
    case("GlobalLpPool", of([[[1, 2]]]), opset=1, p=1.5, ulps=16,
         expect=(of([[[(1 + 2**1.5) ** (2 / 3)]]]),)),
]  # fmt: skip

WHOLE = [
    *(case(op, x, ulps=16) for op in ("GlobalMaxPool", "GlobalAveragePool")
      for x in (X, f32(2, 3, 7), f32(2, 3, 4, 5, 6), f32(0, 3, 2))),
    case("GlobalMaxPool", f64(1, 2, 3), expect=(f64(1, 2, 3).max(axis=2, keepdims=True),)),
    case("GlobalAveragePool", f64(1, 2, 3), expect=(f64(1, 2, 3).mean(axis=2, keepdims=True),)),
    case("GlobalMaxPool", of([[[1, nan, 2]]]), expect=(of([[[nan]]]),)),
    case("GlobalAveragePool", f16(1, 2, 300), oracle="onnx", ulps=2),
    case("GlobalAveragePool", X, opset=1, ulps=16),
    fails("GlobalAveragePool", f32(3), match="rank 1"),
]  # fmt: skip

UNPOOL = [
    case("MaxUnpool", POOLED, PLACES, kernel_shape=[2, 2], strides=[2, 2], expect=(SPREAD,)),
    case("MaxUnpool", POOLED, PLACES, of([1, 1, 5, 5], np.int64), kernel_shape=[2, 2],
         strides=[2, 2], expect=(WIDE,)),
    case("MaxUnpool", POOLED, PLACES, opset=9, kernel_shape=[2, 2], strides=[2, 2]),
    fails("MaxUnpool", POOLED, PLACES + 1, kernel_shape=[2, 2], strides=[2, 2],
          match="6 to 16|index 16"),
    fails("MaxUnpool", POOLED, PLACES, of([1, 1, 3, 4], np.int64), kernel_shape=[2, 2],
          strides=[2, 2], match="too small|below"),
    fails("MaxUnpool", POOLED, PLACES, of([1, 1, 1 << 50, 4], np.int64), kernel_shape=[2, 2],
          strides=[2, 2], match="over"),
]  # fmt: skip

CASES = [*MAX, *AVERAGE, *NORM, *WHOLE, *UNPOOL]
