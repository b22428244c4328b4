"""Cases of the quantized ops of com.microsoft.

Scales are powers of two, so that sums are exact, and zero points of results even: onnxruntime
rounds some results before it adds the zero point and some after, which is the same but for a half
and an odd zero point. tests/test_qlinear.py has scales and zero points of any kind.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tests.op_cases import Array, bools, codes, f16, f32, ints, ms, no, of, zero

NO_KERNEL = "onnxruntime has no kernel for it on a CPU"


NO_ZERO = "onnxruntime's own inference fails without a zero point"


def kind(x: Array, scale: float, point: int) -> tuple[Array, Array, Array]:
    """Bytes with a scale and a zero point."""
    return x, of(scale), of(point, x.dtype)


U, S = codes(np.uint8, 2, 3, 5), codes(np.int8, 2, 3, 5)


SIZES = ((1,), (15,), (16,), (17,), (67,), (0, 4), ())


QA = [
    row
    for op, scale in (("QLinearAdd", 0.5), ("QLinearMul", 16.0))
    for row in (
        ms(op, *kind(U, 0.25, 12), *kind(U[:1, ::-1], 0.5, 100), of(scale), zero(90)),
        ms(op, *kind(S, 0.25, -3), *kind(S[::-1, :, :1], 0.5, 7), of(scale), zero(-8, np.int8)),
        ms(op, *kind(U, 0.25, 0), *kind(U[0, 0], 0.5, 255), of(scale / 8), zero(0)),
        ms(op, *kind(U, 0.25, 0), *kind(U, 0.5, 3), of(scale), zero(128)),
        ms(op, U, of(0.25), None, U, of(0.5), None, of(scale), oracle="none", why=NO_ZERO),
        ms(op, U, of([0.25]), None, U, of([0.5]), zero(3), of([scale]), oracle="none", why=NO_ZERO),
        *(
            ms(op, *kind(codes(np.int8, *n), 0.5, 3), *kind(codes(np.int8, *n), 1.0, 0), of(scale),
               zero(2, np.int8))
            for n in SIZES
        ),
        no(op, *kind(U, 1, 0), *kind(codes(np.uint8, 4), 1, 0), of(1), match="broadcast"),
        no(op, U, f32(3), None, U, of(1), None, of(1), match="A_scale is one number"),
        no(op, U, of(1), None, U, of(1), None, f32(1, 1), match="C_scale must be one number"),
    )
]  # fmt: skip


UNARY = [
    row
    for op, options in (("QLinearSigmoid", {}), ("QLinearLeakyRelu", {"alpha": 0.25}))
    for row in (
        ms(op, *kind(U, 0.0625, 100), of(2.0**-8), zero(0), **options),
        ms(op, *kind(S, 0.0625, -3), of(2.0**-7), zero(-1, np.int8), **options),
        ms(op, *kind(U, 0.5, 100), of(0.25), zero(64), **options),
        ms(op, U, of(0.0625), None, of(2.0**-8), None, oracle="none", why=NO_ZERO, **options),
        ms(op, *kind(codes(np.int8, 7, 77), 0.0625, -3), of(2.0**-7), zero(-2, np.int8), **options),
        ms(op, *kind(codes(np.uint8, 16390), 0.0625, 100), of(2.0**-8), zero(0), **options),
        *(ms(op, *kind(codes(np.uint8, *n), 0.5, 9), of(0.25), zero(4), **options) for n in SIZES),
        no(op, *kind(U, 1, 0), f32(2), zero(0), match="Y_scale is one number", **options),
    )
] + [ms("QLinearLeakyRelu", *kind(S, 0.5, -3), of(0.25), zero(3, np.int8))]


SOFTMAX = [
    ms("QLinearSoftmax", *kind(x, 2.0**-5, point), of(2.0**-8), low,
       attrs={"axis": axis, "opset": opset}, oracle="none",
       why="onnxruntime sums a table of its own: compared up to a step elsewhere")
    for x, point, low in ((U, 200, zero(0)), (S, 3, zero(-128, np.int8)))
    for axis, opset in ((-1, 13), (0, 13), (1, 11), (-1, 12))
] + [
    ms("QLinearSoftmax", *kind(U[:0], 0.5, 3), of(2.0**-8), zero(0), attrs={"opset": 13},
       oracle="none",
       why="onnxruntime gives nothing for no elements"),
    ms("QLinearSoftmax", U, of(0.5), None, of(2.0**-8), zero(0), attrs={"opset": 13},
       oracle="none",
       why="as above"),
    no("QLinearSoftmax", *kind(U, 1, 0), of(1), zero(0), attrs={"opset": 13, "axis": 3},
       match="axis 3"),
]  # fmt: skip


IMAGE, IMAGE_NHWC = codes(np.uint8, 2, 3, 6, 8), codes(np.uint8, 2, 6, 8, 3)


POOL_QUANTIZE = [
    ms("QLinearAveragePool", *kind(IMAGE, 0.5, 100), of(0.25), zero(90), kernel_shape=[2, 2]),
    ms(
        "QLinearAveragePool",
        *kind(IMAGE, 0.5, 100),
        of(1.0),
        zero(90),
        kernel_shape=[2, 4],
        pads=[1, 2, 1, 2],
        strides=[2, 1],
        count_include_pad=1,
    ),
    ms(
        "QLinearAveragePool",
        *kind(IMAGE_NHWC.view(np.int8), 0.5, 3),
        of(0.5),
        zero(-6, np.int8),
        kernel_shape=[2, 2],
        strides=[2, 2],
        channels_last=1,
    ),
    ms(
        "QLinearAveragePool",
        IMAGE[0],
        of(0.5),
        None,
        of(0.5),
        None,
        kernel_shape=[4],
        oracle="none",
        why=NO_ZERO,
    ),
    ms(
        "QLinearAveragePool",
        of([[[8, 4]]], np.uint8),
        of(1.0),
        zero(0),
        of(1.0),
        zero(0),
        kernel_shape=[4],
        strides=[4],
        ceil_mode=1,
        count_include_pad=1,
        expect=(of([[[6]]], np.uint8),),
        why="onnxruntime divides by pixels outside of image and pads too, unlike AveragePool",
    ),
    ms("QLinearGlobalAveragePool", *kind(IMAGE[:, :, :4, :4], 0.5, 100), of(0.25), zero(90)),
    ms(
        "QLinearGlobalAveragePool",
        *kind(IMAGE_NHWC[:, :2], 0.5, 100),
        of(0.5),
        zero(90),
        channels_last=1,
    ),
    ms(
        "QLinearGlobalAveragePool",
        *kind(S.reshape(2, 3, 5)[:, :, :4], 0.5, 1),
        of(0.5),
        zero(3, np.int8),
    ),
    ms(
        "QLinearReduceMean",
        *kind(IMAGE, 0.5, 100),
        of(0.5),
        zero(90),
        axes=[3],
        keepdims=1,
        oracle="none",
        why=NO_KERNEL,
    ),
    ms(
        "QLinearReduceMean",
        *kind(IMAGE[:, :, :4], 0.5, 100),
        of(0.5),
        zero(90),
        axes=[2, -1],
        keepdims=0,
        oracle="none",
        why=NO_KERNEL,
    ),
    ms(
        "QLinearReduceMean",
        of([[1, 3], [4, 8]], np.uint8),
        of(0.5),
        zero(2),
        of(0.25),
        zero(9),
        axes=[1],
        keepdims=0,
        expect=(of([9, 17], np.uint8),),
    ),
    ms(
        "QLinearReduceMean",
        of([[1, 3], [4, 8]], np.int8),
        of(0.5),
        None,
        of(0.25),
        None,
        axes=[0, 1],
        keepdims=1,
        expect=(of([[8]], np.int8),),
    ),
    no("QLinearAveragePool", *kind(IMAGE, 1, 0), of(1), zero(0), kernel_shape=[2], match="kernel"),
    no("QLinearGlobalAveragePool", *kind(U[0], 1, 0), of(1), zero(0), match="3 dims or more"),
    no("QLinearReduceMean", *kind(U, 1, 0), of(1), zero(0), axes=[3], keepdims=1, match="axis 3"),
]


MOVES = [
    ms("QLinearConcat", of(0.5), zero(3), *kind(U, 0.5, 3), *kind(U[:, :2], 0.25, 9), axis=1),
    ms("QLinearConcat", of(0.5), zero(3, np.int8), *kind(S, 0.5, 3), *kind(S, 2.0, -9), axis=-1),
    ms("QLinearConcat", of(0.5), zero(3), *kind(U, 0.5, 3), *kind(U[:0], 0.25, 9), axis=0),
    ms("QLinearWhere", bools(2, 3, 5), *kind(U, 0.5, 3), *kind(U[:, :1], 1.0, 9), of(0.5),
       zero(3)),
    ms("QLinearWhere", bools(5), *kind(S, 0.5, 3), *kind(S, 0.5, 3), of(0.5), zero(3, np.int8)),
    ms("QLinearWhere", bools(2, 1, 1), *kind(S[0], 0.5, 3), *kind(S[:, :1], 1.0, -9), of(0.25),
       zero(-7, np.int8)),
    no("QLinearConcat", of(1), zero(0), U, of(1), axis=0, match="three"),
    no("QLinearConcat", of(1), zero(0), *kind(U, 1, 0), *kind(S, 1, 0), axis=0, match="as u8"),
    no("QLinearConcat", of(1), zero(0), *kind(U, 1, 0), *kind(U[:, :2], 1, 0), axis=0,
       match="dim 1 of input 1"),
    no("QLinearWhere", bools(4), *kind(U, 1, 0), *kind(U, 1, 0), of(1), zero(0),
       match="broadcast"),
]  # fmt: skip


FILTER = codes(np.int8, 4, 3, 3, 3)


PER_MAP = of([0.5, 0.25, 1.0, 2.0])


RESULT = (of(2048.0), zero(100))


CONV = [
    ms("QLinearConv", *kind(IMAGE, 0.5, 100), *kind(FILTER, 0.25, 0), *RESULT),
    ms("QLinearConv", *kind(IMAGE_NHWC, 0.5, 100), *kind(FILTER, 0.25, 0), *RESULT,
       ints(np.int32, 4, low=-900, high=900), channels_last=1, pads=[1, 1, 1, 1], strides=[2, 1]),
    ms("QLinearConv", *kind(IMAGE_NHWC, 0.5, 100), FILTER, PER_MAP, of([0] * 4, np.int8), *RESULT,
       channels_last=1, dilations=[2, 1]),
    ms("QLinearConv", *kind(IMAGE_NHWC.view(np.int8), 0.5, -3),
       *kind(codes(np.int8, 6, 1, 2, 2), 1, 0), of(1024.0), zero(3, np.int8), channels_last=1,
       group=3),
    no("QLinearConv", *kind(IMAGE_NHWC, 1, 0), *kind(FILTER, 1, 0), *RESULT, match="channels of x"),
    no("QLinearConv", *kind(IMAGE, 1, 0), *kind(FILTER, 1, 0), *RESULT, channels_last=1,
       match="channels of x"),
]  # fmt: skip


A, B = codes(np.uint8, 5, 8), codes(np.int8, 8, 4)


GEMM = [
    ms("QGemm", *kind(A, 0.5, 100), *kind(B, 0.25, 0)),
    ms("QGemm", *kind(A, 0.5, 100), *kind(B, 0.25, 3), ints(np.int32, 4)),
    ms("QGemm", *kind(A, 0.5, 100), *kind(B, 0.25, 0), ints(np.int32, 4), of(512.0), zero(120)),
    ms("QGemm", *kind(A, 0.5, 100), *kind(B, 0.25, 0), ints(np.int32, 5, 1), of(512.0), zero(120)),
    ms("QGemm", *kind(A, 0.5, 100), *kind(B, 0.25, 0), ints(np.int32, 5, 4), of(512.0),
       zero(-3, np.int8), oracle="none", why="onnxruntime has no kernel for signed results"),
    ms("QGemm", *kind(A, 0.5, 100), *kind(B, 0.25, 0), of(7, np.int32)),
    ms("QGemm", *kind(A.T.copy(), 0.5, 100), B.T.copy(), PER_MAP, of([0, 1, -2, 3], np.int8), None,
       of(512.0), zero(120), transA=1, transB=1, alpha=0.5),
    ms("QGemm", *kind(A.view(np.int8), 0.5, -9), B, PER_MAP, zero(0, np.int8),
       oracle="none", why="onnxruntime has no kernel for signed rows on this machine"),
    ms("QGemm", *kind(A, 0.5, 100), *kind(codes(np.uint8, 8, 4), 0.25, 120)),
    ms("QGemm", *kind(A[:0], 0.5, 100), *kind(B, 0.25, 0)),
    no("QGemm", *kind(A, 1, 0), *kind(A, 1, 0), match="inner dimensions differ"),
    no("QGemm", *kind(A, 1, 0), B, f32(3), zero(0, np.int8), match="columns of B"),
    no("QGemm", *kind(A, 1, 0), *kind(B, 1, 0), ints(np.int32, 3), match="C does not broadcast"),
    no("QGemm", *kind(A, 1, 0), *kind(B, 1, 0), None, None, zero(3), match="needs y_scale"),
    no("QGemm", *kind(U, 1, 0), *kind(B, 1, 0), match="A must be a matrix"),
]  # fmt: skip


I4 = of([[-8, 7, 3], [0, 1, -5]], ml_dtypes.int4)


X = f32(3, 4, 5) * 4


CONVERT = [
    ms("QuantizeLinear", X, of(0.0625), zero(100)),
    ms("QuantizeLinear", X, of(0.0625)),
    ms("QuantizeLinear", X, np.full(4, 0.125, np.float32), ints(np.int8, 4), axis=1),
    ms("QuantizeLinear", X, np.full(4, 0.125, np.float32), ints(np.int8, 4)),
    ms("QuantizeLinear", X, np.full(3, 0.125, np.float32), ints(np.uint8, 3), axis=-3),
    ms("QuantizeLinear", X * 99, of(0.0625), zero(9, np.uint16)),
    ms("QuantizeLinear", X * 99, of(0.0625), zero(-9, np.int16)),
    ms("QuantizeLinear", X, of(0.5), zero(1, ml_dtypes.int4)),
    ms("QuantizeLinear", X, of(0.5), zero(3, ml_dtypes.uint4)),
    ms("QuantizeLinear", f16(3, 5), of(0.0625, np.float16), zero(3)),
    ms("DequantizeLinear", *kind(U, 0.0625, 100)),
    ms("DequantizeLinear", S, of([0.5, 2.0, 1.0]), ints(np.int8, 3), axis=1),
    ms("DequantizeLinear", ints(np.uint16, 2, 9, high=60000), of(0.5), zero(700, np.uint16)),
    ms("DequantizeLinear", ints(np.int16, 2, 9), of(0.5), zero(-700, np.int16)),
    ms("DequantizeLinear", ints(np.int32, 2, 9, low=-70000, high=70000), of(0.5)),
    ms("DequantizeLinear", I4, of(0.5), zero(1, ml_dtypes.int4)),
    ms("DequantizeLinear", of([[8, 7, 3], [0, 1, 15]], ml_dtypes.uint4), of([0.5, 2.0]),
       of([1, 3], ml_dtypes.uint4), axis=0),
    ms("DequantizeLinear", U, of(0.0625, np.float16), zero(100)),
    no("QuantizeLinear", X, f32(3), ints(np.int8, 3), axis=1, match="along axis 1"),
    no("QuantizeLinear", X, f32(3, 1), match="one number or a vector"),
    no("QuantizeLinear", X, f32(3), ints(np.int8, 3), axis=3, match="axis 3"),
    no("DequantizeLinear", U, f32(3), zero(1), axis=1, match="differ in rank"),
]  # fmt: skip


PRODUCTS_QUANTIZE = [
    ms("DynamicQuantizeMatMul", f32(3, 8), B, PER_MAP, of([1, 0, -2, 3], np.int8), f32(4)),
    ms("DynamicQuantizeMatMul", f32(2, 3, 8), codes(np.uint8, 8, 4), of(0.5), zero(120)),
    ms("DynamicQuantizeMatMul", f32(0, 8), B, of(0.5), oracle="none", why="has no range there"),
    ms("DynamicQuantizeMatMul", f32(5, 67), codes(np.int8, 67, 33), of(0.5)),
    no("DynamicQuantizeMatMul", f32(3, 8), B, PER_MAP, None, f32(3), match="bias does not fit"),
    ms("MatMulIntegerToFloat", A, B, of(0.5), of(0.25)),
    ms(
        "MatMulIntegerToFloat",
        A,
        codes(np.uint8, 8, 4),
        of(0.5),
        PER_MAP,
        zero(7),
        zero(9),
        f32(4),
    ),
    ms("MatMulIntegerToFloat", A[:0], B, of(0.5), of(0.25)),
    ms(
        "MatMulIntegerToFloat",
        codes(np.uint8, 2, 5, 67),
        codes(np.int8, 67, 33),
        of(0.5),
        of(2.0),
    ),
    no("MatMulIntegerToFloat", A, A, of(0.5), of(0.25), match="inner dim"),
    no("MatMulIntegerToFloat", A, B, of(0.5), f32(3), match="b_scale does not fit"),
]


CASES = [
    *PRODUCTS_QUANTIZE,
    *QA,
    *UNARY,
    *SOFTMAX,
    *POOL_QUANTIZE,
    *MOVES,
    *CONV,
    *GEMM,
    *CONVERT,
]
