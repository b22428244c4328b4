"""Cases of Softmax, LogSoftmax and Hardmax."""

from __future__ import annotations

import numpy as np

from tests.op_cases import bf16, case, f16, f32, f64, fails, of

inf, nan = np.inf, np.nan
NAMES = ("Softmax", "LogSoftmax", "Hardmax")

LENGTHS = (1, 2, 15, 16, 17, 33, 63, 64, 65, 127, 128, 129, 1009, 5000)
EDGES = of([[-inf, -inf], [inf, 0.0], [nan, 1.0], [-inf, 0.0], [1e38, -1e38]])

CASES = [
    *(case(op, f32(3, n)) for op in ("Softmax", "LogSoftmax") for n in LENGTHS),
    *(case(op, f32(2, n, 3), axis=1) for op in ("Softmax", "LogSoftmax") for n in (1, 17, 300)),
    *(case(op, f32(2, 3, n), axis=1) for op in NAMES for n in LENGTHS[:-1]),
    *(case(op, t(2, 3, 70), axis=axis, oracle="none", why="oracles round each step")
      for op in NAMES for t in (f16, bf16, f64) for axis in (1, 2)),
    *(case(op, x, axis=a, oracle="none", why="oracles go through the logarithm of 0")
      for op in ("Softmax", "LogSoftmax") for a in (0, 1)
      for x in (EDGES, np.pad(EDGES, ((0, 0), (0, 200)), constant_values=-inf))),
    case("Hardmax", EDGES, axis=0, oracle="onnx"),
    case("Softmax", f32(1, 3000) * 30),
    *(case(op, f32(2, 3, 7), axis=axis) for op in NAMES for axis in (-1, 0, 1, -2)),
    *(case(op, x) for op in NAMES for x in (f32(5), f32(1, 1), f64(3, 4), f32(4, 0), f32(0, 4))),
    *(case(op, f16(3, 9)) for op in NAMES),
    *(case(op, bf16(2, 5), oracle="onnx") for op in NAMES),
    case("Softmax", of([[1000.0, 0.0, -1000.0], [-inf, 0.0, 80.0]])),
    case("LogSoftmax", of([[1000.0, 0.0, -1000.0], [-90.0, 0.0, 80.0]])),
    case("Softmax", of([[1.0, nan, 2.0]]), expect=(of([[nan, nan, nan]]),)),
    case("Softmax", of([[nan, 3e9, -3e9, 2.0, 1.0]]), expect=(of([[nan] * 5]),)),
    case("Hardmax", of([[3.0, 1.0, 3.0], [0.0, 0.0, 0.0]])),
    case("Hardmax", of([[3, 1, 3], [0, 0, 0]], np.float64), axis=0),
    *(case(op, f32(2, 3, 4), opset=v) for op in NAMES for v in (1, 11)),
    *(case(op, f32(2, 3, 4), opset=11, axis=axis) for op in NAMES for axis in (0, 2, -1, -2)),
    case("Softmax", f32(2, 3), opset=8),
    case("Softmax", f32(2, 0, 3), opset=11, expect=(f32(2, 0, 3),)),
    fails("Softmax", f32(2, 3), axis=2, match=r"axis 2 is outside \[-2, 2\)"),
    fails("Hardmax", f32(), match="axis -1 is outside"),
]  # fmt: skip
