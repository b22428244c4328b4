"""Rows for the ops on shapes."""

from __future__ import annotations

import numpy as np
from onnx import numpy_helper

from tests.rows import bf16, bools, case, f16, f32, fails, i64, of


def sizes(*numbers: int) -> np.ndarray:
    return of(numbers, np.int64)


def filler(value: float, dtype: object) -> object:
    return numpy_helper.from_array(np.array([value], dtype))


CASES = [
    case("Shape", f32(2, 3, 5)),
    case("Shape", f32()),
    case("Shape", i64(4, 0, 2), start=1),
    case("Shape", f32(2, 3, 5), start=-2, end=-1),
    case("Shape", f32(2, 3, 5), start=-9, end=9),
    case("Shape", f32(2, 3, 5), start=2, end=1),
    case("Shape", f16(2, 3), opset=13),
    case("Size", f32(2, 3, 5)),
    case("Size", f32()),
    case("Size", f32(3, 0)),
    case("Reshape", f32(2, 3, 4), sizes(4, 6)),
    case("Reshape", f32(2, 3, 4), sizes(0, -1)),
    case("Reshape", f32(2, 3, 4), sizes(-1, 0, 2, 2)),
    case("Reshape", f32(2, 3, 4), sizes(-1)),
    case("Reshape", f32(1), sizes()),
    case("Reshape", f32(), sizes(1, 1)),
    case("Reshape", f32(0, 3), sizes(3, 0), allowzero=1),
    case("Reshape", f32(0, 3, 4), sizes(0, -1), expect=(np.zeros((0, 12), np.float32),)),
    case("Reshape", bf16(2, 6), sizes(3, 4), oracle="onnx"),
    case("Reshape", f32(2, 3, 4), attrs={"shape": [0, -1]}, opset=4, oracle="none",
         expect=(f32(2, 3, 4).reshape(2, 12),), why="no oracle runs opset 4"),
    fails("Reshape", f32(2, 3), sizes(4, 2), match=r"into \(4, 2\), elements: 6 and 8"),
    fails("Reshape", f32(2, 3), sizes(-1, -1), match="more than one size open"),
    fails("Reshape", f32(2, 3), sizes(4, -1), match="4 does not divide 6"),
    fails("Reshape", f32(2, 3), sizes(2, 3, 0), match="the 0 at 2 copies"),
    fails("Reshape", f32(0, 3), sizes(0, -1), allowzero=1, match="allowzero"),
    fails("Reshape", f32(2, 3), sizes(-2, 3), match="negative"),
    case("Flatten", f32(2, 3, 4)),
    case("Flatten", f32(2, 3, 4), axis=0),
    case("Flatten", f32(2, 3, 4), axis=3),
    case("Flatten", f32(2, 3, 4), axis=-1),
    case("Flatten", f32(2, 0, 4), axis=2),
    case("Flatten", f32(2, 3), opset=8),
    fails("Flatten", f32(2, 3), axis=3, match=r"axis 3 is outside \[-2, 2\]"),
    case("Squeeze", f32(1, 3, 1, 2)),
    case("Squeeze", f32(1, 3, 1, 2), sizes(2)),
    case("Squeeze", f32(1, 3, 1, 2), sizes(-4, 2)),
    case("Squeeze", f32(1, 3, 1), attrs={"axes": [0]}, opset=11),
    case("Squeeze", f32(1, 3, 1), opset=11),
    fails("Squeeze", f32(1, 3), sizes(1), match="dim 1 is squeezed and is"),
    fails("Squeeze", f32(1, 3), sizes(2), match=r"axis 2 is outside \[-2, 2\)"),
    case("Unsqueeze", f32(3, 2), sizes(0, 3)),
    case("Unsqueeze", f32(3, 2), sizes(-1)),
    case("Unsqueeze", f32(), sizes(1, 0)),
    case("Unsqueeze", f32(3, 2), attrs={"axes": [2, 0]}, opset=11),
    fails("Unsqueeze", f32(3), sizes(0, 0), match="twice"),
    case("Identity", f32(2, 3)),
    case("Identity", of(["a", "b"], object)),
    case("Identity", i64(0)),
    case("Expand", f32(3, 1), sizes(2, 3, 4)),
    case("Expand", f32(3, 4), sizes(1, 1)),
    case("Expand", f32(1), sizes(0, 3)),
    case("Expand", f32(), sizes(2, 2)),
    case("Expand", bools(2, 1), sizes(5), opset=8),
    fails("Expand", f32(3), sizes(4), match="3 and 4|does not expand|neither 1 nor 4"),
    fails("Expand", f32(1), sizes(-3), match="negative"),
    case("ConstantOfShape", sizes(2, 3)),
    case("ConstantOfShape", sizes(2, 0), attrs={"value": filler(7, np.int32)}),
    case("ConstantOfShape", sizes(), attrs={"value": filler(1.5, np.float64)}),
    case("ConstantOfShape", sizes(3), attrs={"value": filler(1, np.bool_)}, opset=9),
    fails("ConstantOfShape", sizes(2, -1), match="negative"),
    fails("ConstantOfShape", sizes(2**40, 2**40), match="elements|bytes"),
    case("EyeLike", f32(3, 4)),
    case("EyeLike", i64(4, 3), k=-1),
    case("EyeLike", f32(3, 4), k=2, dtype=11),
    case("EyeLike", f32(2, 3), k=7, opset=9),
    fails("EyeLike", f32(3), match="rank 1"),
    fails("EyeLike", f32(2, 2), dtype=8, match="EyeLike cannot make"),
    case("Range", of(0, np.int64), of(7, np.int64), of(2, np.int64)),
    case("Range", of(5, np.int32), of(-5, np.int32), of(-3, np.int32)),
    case("Range", of(3, np.int16), of(3, np.int16), of(1, np.int16)),
    case("Range", of(0.5), of(2.6), of(0.25)),
    case("Range", of(0.0, np.float64), of(-1.0, np.float64), of(-0.3, np.float64)),
    case("Range", of(9, np.int64), of(2, np.int64), of(2, np.int64), opset=11),
    case("Range", of(0, np.float16), of(4096, np.float16), of(1, np.float16), oracle="none",
         expect=(np.arange(4096).astype(np.float16),), why="onnxruntime has no float16 Range"),
    fails("Range", of(0, np.int64), of(7, np.int64), of(0, np.int64), match="by 0"),
    fails("Range", of(0.0), of(np.inf), of(1.0), match="no end"),
]  # fmt: skip
