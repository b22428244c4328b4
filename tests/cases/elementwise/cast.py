"""Cases of Cast, CastLike and BitCast."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto as T

from tests.op_cases import Array, Case, bools, case, f16, f32, f64, fails, i64, ints, of

inf, nan = np.inf, np.nan
I4, U4, I2, U2 = ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2, ml_dtypes.uint2
F4, BF16 = ml_dtypes.float4_e2m1fn, ml_dtypes.bfloat16
E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
E4M3Z, E8M0 = ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e8m0fnu
F6 = ml_dtypes.float6_e2m3fn

NUMBERS: dict[int, Any] = {
    T.FLOAT: np.float32, T.UINT8: np.uint8, T.INT8: np.int8, T.UINT16: np.uint16,
    T.INT16: np.int16, T.INT32: np.int32, T.INT64: np.int64, T.BOOL: bool, T.FLOAT16: np.float16,
    T.DOUBLE: np.float64, T.UINT32: np.uint32, T.UINT64: np.uint64, T.BFLOAT16: BF16,
    T.FLOAT8E4M3FN: E4M3, T.FLOAT8E4M3FNUZ: E4M3Z, T.FLOAT8E5M2: E5M2,
    T.FLOAT8E5M2FNUZ: ml_dtypes.float8_e5m2fnuz, T.UINT4: U4, T.INT4: I4, T.FLOAT4E2M1: F4,
    T.UINT2: U2, T.INT2: I2, T.FLOAT6E2M3: F6, T.FLOAT6E3M2: ml_dtypes.float6_e3m2fn,
}  # fmt: skip
HUBS = (T.FLOAT, T.INT64)
SMALL = of([0, 1, 1])


def to(x: Array, number: int, result: Any, **options: Any) -> Case:
    """A cast with a known result."""
    return case("Cast", x, to=number, expect=(result,), **options)


def text(*words: str) -> Array:
    return of(words, object)


SPECIAL = of([nan, inf, -inf, 1e6, -1e6, -0.0, 0.3])

CASES = [
    # 0 and 1 are in every type.
    *(
        to(SMALL.astype(a), number, SMALL.astype(b))
        for a in NUMBERS.values()
        for number, b in NUMBERS.items()
        if a is b or number in HUBS or a in (np.float32, I4)
    ),
    *(case("Cast", f32(3, 5) * 40, to=t) for t in (T.DOUBLE, T.FLOAT16, T.INT32, T.INT64, T.BOOL)),
    *(case("Cast", i64(9, low=-300, high=300), to=t) for t in (T.INT8, T.UINT8, T.INT32, T.BOOL)),
    *(case("Cast", x, to=T.FLOAT) for x in (f16(5), f64(5), bools(4), ints(np.int8, 6), f32(0, 2))),
    case("Cast", f64(), to=T.FLOAT),
    case("Cast", of([1e300, -1e300, 1e-300], np.float64), to=T.FLOAT),
    case("Cast", of([65519.0, 65520.0, -1e9]), to=T.FLOAT16),
    case("Cast", of([nan, 0.0, -0.0, 1e-40]), to=T.BOOL),
    to(of([200, -300, 70000], np.int32), T.INT8, of([-56, -44, 112], np.int8)),
    to(of([-9, 8, 17, 3], np.int32), T.INT4, of([7, -8, 1, 3], I4)),
    to(of([-1.9, 20.5, 3.0]), T.UINT4, of([15, 4, 3], U4)),
    to(of([-3, -2, 2, 3], np.int64), T.INT2, of([1, -2, -2, -1], I2)),
    to(of([-8, 7], I4), T.INT32, of([-8, 7], np.int32)),
    to(SPECIAL, T.FLOAT8E4M3FN, of([nan, 448, -448, 448, -448, -0.0, 0.3125], E4M3)),
    to(SPECIAL, T.FLOAT8E4M3FN, of([nan, nan, nan, nan, nan, -0.0, 0.3125], E4M3), saturate=0),
    to(SPECIAL, T.FLOAT8E5M2, of([nan, inf, -inf, inf, -inf, -0.0, 0.3125], E5M2), saturate=0),
    to(SPECIAL, T.FLOAT8E4M3FNUZ, of([nan, 240, -240, 240, -240, 0.0, 0.3125], E4M3Z)),
    to(of([6.4, -100.0, 0.25, 0.75]), T.FLOAT4E2M1, of([6, -6, 0, 1], F4)),
    to(of([100.0, 0.06]), T.FLOAT6E2M3, of([7.5, 0.0], F6)),
    to(of([257, 259], np.int32), T.BFLOAT16, of([256, 260], BF16)),
    # Half way in float32, not so in float64: one rounding, not two.
    to(of([1 + 2**-8 + 2**-40, 1 + 2**-8], np.float64), T.BFLOAT16, of([1 + 2**-7, 1], BF16)),
    *(
        to(of([1.0, 1.25, 1.5, 3.0, 0.0, 1e-44]), T.FLOAT8E8M0, codes.view(E8M0), round_mode=mode)
        for mode, codes in (
            ("up", of([127, 128, 128, 129, 0, 0], np.uint8)),
            ("down", of([127, 127, 127, 128, 0, 0], np.uint8)),
            ("nearest", of([127, 127, 128, 129, 0, 0], np.uint8)),
        )
    ),
    to(of([inf, nan, 3e38, 0.0]), T.FLOAT8E8M0, of([255] * 4, np.uint8).view(E8M0),
       saturate=0, round_mode="nearest"),
    to(of([127, 128, 0], np.uint8).view(E8M0), T.FLOAT, of([1.0, 2.0, 2.0**-127])),
    case("Cast", of([0.1, 1 / 3, 1.0, -0.0, 1e10, 123456789.0, inf, -inf, nan]), to=T.STRING),
    case("Cast", of([0.1, 65504.0], np.float16), to=T.STRING),
    to(of([0.1, 1 / 3, 1e22, 5.0], np.float64), T.STRING,
       text("0.1", "0.3333333333333333", "1e+22", "5")),
    case("Cast", i64(5), to=T.STRING),
    case("Cast", bools(3), to=T.STRING),
    case("Cast", text("3.14", "1e-5", " 12 ", "INF", "-inf", "+iNf", "NaN", "1E8"), to=T.FLOAT),
    case("Cast", text("0.1", "1e300"), to=T.DOUBLE),
    case("Cast", text("7", "-8", "100.5"), to=T.INT32),
    to(text("1e3", "18446744073709551615"), T.UINT64, of([1000, 2**64 - 1], np.uint64)),
    case("Cast", text("300", "-1"), to=T.UINT8),
    case("Cast", text("1", "0"), to=T.BOOL),
    to(text(), T.FLOAT, f32(0)),
    fails("Cast", of([1j], np.complex64), to=T.FLOAT, match="is c64; supported types"),
    fails("Cast", f32(2), to=T.COMPLEX64, match="a conversion to c64 is not supported"),
    fails("Cast", text("hello"), to=T.FLOAT, match="'hello' is not a number"),
    fails("Cast", text(""), to=T.INT64, match="'' is not a number"),
    fails("Cast", text("99999999999999999999"), to=T.INT32, match="not an integer of 64 bits"),
    fails("Cast", f32(2), to=99, match="unknown type 99"),
    fails("Cast", f32(2), to=T.FLOAT8E8M0, round_mode="away", match="nearest, got away"),
    case("Cast", f32(4), opset=1, to="INT32", expect=(f32(4).astype(np.int32),)),
    case("Cast", i64(4), opset=1, to="DOUBLE", expect=(i64(4).astype(np.float64),)),
    fails("Cast", f32(4), opset=1, to="REAL", match="names no type"),
    case("Cast", f32(4), opset=6, to=T.DOUBLE),
    case("CastLike", f32(2, 3) * 9, i64(1)),
    case("CastLike", i64(5), f16(2, 2)),
    case("CastLike", of([0.5, 1 / 3]), text("x"), expect=(text("0.5", "0.33333334"),)),
    case("CastLike", SPECIAL, of([1], E5M2), saturate=0,
         expect=(of([nan, inf, -inf, inf, -inf, -0.0, 0.3125], E5M2),)),
    case("BitCast", f32(2, 3), to=T.INT32, expect=(f32(2, 3).view(np.int32),)),
    case("BitCast", f64(), to=T.UINT64, expect=(f64().view(np.uint64),)),
    case("BitCast", of([1, 0, 2], np.uint8), to=T.BOOL, expect=(of([True, False, True], bool),)),
    case("BitCast", of([-1, 7, -8], I4), to=T.UINT4, expect=(of([15, 7, 8], U4),)),
    case("BitCast", of([1.5, -6.0], F4), to=T.UINT4, expect=(of([3, 15], U4),)),
    case("BitCast", of([3, 15], U4), to=T.FLOAT4E2M1, expect=(of([1.5, -6.0], F4),)),
    case("BitCast", of([3, 1], U2), to=T.INT2, expect=(of([-1, 1], I2),)),
    fails("BitCast", f32(2), to=T.INT64, match="f32 has 32 bits, i64 has 64"),
    fails("BitCast", text("a"), to=T.INT64, match="is str; supported types"),
]  # fmt: skip
