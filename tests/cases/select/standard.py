"""Cases of NonZero, TopK and Unique."""

from __future__ import annotations

import numpy as np

from tests.op_cases import bf16, bools, case, f16, f32, f64, fails, i64, ints, of


def k(count: int) -> np.ndarray:
    return of([count], np.int64)


TIES = of([[3, 1, 3, 2], [0, 0, 0, 0]])
WORDS = of(["b", "a", "b", "", "c"], object)

SPECIAL = of([[1, np.nan, -np.inf, 3, np.nan, 0.0, -0.0, np.inf]])

CASES = [
    *(case("TopK", f32(3, n), k(min(n, 7)), outputs=2, largest=largest)
      for n in (1, 15, 33, 64, 200, 1009) for largest in (0, 1)),
    *(case("TopK", f32(3, 40, 5), k(9), outputs=2, axis=1, largest=x) for x in (0, 1)),
    *(case("TopK", ints(t, 2, 100, high=120), k(50), outputs=2, oracle="onnx", largest=largest)
      for t in (np.int8, np.uint8, np.int16, np.uint16, np.uint32, np.uint64)
      for largest in (0, 1)),
    *(case("TopK", x, k(60), outputs=2) for x in (f64(2, 100), i64(2, 100))),
    *(case("TopK", SPECIAL, k(8), outputs=2, oracle="none", largest=largest,
           why="oracles leave NaN where it is") for largest in (0, 1)),
    case("TopK", f32(3, 7), k(3), outputs=2),
    *(
        case("TopK", ints(t, 2, 300, high=9), k(300), outputs=2, oracle="onnx", largest=largest)
        for t in (np.int64, np.uint8)
        for largest in (0, 1)
    ),
    *(case("TopK", x, k(290), outputs=2) for x in (f64(2, 300), f32(300, 3).T.copy())),
    case("TopK", f32(3, 7), k(2), axis=0, largest=0, outputs=2),
    case("TopK", TIES, k(3), outputs=2),
    case("TopK", TIES, k(4), largest=0, outputs=2),
    case("TopK", f32(3, 7), k(0), outputs=2),
    case("TopK", ints(np.int32, 2, 5), k(5), axis=-1, outputs=2),
    case("TopK", ints(np.uint8, 9), k(4), outputs=2, oracle="onnx"),
    case("TopK", f16(9), k(2), outputs=2),
    case("TopK", bf16(9), k(2), outputs=2, oracle="onnx"),
    case("TopK", f32(2, 5), k(2), outputs=2, opset=10),
    case("TopK", f32(2, 5), attrs={"k": 3}, axis=1, outputs=2, opset=9),
    fails("TopK", f32(2, 5), k(6), outputs=2, match="K is"),
    fails("TopK", f32(2, 5), k(-1), outputs=2, match="K is|negative"),
    case("NonZero", of([[1, 0], [0, 2]])),
    case("NonZero", bools(2, 3, 4)),
    case("NonZero", ints(np.uint8, 3, 17, high=2, low=0)),
    case("NonZero", ints(np.int32, 5, 1, 7, high=2, low=-1)),
    case("NonZero", f64(3, 3)),
    case("NonZero", i64(0, 3)),
    case("NonZero", of([np.nan, 0.0, -0.0, np.inf]), opset=9),
    case("NonZero", of(5.0), oracle="none", expect=(np.zeros((0, 1), np.int64),),
         why="onnxruntime gives a scalar one row, the definition none"),
    case("Unique", of([2, 1, 1, 3, 4, 3]), outputs=4),
    case("Unique", of([2, 1, 1, 3, 4, 3]), sorted=0, outputs=4),
    case("Unique", of([[1, 0, 0], [1, 0, 0], [2, 3, 4]]), axis=0, outputs=4),
    case("Unique", of([[1, 0, 1], [1, 0, 1]], np.int64), axis=-1, sorted=0, outputs=4),
    case("Unique", WORDS, outputs=4, oracle="onnx"),
    case("Unique", WORDS, sorted=0, outputs=4, oracle="none",
         expect=(of(["b", "a", "", "c"], object), of([0, 1, 3, 4], np.int64),
                 of([0, 1, 0, 2, 3], np.int64), of([2, 1, 1, 1], np.int64)),
         why="no oracle keeps the order of strings"),
    case("Unique", f64(0), oracle="none", outputs=4, why="oracles differ on nothing",
         expect=(f64(0), *[np.empty(0, np.int64)] * 3)),
    case("Unique", bf16(6), outputs=2, oracle="onnx"),
    fails("Unique", f32(3), axis=1, match="axis 1 is outside"),
]  # fmt: skip
