"""Cases of the ops that gather and scatter."""

from __future__ import annotations

import numpy as np

from tests.op_cases import bf16, case, f16, f32, f64, fails, i64, ints, of

DATA = f32(3, 4, 5)
WORDS = of(["a", "b", "c"], object)


def at(values: object) -> np.ndarray:
    return of(values, np.int64)


CASES = [
    case("Gather", DATA, at([0, -1, 2])),
    case("Gather", DATA, at(1), axis=1),
    case("Gather", DATA, at([[0, 4], [-5, 3]]), axis=-1),
    *(case("Gather", ints(d, 3, 7, n), at([6, 0, -7, 3]), axis=1)
      for d in (np.uint8, np.int16, np.int32, np.int64) for n in (1, 3, 17)),
    case("Gather", f32(2, 3, 0), at([1]), axis=1),
    case("Gather", f32(2, 40_000), at([1, 0, 1])),
    case("Gather", DATA, at([]), axis=1),
    case("Gather", WORDS, of([2, 0], np.int32)),
    case("Gather", f16(4), at([3, 3]), opset=1),
    fails("Gather", DATA, at([0, 3]), match=r"index 3 .*is outside \[-3, 3\) of axis 0"),
    fails("Gather", DATA, at([-5]), axis=1, match=r"index -5 .*is outside \[-4, 4\)"),
    fails("Gather", DATA, at([0]), axis=3, match="axis 3 is outside"),
    case("GatherElements", f32(3, 4), at([[0, 1, 2, 0], [2, -1, 0, 1]])),
    case("GatherElements", f32(3, 4), at([[3], [0], [-2]]), axis=1),
    *(case("GatherElements", ints(d, 3, 4, 5), i64(2, 6, 5, low=-4, high=4), axis=1)
      for d in (np.uint8, np.int16, np.int32, np.int64)),
    case("GatherElements", f32(3, 4), of([[0, -3, 2]], np.int32)),
    case("GatherElements", f32(3, 4), i64(0, 4)),
    case("GatherElements", i64(2, 3), at([[1, 0]]), axis=-1, opset=11),
    fails("GatherElements", f32(2, 2), at([[2, 0]]), match=r"index 2 .*is outside \[-2, 2\)"),
    fails("GatherElements", f32(2, 2), at([0]), match="rank"),
    case("GatherND", DATA, at([[0, 1], [2, -1]])),
    case("GatherND", DATA, at([[[0]], [[2]]])),
    case("GatherND", DATA, at([[1, 2, 3]])),
    case("GatherND", DATA, at([[1], [0], [3]]), batch_dims=1),
    case("GatherND", ints(np.uint8, 3, 4, 17), i64(2, 3, 1, low=-3, high=3)),
    case("GatherND", f64(3, 2, 4, 5), i64(3, 2, 1, 1, low=-4, high=4), batch_dims=2),
    case("GatherND", f32(3, 4), i64(0, 2)),
    case("GatherND", f32(3, 4), i64(2, 0)),
    case("GatherND", f32(3, 4), i64(3, 2, 0), batch_dims=1),
    case("GatherND", f32(2, 2), at([[1, 0]]), opset=11),
    fails("GatherND", DATA, at([[0, 4]]), match=r"index 4 .*is outside \[-4, 4\) of axis 1"),
    fails("GatherND", f32(2), at([[0, 0]]), match="index tuples of 2"),
    fails("GatherND", DATA, at([[0]]), batch_dims=2, match="batch_dims 2"),
    case("ScatterElements", f32(3, 3), at([[1, 0, 2], [0, 2, -1]]), f32(2, 3)),
    case("ScatterElements", f32(1, 5), at([[1, 3]]), f32(1, 2), axis=1),
    *(
        case("ScatterElements", f32(1, 5), at([[1, 1, 4]]), f32(1, 3), axis=-1, reduction=r)
        for r in ("add", "mul", "max", "min")
    ),
    *(case("ScatterElements", ints(d, 3, 4, 5), i64(2, 6, 4, low=-4, high=4), ints(d, 2, 6, 4),
           axis=1, reduction=r)
      for d in (np.uint8, np.int32, np.int64) for r in ("add", "mul", "max", "min")),
    case("ScatterElements", of([np.nan, 1, 2]), at([0, 1, 2]), of([1, np.nan, 3]), reduction="max",
         oracle="none", expect=(of([np.nan, np.nan, 3]),), why="oracles differ on NaN"),
    case("ScatterElements", f64(5, 2), at([[4, 0]]), f64(1, 2)),
    case("ScatterElements", ints(np.int16, 4, 3), i64(0, 3), ints(np.int16, 0, 3)),
    case("ScatterElements", bf16(4), at([0, 0]), bf16(2), reduction="add", oracle="onnx"),
    case("ScatterElements", i64(4), at([0, 0]), i64(2), reduction="add", opset=16),
    case("ScatterElements", WORDS, at([1]), of(["z"], object), opset=11),
    fails("ScatterElements", f32(3), at([3]), f32(1), match=r"index 3 .*is outside \[-3, 3\)"),
    fails("ScatterElements", f32(3), at([0]), f32(2), match="1 and 2|2 and 1"),
    fails("ScatterElements", f32(3), at([0]), f32(1), reduction="mean", match="one of .*mean"),
    case("Scatter", f32(3, 3), at([[1, 0, 2], [0, 2, 1]]), f32(2, 3), opset=9),
    case("Scatter", f32(1, 5), at([[1, 3]]), f32(1, 2), axis=1, opset=10),
    case("ScatterND", f32(8), at([[4], [3], [1], [-1]]), f32(4)),
    case("ScatterND", DATA, at([[0], [2]]), f32(2, 4, 5)),
    case("ScatterND", DATA, at([[0, 1], [0, 1]]), f32(2, 5), reduction="add"),
    case("ScatterND", DATA, at([[0, 1], [0, 1]]), f32(2, 5), reduction="mul"),
    case("ScatterND", f32(3, 601), at([[2], [0], [2]]), f32(3, 601), reduction="add"),
    case("ScatterND", ints(np.uint8, 3, 4, 17), at([[2, -1], [0, 3]]), ints(np.uint8, 2, 17)),
    case("ScatterND", f32(3, 4), i64(0, 1), f32(0, 4)),
    case("ScatterND", f32(3, 4), i64(2, 0), f32(2, 3, 4)),
    case("ScatterND", f32(3, 4), i64(2, 0), f32(2, 3, 4), reduction="add"),
    case("ScatterND", f64(4), at([[1], [1]]), f64(2), reduction="max"),
    case("ScatterND", f64(4), at([[1], [1]]), f64(2), reduction="min"),
    case("ScatterND", i64(4), at([[1]]), i64(1), opset=11),
    fails("ScatterND", f32(4), at([[4]]), f32(1), match=r"index 4 .*is outside \[-4, 4\)"),
    fails("ScatterND", f32(4), at([[1]]), f32(2), match="updates"),
    case("TensorScatter", f32(2, 1, 4, 3), f32(2, 1, 2, 3), at([1, 2]), oracle="onnx"),
    case("TensorScatter", f32(2, 4, 3), f32(2, 3, 3), at([3, 1]), mode="circular", oracle="onnx"),
    case("TensorScatter", f32(2, 4, 3), f32(2, 2, 3), axis=1, oracle="onnx"),
    fails("TensorScatter", f32(2, 4, 3), f32(2, 2, 3), at([3, 1]), match="do not fit"),
    fails("TensorScatter", f32(2, 4), f32(2, 4), axis=0, match="axis 0"),
    case("OneHot", at([0, 2, -1, 5]), at(3), of([0.0, 1.0])),
    case("OneHot", at([[0, 2], [1, 1]]), at([3]), of([-1, 4], np.int64), axis=0),
    case("OneHot", at([[0, 2], [1, 1]]), at(3), of([0.0, 1.0]), axis=1),
    case("OneHot", of([[3, 16], [-17, 40]], np.int32), of(17, np.int32), of([2, 5], np.int32),
         axis=1, oracle="onnx"),
    case("OneHot", at([[]]), at(3), of([0.0, 1.0])),
    case("OneHot", of([0.0, 2.0]), of(3.0), of([0.0, 1.0]), opset=11),
    case("OneHot", of([0.0, 2.9]), of(3.0), of([0.0, 1.0]), oracle="none",
         expect=(of([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]),), why="onnxruntime rounds no index"),
    case("OneHot", at([-1, 1]), at(2), of([0.0, 1.0]), opset=9, oracle="none",
         expect=(of([[0.0, 0.0], [0.0, 1.0]]),), why="onnxruntime lets opset 9 wrap around"),
    fails("OneHot", at([0]), at(-2), of([0.0, 1.0]), match="negative"),
    case("Compress", f32(3, 2), of([False, True, True], bool), axis=0),
    case("Compress", f32(3, 2), of([True, False], bool), axis=-1),
    case("Compress", f32(3, 2), of([True, False, False, True], bool)),
    case("Compress", ints(np.uint8, 3, 7, 17), of([1, 0, 0, 1, 1], bool), axis=1),
    case("Compress", f64(3, 2), of([False] * 6, bool)),
    case("Compress", f32(3, 2), of([False], bool), axis=1, opset=9),
    fails("Compress", f32(3), of([True], bool), axis=1, match="axis 1 is outside"),
]  # fmt: skip
