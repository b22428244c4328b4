"""Cases of the random ops; test_random.py tests their distributions."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto as T

from tests.op_cases import bf16, case, f16, f32, f64, fails, i64, of

ONCE = "a draw has no expected values"
SURE, NEVER = of([1.0, 1.0, 1.0]), of([0.0, 0.0])
X, MASK = f32(2, 3), np.ones((2, 3), bool)


def some(op, *inputs, **options):  # type: ignore[no-untyped-def]
    return case(op, *inputs, oracle="none", why=ONCE, **options)


CASES = [
    *(some(op, shape=[2, 3]) for op in ("RandomNormal", "RandomUniform")),
    *(
        some(op, shape=[n], seed=1.5, dtype=t, ulps=16)
        for op in ("RandomNormal", "RandomUniform")
        for t in (T.FLOAT, T.DOUBLE, T.FLOAT16, T.BFLOAT16)
        for n in (4, 97, 2500)
    ),
    some("RandomNormal", shape=[65], seed=-2.0, mean=0.5, scale=2.0, ulps=64),
    some("RandomUniform", shape=[65], seed=0.5, low=-1.0, high=3.0, ulps=64),
    *(some(op, i64(1, 5), dtype=T.DOUBLE, seed=1.0, ulps=16)
      for op in ("RandomNormalLike", "RandomUniformLike")),
    *(some(op, shape=[2, 0]) for op in ("RandomNormal", "RandomUniform")),
    case("RandomNormal", shape=[3], mean=2.5, scale=0.0, expect=(of([2.5] * 3),)),
    case("RandomUniform", shape=[3], low=2.5, high=2.5, expect=(of([2.5] * 3),)),
    *(some(op, f16(2, 3)) for op in ("RandomNormalLike", "RandomUniformLike")),
    *(some(op, i64(2), dtype=T.DOUBLE) for op in ("RandomNormalLike", "RandomUniformLike")),
    some("RandomNormalLike", of(["a"], object), dtype=T.FLOAT),
    fails("RandomNormal", shape=[2, -1], match="negative size -1"),
    fails("RandomUniform", shape=[2], dtype=T.INT32, match="got i32"),
    fails("RandomNormal", shape=[2**31, 2**30, 2], match="cannot have the shape"),
    fails("RandomNormalLike", i64(2), match="got i64"),
    some("Bernoulli", np.abs(np.tanh(f32(2, 5)))),
    case("Bernoulli", SURE, expect=(SURE,)),
    case("Bernoulli", NEVER, dtype=T.BOOL, expect=(of([False, False], bool),)),
    case("Bernoulli", SURE.astype(np.float64), dtype=T.INT32, expect=(of([1, 1, 1], np.int32),)),
    *(some("Bernoulli", t(np.tile([0.25, 0.5, np.nan], 41)), dtype=out, seed=2.5)
      for t in (np.float32, np.float64, np.float16)
      for out in (T.FLOAT, T.DOUBLE, T.FLOAT16, T.BOOL, T.INT8, T.UINT64)),
    fails("Bernoulli", SURE, dtype=T.STRING, match="got str"),
    some("Multinomial", f32(3, 4), sample_size=5),
    some("Multinomial", f64(2, 4), sample_size=3, dtype=T.INT64, seed=2.0),
    case("Multinomial", of([[-np.inf, 0.0, -np.inf], [0.0, -np.inf, -np.inf]]), sample_size=2,
         expect=(of([[1, 1], [0, 0]], np.int32),)),
    some("Multinomial", f16(5, 37), sample_size=70, seed=2.0),
    some("Multinomial", f32(0, 4), seed=2.0),
    fails("Multinomial", of([[np.nan, 0.0]]), match="no largest number"),
    fails("Multinomial", of([[-np.inf, -np.inf]]), match="no largest number"),
    fails("Multinomial", f32(3), match=r"\(batch, classes\), got f32"),
    fails("Multinomial", f32(3, 0), match="needs classes"),
    case("Dropout", X, outputs=2, expect=(X, MASK)),
    case("Dropout", X, of(0.9), of(False, bool), outputs=2, expect=(X, MASK)),
    case("Dropout", X, of(0.0), of(True, bool), outputs=2, expect=(X, MASK)),
    case("Dropout", X, of(1.0), of(True, bool), outputs=2, expect=(X * 0, ~MASK)),
    case("Dropout", bf16(5), expect=(bf16(5),)),
    some("Dropout", X, of(0.5), of(True, bool), outputs=2, seed=3),
    some("Dropout", f16(3, 77), of(0.25), of(True, bool), outputs=2, seed=-3),
    some("Dropout", f64(200), of(0.5), of(True, bool), seed=5),
    some("Dropout", X, None, of(True, bool)),
    fails("Dropout", X, of(1.5), of(True, bool), match=r"the ratio of Dropout must be .*, got 1.5"),
    fails("Dropout", X, of([0.5, 0.5]), of(True, bool), match="ratio of Dropout is one element"),
    case("Dropout", X, opset=10, ratio=0.9, outputs=2, expect=(X, MASK)),
    case("Dropout", X, opset=7, outputs=2, expect=(X, MASK.astype(np.float32))),
    case("Dropout", X, opset=6, is_test=1, expect=(X,)),
    case("Dropout", X, opset=1, is_test=0, ratio=0.0, expect=(X,)),
]  # fmt: skip
