"""Cases of the standard quantized ops."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tests.op_cases import bf16, case, f16, f32, fails, of, pos

X = f32(3, 4, 5) * np.float32(50)
ODD = of([np.nan, np.inf, -np.inf, 0.5, 1.5, 2.5, -0.5, 300, -300])
PLAIN = (np.uint8, np.int8, np.uint16, np.int16)
FLOAT8 = (
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e4m3fnuz,
    ml_dtypes.float8_e5m2,
    ml_dtypes.float8_e5m2fnuz,
)  # fmt: skip
SMALL = (ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2, ml_dtypes.uint2)
FLOAT4 = (ml_dtypes.float4_e2m1fn, ml_dtypes.float6_e2m3fn, ml_dtypes.float6_e3m2fn)


def codes(dtype: Any, *shape: int) -> np.ndarray:
    rng = np.random.default_rng(sum(shape))
    low = -100 if np.dtype(dtype).kind == "i" else 0
    return rng.integers(low, 100, shape).astype(dtype)


def scale(value: float, dtype: Any = np.float32) -> np.ndarray:
    return of(value, dtype)


# Lengths around the lanes of every ISA and the parts that kernels split rows into.
LENGTHS = (1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 1021, 1025)

QUANTIZE = [
    *(case("QuantizeLinear", f32(3, n) * np.float32(90), pos(1), of([3], np.int8))
      for n in LENGTHS),
    *(case("QuantizeLinear", f32(2, n) * np.float32(9), pos(n), codes(np.uint8, n), axis=-1)
      for n in LENGTHS),
    case("QuantizeLinear", f16(2, 3, 9), np.abs(f16(3)) + np.float16(0.1), codes(np.int8, 3)),
    case("QuantizeLinear", f32(2, 2100), pos(2, 3), codes(np.uint8, 2, 3), block_size=1000),
    *(case("QuantizeLinear", X * 1000, scale(0.7), of(v, t))
      for t, v in ((np.int8, -128), (np.int8, 127), (np.uint8, 255), (np.uint16, 65535),
                   (np.int16, -32768))),
    *(case("QuantizeLinear", X, scale(0.7), of(3, t)) for t in PLAIN),
    *(case("QuantizeLinear", X, pos(4), of([1, 2, 3, 4], t)) for t in PLAIN),
    *(case("QuantizeLinear", X, pos(5), of([1, 2, 3, 4, 5], t), axis=-1) for t in PLAIN[:2]),
    *(case("QuantizeLinear", X / 10, scale(0.5), of(1, t), oracle="onnx") for t in SMALL),
    *(case("QuantizeLinear", X * 20, scale(0.5), of(0, t), saturate=s, oracle="onnx")
      for t in FLOAT8 for s in (0, 1)),
    *(case("QuantizeLinear", X / 10, scale(0.5), of(0, t), oracle="onnx") for t in FLOAT4),
    case("QuantizeLinear", X, scale(0.5)),
    case("QuantizeLinear", X, of([0.5]), of([1], np.int8)),
    case("QuantizeLinear", X, scale(0.5), output_dtype=3),
    case("QuantizeLinear", X, pos(3, 2, 5), codes(np.int8, 3, 2, 5), block_size=2),
    case("QuantizeLinear", f32(3, 5, 4), pos(3, 3, 4), axis=1, block_size=2),
    *(case("QuantizeLinear", f32(3, 2000) * np.float32(90), pos(3, -(-2000 // n)),
           codes(np.uint8, 3, -(-2000 // n)), block_size=n) for n in (7, 32, 512, 600)),
    case("QuantizeLinear", f32(7), pos(7), axis=0),
    case("QuantizeLinear", f32(7), pos(3), axis=0, block_size=3),
    case("QuantizeLinear", f32(0, 4), scale(0.5)),
    *(case("QuantizeLinear", ODD, scale(1), of(0, t), opset=21) for t in PLAIN[:2]),
    case("QuantizeLinear", f16(3, 4), scale(0.5, np.float16), of(3, np.uint8)),
    case("QuantizeLinear", bf16(3, 4), scale(0.5, ml_dtypes.bfloat16), of(3, np.uint8),
         oracle="none", why="onnx divides in bfloat16"),
    case("QuantizeLinear", X, scale(0.7), of(3, np.uint8), precision=10, oracle="onnx"),
    case("QuantizeLinear", of([10, 25, 999], np.int32), of(10, np.int32), of(1, np.uint8),
         oracle="onnx"),
    case("QuantizeLinear", of([1, 2, 12]), of(4, ml_dtypes.float8_e8m0fnu), of(1, np.uint8),
         expect=(of([1, 1, 4], np.uint8),)),
    *(case("QuantizeLinear", X, scale(0.5), of(3, np.uint8), opset=v) for v in (10, 13, 19, 21)),
    case("QuantizeLinear", X, pos(4), opset=13),
    fails("QuantizeLinear", X, pos(3), match="one number along axis 1: 3"),
    fails("QuantizeLinear", X, pos(4), axis=3, match="axis 3 is outside"),
    fails("QuantizeLinear", X, pos(3, 2, 5), match="give block_size"),
    fails("QuantizeLinear", X, pos(3, 3, 5), block_size=2, match="per block of 2.*: 3 and 2"),
    fails("QuantizeLinear", X, pos(4), of([1, 2], np.uint8), match="differ in shape: 4 and 2"),
    fails("QuantizeLinear", X, scale(1), of(1, np.uint8), output_dtype=3, match="dtype is i8"),
    fails("QuantizeLinear", X, scale(1), output_dtype=1, match="not a quantized type"),
]  # fmt: skip

DEQUANTIZE = [
    *(case("DequantizeLinear", codes(np.uint8, 3, n), pos(1), of([3], np.uint8)) for n in LENGTHS),
    *(case("DequantizeLinear", codes(np.int8, 2, n), pos(n), codes(np.int8, n), axis=-1)
      for n in LENGTHS),
    case("DequantizeLinear", codes(np.int8, 4, 3, 5), np.abs(f16(4)), codes(np.int8, 4), axis=0),
    case("DequantizeLinear", codes(np.uint16, 2, 9), pos(9), codes(np.uint16, 9)),
    case("DequantizeLinear", codes(np.int8, 3, 4), of(0.5), of([3], np.int8), oracle="onnx"),
    case("DequantizeLinear", codes(np.int8, 3, 4), of([0.5]), of(3, np.int8), oracle="onnx"),
    case("QuantizeLinear", f32(3, 4), of(0.5), of([3], np.int8), oracle="onnx"),
    case("QuantizeLinear", f32(3, 4), of([0.5]), of(3, np.int8), oracle="onnx"),
    *(case("DequantizeLinear", codes(t, 3, 4, 5), scale(0.7), of(3, t)) for t in PLAIN),
    *(case("DequantizeLinear", codes(t, 3, 4, 5), pos(4), of([1, 2, 3, 4], t)) for t in PLAIN),
    *(case("DequantizeLinear", codes(t, 3, 4, 5), pos(3, 2, 5), codes(t, 3, 2, 5), block_size=2)
      for t in PLAIN),
    case("DequantizeLinear", codes(np.int8, 3, 5), pos(2, 5), axis=0, block_size=2),
    case("DequantizeLinear", codes(np.int32, 5), scale(0.7)),
    case("DequantizeLinear", codes(np.uint8, 5), scale(0.7, np.float16), of(7, np.uint8)),
    case("DequantizeLinear", codes(np.uint8, 5), scale(0.7), output_dtype=10, oracle="onnx"),
    *(case("DequantizeLinear", codes(np.uint8, 3, 4).astype(np.float32).astype(t), scale(0.5),
           oracle="onnx") for t in (*FLOAT8, *FLOAT4)),
    *(case("DequantizeLinear", (codes(np.uint8, 3, 4) % 2).astype(t), scale(0.5), of(1, t),
           oracle="onnx") for t in SMALL),
    case("DequantizeLinear", of([1, 2, 3], np.int8), of(0.5, ml_dtypes.float8_e8m0fnu),
         output_dtype=1, expect=(of([0.5, 1, 1.5]),)),
    case("DequantizeLinear", codes(np.uint8, 0, 4), scale(0.5)),
    *(case("DequantizeLinear", codes(np.uint8, 3, 4), scale(0.5), of(3, np.uint8), opset=v)
      for v in (10, 13, 19, 21, 23)),
    fails("DequantizeLinear", codes(np.uint8, 3, 4), pos(3), match="one number along axis 1"),
    fails("DequantizeLinear", of([1], np.int8), of([1], ml_dtypes.float8_e8m0fnu),
          match="set output_dtype"),
    case("DynamicQuantizeLinear", X, outputs=3),
    case("DynamicQuantizeLinear", np.abs(X) + 3, outputs=3),
    case("DynamicQuantizeLinear", -np.abs(X) - 3, outputs=3),
    *(case("DynamicQuantizeLinear", f32(n), outputs=3) for n in (1, 7, 17, 8193, 20011)),
    *(case("DynamicQuantizeLinear", X * np.float32(v), outputs=3) for v in (1e-24, 1e-17, 1e24)),
    case("DynamicQuantizeLinear", np.arange(-40, 215.5, 0.5, dtype=np.float32), outputs=3),
    case("DynamicQuantizeLinear", np.append(f32(90), of([np.nan, 2])).astype(np.float32), outputs=3,
         oracle="none", why="has no range"),
    case("DynamicQuantizeLinear", X * 0, outputs=3, oracle="onnxruntime"),
    case("DynamicQuantizeLinear", f32(0, 3), outputs=3, oracle="none", why="nothing to compare"),
]  # fmt: skip

A, B = codes(np.uint8, 5, 7), codes(np.int8, 7, 4)
MATMUL = [
    *(case("MatMulInteger", codes(s, 5, 7), codes(t, 7, 4)) for s in PLAIN[:2] for t in PLAIN[:2]),
    case("MatMulInteger", A, B, of(7, np.uint8), of(-3, np.int8)),
    case("MatMulInteger", A, B, None, codes(np.int8, 4)),
    case("MatMulInteger", A, B, codes(np.uint8, 5), expect=(
        (A.astype(np.int32) - codes(np.uint8, 5)[:, None]) @ B.astype(np.int32),)),
    case("MatMulInteger", codes(np.uint8, 2, 5, 7), codes(np.int8, 2, 7, 4),
         codes(np.uint8, 2, 5, 1), codes(np.int8, 2, 1, 4), oracle="onnx"),
    case("MatMulInteger", codes(np.uint8, 3, 700), codes(np.uint8, 700, 2)),
    case("MatMulInteger", codes(np.uint8, 7), codes(np.int8, 7, 4), oracle="onnx"),
    case("MatMulInteger", codes(np.uint8, 0, 7), B, oracle="onnx"),
    fails("MatMulInteger", A, codes(np.int8, 6, 4), match="7 and 6"),
    fails("MatMulInteger", A, B, codes(np.uint8, 4), match="a_zero_point"),
]  # fmt: skip


def qlinear(a: Any, b: Any, b_scale: Any, b_zero: Any, y_type: Any) -> tuple[Any, ...]:
    zero = of(7, a.dtype)
    return (a, scale(0.02), zero, b, b_scale, b_zero, scale(0.7), of(5, y_type))


QLINEAR = [
    *(case("QLinearMatMul", *qlinear(codes(s, 5, 7), codes(t, 7, 4), scale(0.3), of(3, t), s))
      for s in PLAIN[:2] for t in PLAIN[:2] if (s, t) != (np.int8, np.uint8)),
    case("QLinearMatMul", *qlinear(A, B, of([0.1, 0.2, 0.3, 0.4]), codes(np.int8, 4), np.uint8)),
    case("QLinearMatMul", *qlinear(codes(np.uint8, 2, 5, 7), codes(np.uint8, 2, 7, 4), scale(0.3),
                                   of(3, np.uint8), np.uint8)),
    case("QLinearMatMul", *(of(v, t) for v, t in (
        ([[1, 2]], FLOAT8[0]), (0.5, np.float32), (0, FLOAT8[0]), ([[3], [4]], FLOAT8[0]),
        (1, np.float32), (0, FLOAT8[0]), (2, np.float32), (0, FLOAT8[0]))),
         expect=(of([[2.75]], FLOAT8[0]),)),
    case("QLinearMatMul", *qlinear(A, B, scale(0.3), of(3, np.int8), np.uint8), opset=10),
    fails("QLinearMatMul", *qlinear(A, B, of([0.1, 0.2]), of(3, np.int8), np.uint8),
          match="b_scale.*2"),
]  # fmt: skip

P, Q = codes(np.uint8, 2, 4, 6, 7), codes(np.int8, 6, 4, 3, 3)
CONV = [
    case("ConvInteger", P, Q),
    case("ConvInteger", P, codes(np.uint8, 6, 4, 3, 3), of(9, np.uint8), of(5, np.uint8),
         pads=[1, 1, 1, 1], strides=[2, 1]),
    case("ConvInteger", P, codes(np.uint8, 6, 2, 3, 3), of(9, np.uint8), group=2, dilations=[2, 2]),
    case("ConvInteger", P, codes(np.uint8, 4, 1, 3, 3), of(9, np.uint8), group=4,
         auto_pad="SAME_UPPER"),
    case("ConvInteger", P, codes(np.uint8, 6, 4, 1, 1), of(9, np.uint8), of(5, np.uint8)),
    case("ConvInteger", P, codes(np.int8, 6, 4, 1, 1), of(9, np.uint8),
         of([1, 0, -2, 3, 4, 5], np.int8)),
    case("ConvInteger", P, codes(np.int8, 6, 4, 1, 1), strides=[2, 1]),
    fails("ConvInteger", P, codes(np.int8, 6, 3, 3, 3), match="channels of x"),
    case("QLinearConv", *qlinear(P, Q, scale(0.3), of(0, np.int8), np.uint8), pads=[1, 1, 1, 1]),
    case("QLinearConv", *qlinear(P, Q, pos(6), np.zeros(6, np.int8), np.uint8),
         codes(np.int32, 6), strides=[2, 2]),
    case("QLinearConv", *qlinear(P, codes(np.uint8, 4, 1, 3, 3), scale(0.3), of(9, np.uint8),
                                 np.uint8), group=4, auto_pad="SAME_LOWER"),
    fails("QLinearConv", *qlinear(P, Q, pos(5), np.zeros(5, np.int8), np.uint8),
          match="w_scale does not have one number per output channel"),
]  # fmt: skip

CASES = [*QUANTIZE, *DEQUANTIZE, *MATMUL, *QLINEAR, *CONV]
