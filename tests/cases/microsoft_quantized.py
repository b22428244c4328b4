"""Rows for the quantized ops of com.microsoft.

Scales are powers of two, so that sums are exact, and zero points of results even: onnxruntime
rounds some results before it adds the zero point and some behind, which is the same but for a half
and an odd zero point. tests/test_qlinear.py has scales and zero points of any kind.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tests.rows import Array, Row, bools, case, f16, f32, fails, ints, of

DOMAIN = "com.microsoft"
NO_KERNEL = "onnxruntime has no kernel for it on a CPU"
NO_ZERO = "onnxruntime's own inference fails without a zero point"
LIMITS = {np.uint8: (0, 256), np.int8: (-128, 128)}


def ms(op: str, *inputs: Any, **options: Any) -> Row:
    """A row of this domain."""
    return case(op, *inputs, domain=DOMAIN, **options)


def no(op: str, *inputs: Any, match: str, **options: Any) -> Row:
    """A row of this domain that is refused."""
    return fails(op, *inputs, domain=DOMAIN, match=match, **options)


def steps(dtype: Any, *shape: int) -> Array:
    """Bytes over their whole range."""
    low, high = LIMITS[dtype]
    rng = np.random.default_rng(sum(shape) * 13 + len(shape))
    return rng.integers(low, high, shape).astype(dtype)


def one(number: float) -> Array:
    return of(number)


def zero(number: int, dtype: Any = np.uint8) -> Array:
    return of(number, dtype)


def kind(x: Array, scale: float, point: int) -> tuple[Array, Array, Array]:
    """Bytes with a scale and a zero point."""
    return x, one(scale), of(point, x.dtype)


U, S = steps(np.uint8, 2, 3, 5), steps(np.int8, 2, 3, 5)
SIZES = ((1,), (15,), (16,), (17,), (67,), (0, 4), ())
QA = [
    row
    for op, scale in (("QLinearAdd", 0.5), ("QLinearMul", 16.0))
    for row in (
        ms(op, *kind(U, 0.25, 12), *kind(U[:1, ::-1], 0.5, 100), one(scale), zero(90)),
        ms(op, *kind(S, 0.25, -3), *kind(S[::-1, :, :1], 0.5, 7), one(scale), zero(-8, np.int8)),
        ms(op, *kind(U, 0.25, 0), *kind(U[0, 0], 0.5, 255), one(scale / 8), zero(0)),
        ms(op, *kind(U, 0.25, 0), *kind(U, 0.5, 3), one(scale), zero(128)),
        ms(op, U, one(0.25), None, U, one(0.5), None, one(scale), oracle="none", why=NO_ZERO),
        ms(op, U, of([0.25]), None, U, of([0.5]), zero(3), of([scale]), oracle="none", why=NO_ZERO),
        *(
            ms(op, *kind(steps(np.int8, *n), 0.5, 3), *kind(steps(np.int8, *n), 1.0, 0), one(scale),
               zero(2, np.int8))
            for n in SIZES
        ),
        no(op, *kind(U, 1, 0), *kind(steps(np.uint8, 4), 1, 0), one(1), match="broadcast"),
        no(op, U, f32(3), None, U, one(1), None, one(1), match="A_scale is one number"),
        no(op, U, one(1), None, U, one(1), None, f32(1, 1), match="C_scale is one number"),
    )
]  # fmt: skip
UNARY = [
    row
    for op, options in (("QLinearSigmoid", {}), ("QLinearLeakyRelu", {"alpha": 0.25}))
    for row in (
        ms(op, *kind(U, 0.0625, 100), one(2.0**-8), zero(0), **options),
        ms(op, *kind(S, 0.0625, -3), one(2.0**-7), zero(-1, np.int8), **options),
        ms(op, *kind(U, 0.5, 100), one(0.25), zero(64), **options),
        ms(op, U, one(0.0625), None, one(2.0**-8), None, oracle="none", why=NO_ZERO, **options),
        ms(
            op, *kind(steps(np.int8, 7, 77), 0.0625, -3), one(2.0**-7), zero(-2, np.int8), **options
        ),
        ms(op, *kind(steps(np.uint8, 16390), 0.0625, 100), one(2.0**-8), zero(0), **options),
        *(ms(op, *kind(steps(np.uint8, *n), 0.5, 9), one(0.25), zero(4), **options) for n in SIZES),
        no(op, *kind(U, 1, 0), f32(2), zero(0), match="Y_scale is one number", **options),
    )
] + [ms("QLinearLeakyRelu", *kind(S, 0.5, -3), one(0.25), zero(3, np.int8))]
SOFTMAX = [
    ms("QLinearSoftmax", *kind(x, 2.0**-5, point), one(2.0**-8), low,
       attrs={"axis": axis, "opset": opset}, oracle="none",
       why="onnxruntime sums a table of its own: compared up to a step elsewhere")
    for x, point, low in ((U, 200, zero(0)), (S, 3, zero(-128, np.int8)))
    for axis, opset in ((-1, 13), (0, 13), (1, 11), (-1, 12))
] + [
    ms("QLinearSoftmax", *kind(U[:0], 0.5, 3), one(2.0**-8), zero(0), attrs={"opset": 13},
       oracle="none",
       why="onnxruntime gives nothing for no elements"),
    ms("QLinearSoftmax", U, one(0.5), None, one(2.0**-8), zero(0), attrs={"opset": 13},
       oracle="none",
       why="as above"),
    no("QLinearSoftmax", *kind(U, 1, 0), one(1), zero(0), attrs={"opset": 13, "axis": 3},
       match="axis 3"),
]  # fmt: skip

IMAGE, TURNED = steps(np.uint8, 2, 3, 6, 8), steps(np.uint8, 2, 6, 8, 3)
POOL = [
    ms("QLinearAveragePool", *kind(IMAGE, 0.5, 100), one(0.25), zero(90), kernel_shape=[2, 2]),
    ms(
        "QLinearAveragePool", *kind(IMAGE, 0.5, 100), one(1.0), zero(90), kernel_shape=[2, 4],
        pads=[1, 2, 1, 2], strides=[2, 1], count_include_pad=1,
    ),
    ms(
        "QLinearAveragePool", *kind(TURNED.view(np.int8), 0.5, 3), one(0.5), zero(-6, np.int8),
        kernel_shape=[2, 2], strides=[2, 2], channels_last=1,
    ),
    ms("QLinearAveragePool", IMAGE[0], one(0.5), None, one(0.5), None, kernel_shape=[4],
       oracle="none", why=NO_ZERO),
    ms("QLinearAveragePool", of([[[8, 4]]], np.uint8), one(1.0), zero(0), one(1.0), zero(0),
       kernel_shape=[4], strides=[4], ceil_mode=1, count_include_pad=1,
       expect=(of([[[6]]], np.uint8),),
       why="onnxruntime divides by what lies outside of image and pads too, unlike AveragePool"),
    ms("QLinearGlobalAveragePool", *kind(IMAGE[:, :, :4, :4], 0.5, 100), one(0.25), zero(90)),
    ms("QLinearGlobalAveragePool", *kind(TURNED[:, :2], 0.5, 100), one(0.5), zero(90),
       channels_last=1),
    ms("QLinearGlobalAveragePool", *kind(S.reshape(2, 3, 5)[:, :, :4], 0.5, 1), one(0.5),
       zero(3, np.int8)),
    ms("QLinearReduceMean", *kind(IMAGE, 0.5, 100), one(0.5), zero(90), axes=[3], keepdims=1,
       oracle="none", why=NO_KERNEL),
    ms("QLinearReduceMean", *kind(IMAGE[:, :, :4], 0.5, 100), one(0.5), zero(90), axes=[2, -1],
       keepdims=0, oracle="none", why=NO_KERNEL),
    ms("QLinearReduceMean", of([[1, 3], [4, 8]], np.uint8), one(0.5), zero(2), one(0.25), zero(9),
       axes=[1], keepdims=0, expect=(of([9, 17], np.uint8),)),
    ms("QLinearReduceMean", of([[1, 3], [4, 8]], np.int8), one(0.5), None, one(0.25), None,
       axes=[0, 1], keepdims=1, expect=(of([[8]], np.int8),)),
    *(
        ms("NhwcMaxPool", x, kernel_shape=[3, 2], pads=[1, 0, 1, 1], strides=[2, 1])
        for x in (TURNED, TURNED.view(np.int8))
    ),
    ms("NhwcMaxPool", TURNED, kernel_shape=[2, 2], dilations=[2, 3], ceil_mode=1),
    ms("NhwcMaxPool", TURNED[0], kernel_shape=[2], auto_pad="SAME_UPPER"),
    no("NhwcMaxPool", TURNED[0], kernel_shape=[2, 2], match="kernel_shape"),
    no("NhwcMaxPool", TURNED[0, 0], kernel_shape=[], match="3 dims or more"),
    no("QLinearAveragePool", *kind(IMAGE, 1, 0), one(1), zero(0), kernel_shape=[2], match="kernel"),
    no("QLinearGlobalAveragePool", *kind(U[0], 1, 0), one(1), zero(0), match="3 dims or more"),
    no("QLinearReduceMean", *kind(U, 1, 0), one(1), zero(0), axes=[3], keepdims=1, match="axis 3"),
]  # fmt: skip
MOVES = [
    ms("QLinearConcat", one(0.5), zero(3), *kind(U, 0.5, 3), *kind(U[:, :2], 0.25, 9), axis=1),
    ms("QLinearConcat", one(0.5), zero(3, np.int8), *kind(S, 0.5, 3), *kind(S, 2.0, -9), axis=-1),
    ms("QLinearConcat", one(0.5), zero(3), *kind(U, 0.5, 3), *kind(U[:0], 0.25, 9), axis=0),
    ms("QLinearWhere", bools(2, 3, 5), *kind(U, 0.5, 3), *kind(U[:, :1], 1.0, 9), one(0.5),
       zero(3)),
    ms("QLinearWhere", bools(5), *kind(S, 0.5, 3), *kind(S, 0.5, 3), one(0.5), zero(3, np.int8)),
    ms("QLinearWhere", bools(2, 1, 1), *kind(S[0], 0.5, 3), *kind(S[:, :1], 1.0, -9), one(0.25),
       zero(-7, np.int8)),
    no("QLinearConcat", one(1), zero(0), U, one(1), axis=0, match="three"),
    no("QLinearConcat", one(1), zero(0), *kind(U, 1, 0), *kind(S, 1, 0), axis=0, match="a part of"),
    no("QLinearConcat", one(1), zero(0), *kind(U, 1, 0), *kind(U[:, :2], 1, 0), axis=0,
       match="dim 1 of input 1"),
    no("QLinearWhere", bools(4), *kind(U, 1, 0), *kind(U, 1, 0), one(1), zero(0),
       match="broadcast"),
]  # fmt: skip

FILTER = steps(np.int8, 4, 3, 3, 3)
PER_MAP = of([0.5, 0.25, 1.0, 2.0])
RESULT = (one(2048.0), zero(100))
CONV = [
    ms("QLinearConv", *kind(IMAGE, 0.5, 100), *kind(FILTER, 0.25, 0), *RESULT),
    ms("QLinearConv", *kind(TURNED, 0.5, 100), *kind(FILTER, 0.25, 0), *RESULT,
       ints(np.int32, 4, low=-900, high=900), channels_last=1, pads=[1, 1, 1, 1], strides=[2, 1]),
    ms("QLinearConv", *kind(TURNED, 0.5, 100), FILTER, PER_MAP, of([0] * 4, np.int8), *RESULT,
       channels_last=1, dilations=[2, 1]),
    ms("QLinearConv", *kind(TURNED.view(np.int8), 0.5, -3), *kind(steps(np.int8, 6, 1, 2, 2), 1, 0),
       one(1024.0), zero(3, np.int8), channels_last=1, group=3),
    no("QLinearConv", *kind(TURNED, 1, 0), *kind(FILTER, 1, 0), *RESULT, match="channels of x"),
    no("QLinearConv", *kind(IMAGE, 1, 0), *kind(FILTER, 1, 0), *RESULT, channels_last=1,
       match="channels of x"),
]  # fmt: skip
A, B = steps(np.uint8, 5, 8), steps(np.int8, 8, 4)
GEMM = [
    ms("QGemm", *kind(A, 0.5, 100), *kind(B, 0.25, 0)),
    ms("QGemm", *kind(A, 0.5, 100), *kind(B, 0.25, 3), ints(np.int32, 4)),
    ms("QGemm", *kind(A, 0.5, 100), *kind(B, 0.25, 0), ints(np.int32, 4), one(512.0), zero(120)),
    ms("QGemm", *kind(A, 0.5, 100), *kind(B, 0.25, 0), ints(np.int32, 5, 1), one(512.0), zero(120)),
    ms("QGemm", *kind(A, 0.5, 100), *kind(B, 0.25, 0), ints(np.int32, 5, 4), one(512.0),
       zero(-3, np.int8), oracle="none", why="onnxruntime has no kernel for signed results"),
    ms("QGemm", *kind(A, 0.5, 100), *kind(B, 0.25, 0), of(7, np.int32)),
    ms("QGemm", *kind(A.T.copy(), 0.5, 100), B.T.copy(), PER_MAP, of([0, 1, -2, 3], np.int8), None,
       one(512.0), zero(120), transA=1, transB=1, alpha=0.5),
    ms("QGemm", *kind(A.view(np.int8), 0.5, -9), B, PER_MAP, zero(0, np.int8),
       oracle="none", why="onnxruntime has no kernel for signed rows on this machine"),
    ms("QGemm", *kind(A, 0.5, 100), *kind(steps(np.uint8, 8, 4), 0.25, 120)),
    ms("QGemm", *kind(A[:0], 0.5, 100), *kind(B, 0.25, 0)),
    no("QGemm", *kind(A, 1, 0), *kind(A, 1, 0), match="inner dimensions differ"),
    no("QGemm", *kind(A, 1, 0), B, f32(3), zero(0, np.int8), match="columns of B"),
    no("QGemm", *kind(A, 1, 0), *kind(B, 1, 0), ints(np.int32, 3), match="C does not broadcast"),
    no("QGemm", *kind(A, 1, 0), *kind(B, 1, 0), None, None, zero(3), match="y_scale is not"),
    no("QGemm", *kind(U, 1, 0), *kind(B, 1, 0), match="A is a matrix"),
]  # fmt: skip
I4 = of([[-8, 7, 3], [0, 1, -5]], ml_dtypes.int4)
X = f32(3, 4, 5) * 4
CONVERT = [
    ms("QuantizeLinear", X, one(0.0625), zero(100)),
    ms("QuantizeLinear", X, one(0.0625)),
    ms("QuantizeLinear", X, np.full(4, 0.125, np.float32), ints(np.int8, 4), axis=1),
    ms("QuantizeLinear", X, np.full(4, 0.125, np.float32), ints(np.int8, 4)),
    ms("QuantizeLinear", X, np.full(3, 0.125, np.float32), ints(np.uint8, 3), axis=-3),
    ms("QuantizeLinear", X * 99, one(0.0625), zero(9, np.uint16)),
    ms("QuantizeLinear", X * 99, one(0.0625), zero(-9, np.int16)),
    ms("QuantizeLinear", X, one(0.5), zero(1, ml_dtypes.int4)),
    ms("QuantizeLinear", X, one(0.5), zero(3, ml_dtypes.uint4)),
    ms("QuantizeLinear", f16(3, 5), of(0.0625, np.float16), zero(3)),
    ms("DequantizeLinear", *kind(U, 0.0625, 100)),
    ms("DequantizeLinear", S, of([0.5, 2.0, 1.0]), ints(np.int8, 3), axis=1),
    ms("DequantizeLinear", ints(np.uint16, 2, 9, high=60000), one(0.5), zero(700, np.uint16)),
    ms("DequantizeLinear", ints(np.int16, 2, 9), one(0.5), zero(-700, np.int16)),
    ms("DequantizeLinear", ints(np.int32, 2, 9, low=-70000, high=70000), one(0.5)),
    ms("DequantizeLinear", I4, one(0.5), zero(1, ml_dtypes.int4)),
    ms("DequantizeLinear", of([[8, 7, 3], [0, 1, 15]], ml_dtypes.uint4), of([0.5, 2.0]),
       of([1, 3], ml_dtypes.uint4), axis=0),
    ms("DequantizeLinear", U, of(0.0625, np.float16), zero(100)),
    no("QuantizeLinear", X, f32(3), ints(np.int8, 3), axis=1, match="along axis 1"),
    no("QuantizeLinear", X, f32(3, 1), match="one number or a vector"),
    no("QuantizeLinear", X, one(1), axis=3, match="axis 3"),
    no("DequantizeLinear", U, f32(3), zero(1), axis=1, match="differ in rank"),
]  # fmt: skip

TOKENS, WEIGHT = steps(np.uint8, 2, 3, 8), steps(np.int8, 8, 24)


def attend(mask: Any = None, past: Any = None, **options: Any) -> Row:
    """Attention of 2 heads, 4 wide, over 2 sequences of 3 tokens."""
    scale, point = options.pop("weight", (one(2.0**-9), zero(0, np.int8)))
    return ms(
        "QAttention", options.pop("x", TOKENS), options.pop("w", WEIGHT), f32(24), one(2.0**-6),
        scale, None if mask is None else of(mask, np.int32), options.pop("zero", zero(120)), point,
        past, num_heads=2, ulps=32, **options,
    )  # fmt: skip


IDS = of([[1, 4, 2], [0, 3, 6]], np.int32)
SEGMENTS = of([[0, 0, 1], [1, 1, 0]], np.int32)


def embed(segments: Any = SEGMENTS, mask: Any = None, ids: Array = IDS, **options: Any) -> Row:
    """Embeddings of 7 words, 5 places and 2 segments, 8 wide."""
    has = segments is not None
    table = {k: options.pop(k, v) for k, v in (("words", (7, 8)), ("places", (5, 8)))}
    return (ms if "match" not in options else no)(
        "QEmbedLayerNormalization", ids, segments, steps(np.uint8, *table["words"]),
        steps(np.uint8, *table["places"]), steps(np.uint8, 2, 8) if has else None,
        steps(np.uint8, 8), steps(np.uint8, 8)[::-1].copy(),
        None if mask is None else of(mask, np.int32), one(0.03), one(0.02),
        one(0.01) if has else None,
        one(0.015), one(0.02), zero(120), zero(130), zero(100) if has else None, zero(3), zero(128),
        outputs=2, **options,
    )  # fmt: skip


TRANSFORMERS = [
    attend(),
    attend([2, 3]),
    attend([[1, 1, 0], [1, 1, 1]]),
    attend([2, 3, 1, 0]),
    attend(np.tril(np.ones((2, 3, 3)))),
    attend(unidirectional=1),
    attend(do_rotary=1),
    attend(past_present_share_buffer=1),
    attend(scale=0.3, mask_filter_value=-500.0, mask=[[1, 0, 1], [1, 1, 0]]),
    attend(past=f32(2, 2, 2, 4, 4), outputs=2),
    attend(past=f32(2, 2, 2, 4, 4), unidirectional=1, outputs=2),
    attend(outputs=2),
    attend(zero=None, weight=(one(2.0**-9), None)),
    attend(weight=(np.full(24, 2.0**-9, np.float32), np.zeros(24, np.int8))),
    attend(w=steps(np.uint8, 8, 24), weight=(one(2.0**-9), zero(120))),
    no("QAttention", TOKENS, WEIGHT, f32(24), one(1), f32(3), num_heads=2, match="columns"),
    no("QAttention", TOKENS, WEIGHT, f32(23), one(1), one(1), num_heads=2, match="bias"),
    no("QAttention", TOKENS, WEIGHT, f32(24), one(1), one(1), num_heads=5, match="heads"),
    no("QAttention", TOKENS, WEIGHT[:4], f32(24), one(1), one(1), num_heads=2, match="fit the inp"),
    embed(ulps=16),
    embed(None, ulps=16),
    embed(mask=[[1, 1, 0], [1, 1, 1]], epsilon=0.1, ulps=16),
    embed(mask=[[0, 0, 0], [0, 1, 0]], ulps=16),
    embed(ids=of([[1, 7, 2], [0, 3, 6]], np.int32), match="outside"),
    embed(ids=of([[1, -1, 2], [0, 3, 6]], np.int32), match="outside"),
    embed(SEGMENTS[:, :2], match="segment_ids has another shape"),
    embed(places=(2, 8), match="fewer positions"),
    embed(places=(5, 7), match="rows of position"),
]  # fmt: skip


def bnb4(rows: tuple[int, ...], k: int, n: int, block: int = 16, **options: Any) -> Row:
    """A product with weights of a table."""
    size = k if options.get("transB", 1) else n
    dtype = options.pop("dtype", np.float32)
    return ms(
        "MatMulBnb4", f32(*rows, size).astype(dtype), steps(np.uint8, (n * k + 1) // 2),
        np.abs(f32(-(-n * k // block))).astype(dtype), K=k, N=n, block_size=block,
        **{"quant_type": 1, "ulps": 32, **options},
    )  # fmt: skip


BNB = [
    bnb4((3,), 16, 5),
    bnb4((2, 3), 64, 32, block=64, quant_type=0),
    bnb4((), 33, 7),
    bnb4((4,), 32, 12, transB=0, oracle="none",
         why="onnxruntime reads turned weights all the same, and past their end"),
    bnb4((0,), 16, 4),
    bnb4((3,), 48, 20, dtype=np.float16),
    no("MatMulBnb4", f32(2, 8), steps(np.uint8, 8), f32(1), K=8, N=2, block_size=16, quant_type=2,
       match="quant_type is 2"),
    no("MatMulBnb4", f32(2, 8), steps(np.uint8, 7), f32(1), K=8, N=2, block_size=16, quant_type=1,
       match="B must have shape"),
    no("MatMulBnb4", f32(2, 8), steps(np.uint8, 8), f32(1), K=8, N=2, block_size=15, quant_type=1,
       match="power of two"),
    no("MatMulBnb4", f32(2, 7), steps(np.uint8, 8), f32(1), K=8, N=2, block_size=16, quant_type=1,
       match="last dim of A"),
]  # fmt: skip

EXPERTS, WIDTH, INNER = 3, 32, 16


def experts(
    name: str = "relu", *, rows: tuple[int, ...] = (5,), bits: int = 4, **options: Any
) -> Row:
    """A mixture of 3 experts, 32 wide, with 16 units each."""
    block, has_zeros = options.pop("block", 0), options.pop("zeros", False)
    fused = 2 if options.get("swiglu_fusion") else 1
    dtype = options.pop("dtype", np.float32)

    def layer(n: int, k: int) -> tuple[Any, ...]:
        shape = (EXPERTS, n, k // block) if block else (EXPERTS, n)
        scales = (np.abs(f32(*shape)) * 0.05 + 0.01).astype(dtype)
        packed = shape[-1] * bits // 8 if shape[-1] * bits % 8 == 0 else shape[-1] * bits // 8 + 1
        zeros = steps(np.uint8, *shape[:-1], packed) if has_zeros else None
        return (
            steps(np.uint8, EXPERTS, n, k * bits // 8),
            scales,
            f32(EXPERTS, n).astype(dtype),
            zeros,
        )

    (*first, first_zeros), (*second, second_zeros) = (
        layer(INNER * fused, WIDTH),
        layer(WIDTH, INNER),
    )
    *third, third_zeros = layer(INNER, WIDTH) if options.pop("fc3", False) else (None,) * 4
    tokens = int(np.prod(rows))
    shares = np.abs(f32(tokens, EXPERTS)).astype(dtype) if options.pop("shares", False) else None
    if not options.pop("bias", True):
        first[2] = second[2] = None
    if block:
        options["block_size"] = block
    return ms(
        "QMoE", f32(*rows, WIDTH).astype(dtype), f32(tokens, EXPERTS).astype(dtype), *first,
        *second,
        *third, first_zeros, second_zeros, third_zeros, shares, activation_type=name,
        expert_weight_bits=bits, **{"ulps": 64, **options},
    )  # fmt: skip


MIXED = [
    experts(),
    experts(rows=(2, 3), k=2, bits=8),
    experts("gelu", k=2, normalize_routing_weights=1),
    experts("silu", bias=False),
    experts("identity", k=3),
    experts("swiglu", swiglu_fusion=1, k=2),
    experts("swiglu", swiglu_fusion=1, activation_alpha=1.702, activation_beta=1.0,
            swiglu_limit=0.5, normalize_routing_weights=1, k=2),
    experts(block=16),
    experts(block=16, zeros=True, k=2),
    experts(zeros=True),
    experts(zeros=True, bits=8),
    experts(shares=True, k=2),
    experts(shares=True, k=2, normalize_routing_weights=1),
    experts(dtype=np.float16, ulps=8),
    experts("swiglu", swiglu_fusion=2, oracle="none", why=NO_KERNEL),
    experts("swiglu", fc3=True, oracle="none", why=NO_KERNEL),
    experts("silu", fc3=True, oracle="none", why=NO_KERNEL),
    experts(bits=2, oracle="none", why=NO_KERNEL),
    experts(bits=8, block=16, oracle="none", why="onnxruntime rounds its input to 8 bits here"),
    experts(rows=(0,), oracle="none", why="onnxruntime refuses no tokens"),
    *(
        Row(r.op, r.inputs, r.attrs, r.domain, fails=match)
        for r, match in (
            (experts("cube"), "cube"),
            (experts("swiglu"), "needs fc3_experts_weights"),
            (experts(k=4), "larger than the number of experts"),
            (experts(block=24), "power of two"),
            (experts(quant_type="fp8"), "quant_type is fp8"),
            (experts(use_sparse_mixer=1), "use_sparse_mixer"),
            (experts(bits=3), "2, 4 or 8"),
        )
    ),
    no("QMoE", f32(5, 32), f32(4, 3), *experts().inputs[2:], match="another number of rows"),
    no("QMoE", f32(5, 16), f32(5, 3), *experts().inputs[2:], match="fc1_experts_weights must"),
]  # fmt: skip


def lstm(
    *, r: tuple[int, ...] = (1, 6, 24), columns: tuple[int, ...] = (1,), **options: Any
) -> Row:
    """A quantized LSTM of 4 inputs and 6 cells whose parts may not fit."""
    return no(
        "DynamicQuantizeLSTM", f32(5, 3, 4), steps(np.int8, 1, 4, 24), steps(np.int8, *r), None,
        None,
        None, None, None, np.ones(columns, np.float32), np.zeros(columns, np.int8),
        np.ones(1, np.float32), np.zeros(1, np.int8), outputs=3, **options,
    )  # fmt: skip


PRODUCTS = [
    ms("DynamicQuantizeMatMul", f32(3, 8), B, PER_MAP, of([1, 0, -2, 3], np.int8), f32(4)),
    ms("DynamicQuantizeMatMul", f32(2, 3, 8), steps(np.uint8, 8, 4), one(0.5), zero(120)),
    ms("DynamicQuantizeMatMul", f32(0, 8), B, one(0.5), oracle="none", why="has no range there"),
    ms("DynamicQuantizeMatMul", f32(5, 67), steps(np.int8, 67, 33), one(0.5)),
    no("DynamicQuantizeMatMul", f32(3, 8), B, PER_MAP, None, f32(3), match="bias does not fit"),
    ms("MatMulIntegerToFloat", A, B, one(0.5), one(0.25)),
    ms("MatMulIntegerToFloat", A, steps(np.uint8, 8, 4), one(0.5), PER_MAP, zero(7), zero(9),
       f32(4)),
    ms("MatMulIntegerToFloat", A[:0], B, one(0.5), one(0.25)),
    ms("MatMulIntegerToFloat", steps(np.uint8, 2, 5, 67), steps(np.int8, 67, 33), one(0.5),
       one(2.0)),
    no("MatMulIntegerToFloat", A, A, one(0.5), one(0.25), match="inner dim"),
    no("MatMulIntegerToFloat", A, B, one(0.5), f32(3), match="b_scale does not fit"),
    lstm(r=(1, 5, 24), match="W does not fit"),
    lstm(columns=(2,), match="a scale or zero point does not fit"),
    lstm(hidden_size=7, match="hidden_size is not that of R"),
    lstm(direction="bidirectional", match="does not fit"),
    lstm(activations=["Cube", "Tanh", "Tanh"], match="Cube"),
]  # fmt: skip

CASES = [
    *PRODUCTS, *QA, *UNARY, *SOFTMAX, *POOL, *MOVES, *CONV, *GEMM, *CONVERT, *TRANSFORMERS, *BNB,
    *MIXED,
]  # fmt: skip
