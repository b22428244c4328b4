"""Rows for ops of com.microsoft, and old experiments, that become standard ops when loaded."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.rows import Row, case, f16, f32, fails, i64, ints, of

DOMAIN = "com.microsoft"
NOT_ON_CPU: dict[str, Any] = {"why": "onnxruntime has it on other devices only"}


def ms(op: str, *inputs: Any, **options: Any) -> Row:
    return case(op, *inputs, domain=DOMAIN, **options)


def no(op: str, *inputs: Any, match: str, **options: Any) -> Row:
    return fails(op, *inputs, domain=DOMAIN, match=match, **options)


def old(op: str, *inputs: Any, **options: Any) -> Row:
    """An op of the standard domain that later opsets do not have."""
    return case(op, *inputs, opset=7, **options)


def erf_gelu(x: Any) -> Any:
    from math import erf

    return x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def pairs(z: Any, dtype: Any = np.float32) -> Any:
    """Complex numbers as pairs in a last axis."""
    return np.stack((z.real, z.imag), axis=-1).astype(dtype)


def joined(x: Any) -> Any:
    return x[..., 0] + 1j * x[..., 1]


SAME = [
    ms("Trilu", f32(2, 3, 4), of(1, np.int64)),
    ms("Trilu", i64(3, 3), upper=0),
    ms("SampleOp", f32(2, 3)),
    ms("GatherND", f32(3, 4, 5), of([[0, 1], [2, 3]], np.int32)),
    ms("GatherND", i64(3, 4), of([[[1]], [[-1]]], np.int64)),
    ms("ExpandDims", f32(2, 3), of(1, np.int32)),
    ms("ExpandDims", f32(2, 3), of(-1, np.int32)),
    ms("Pad", f32(2, 3), of([1, 0, 0, 2], np.int64), of(3.0)),
    ms("Pad", f32(2, 3), of([0, -1, 1, 1], np.int64), of([3.0])),
    ms("Pad", f32(2, 3), of([[1, 0, 0, 2]], np.int64), mode="reflect"),
    ms("Pad", f32(2, 3), of([1, 0, 0, 2], np.int64), mode="edge"),
    ms("Range", of(1, np.int32), of(9, np.int32), of(3, np.int32)),
    ms("Range", of([1.0]), of([4.5])),
    ms("Range", of(4, np.int64), of([9], np.int64)),
    ms("Unique", of([2, 1, 1, 3, 4, 3]), outputs=3),
    ms("Unique", of([], np.float32), outputs=3),
    ms("GridSample", f32(1, 2, 4, 5), f32(1, 3, 3, 2), ulps=16),
    ms("GridSample", f32(1, 2, 4, 5), f32(1, 3, 3, 2), mode="nearest", padding_mode="border"),
    ms("GridSample", f32(1, 2, 4, 5), f32(1, 3, 3, 2), mode="bicubic", align_corners=1, ulps=64),
    ms("TransposeMatMul", f32(5, 3), f32(4, 5), transA=1, transB=1, alpha=0.3, ulps=16),
    no("ExpandDims", f32(2, 3), of(4, np.int32), match="axis 4"),
    no("GatherND", f32(3, 4), of([[3]], np.int32), match="3"),
    no("Trilu", f32(3), match="rank"),
]

X, BIAS = f32(2, 3, 8), f32(8)
SUM = X.astype(np.float64) + BIAS
GELU_TANH = 0.5 * SUM * (1 + np.tanh(np.sqrt(2 / np.pi) * (SUM + 0.044715 * SUM**3)))
ANGLES = f32(2, 5, 4)
TURNS = [f16(2, 3, 5, 4) * np.float16(k) for k in (1, 2, 3, 4)]
COS, SIN = (f(ANGLES.astype(np.float64))[:, None] for f in (np.cos, np.sin))
A, B = f32(3, 4, 2), f32(4, 2)
WAVE = f32(2, 3, 8)
PARTS = [
    ms("BiasAdd", X, BIAS, X * 2, expect=((SUM + X * 2).astype(np.float32),), **NOT_ON_CPU),
    no("BiasAdd", X, f32(7), X, match="broadcast"),
    ms(
        "BiasSplitGelu",
        X,
        BIAS,
        expect=((SUM[..., :4] * erf_gelu(SUM[..., 4:])).astype(np.float32),),
        **NOT_ON_CPU,
    ),
    no("BiasSplitGelu", f32(2, 3, 3), f32(3), match="reshape"),
    ms("BiasDropout", X, BIAS, outputs=2, oracle="none", **NOT_ON_CPU),
    ms("BiasDropout", X, BIAS, X, expect=((SUM + X).astype(np.float32),), **NOT_ON_CPU),
    ms(
        "BiasSoftmax",
        f32(2, 3, 4, 5),
        f32(2, 1, 1, 5),
        axis=3,
        is_inner_broadcast=1,
        expect=(softmax(f32(2, 3, 4, 5) + f32(2, 1, 1, 5)),),
        **NOT_ON_CPU,
    ),
    ms(
        "BiasSoftmax",
        f32(2, 3, 4),
        f32(1, 3, 4),
        is_inner_broadcast=0,
        expect=(softmax((f32(2, 3, 4) + f32(1, 3, 4)).reshape(2, 12)).reshape(2, 3, 4),),
        **NOT_ON_CPU,
    ),
    ms(
        "GemmFastGelu",
        X,
        np.eye(8, dtype=np.float32),
        BIAS,
        ulps=16,
        expect=(GELU_TANH.astype(np.float32),),
        **NOT_ON_CPU,
    ),
    ms(
        "GemmaRotaryEmbedding",
        ANGLES,
        *TURNS,
        outputs=2,
        ulps=8,
        expect=tuple(
            (x * COS + turned * SIN).astype(np.float16) for x, turned in (TURNS[:2], TURNS[2:])
        ),
        **NOT_ON_CPU,
    ),
    ms("ComplexMul", A, B, expect=(pairs(joined(A) * joined(B)),), **NOT_ON_CPU),
    ms("ComplexMulConj", A, B, expect=(pairs(joined(A) * joined(B).conj()),), **NOT_ON_CPU),
    no("ComplexMul", f32(3, 3), f32(3, 3), match="do not add up"),
    ms("IsAllFinite", X, f32(0), f16(3), expect=(of(True, bool),), **NOT_ON_CPU),
    ms("IsAllFinite", X, of([1, np.nan]), expect=(of(False, bool),), **NOT_ON_CPU),
    ms("IsAllFinite", of([np.inf]), isnan_only=1, expect=(of(True, bool),), **NOT_ON_CPU),
    ms("IsAllFinite", of([np.nan]), isinf_only=1, expect=(of(True, bool),), **NOT_ON_CPU),
    ms("Rfft", WAVE, expect=(pairs(np.fft.rfft(WAVE)),), **NOT_ON_CPU),
    ms("Rfft", WAVE, signal_ndim=2, ulps=8, expect=(pairs(np.fft.rfft2(WAVE)),), **NOT_ON_CPU),
    ms("Irfft", pairs(np.fft.rfft(WAVE)), signal_ndim=1, ulps=8, expect=(WAVE,), **NOT_ON_CPU),
    ms("Irfft", pairs(np.fft.rfft2(WAVE)), signal_ndim=2, ulps=8, expect=(WAVE,), **NOT_ON_CPU),
    no("Irfft", f32(2, 5, 2), signal_ndim=4, match="signal_ndim is 4"),
    no("Rfft", WAVE, onesided=0, match="one-sided"),
]

GATES = f32(2, 3, 12)
GATED = [
    ms("GatedAdd", X, X * 2, f32(2, 3, 1)),
    ms("GatedAdd", f16(2, 3, 8), f16(2, 3, 8), f16(2, 3, 1)),
    ms("ScaledSiLU", X, alpha=0.3, ulps=8),
    ms("ScaledSiLU", X, of(1.7), ulps=8),
    ms("ScaledSiLU", f16(2, 7), of(0.5), ulps=8),
    ms("LinearAttentionGate", f32(2, 3, 4), f32(4), f32(4), f32(2, 3, 4), outputs=2, ulps=8),
    ms("LinearAttentionGate", f16(2, 3, 4), f32(4), f32(4), ulps=8),
    ms("GatedRMSNorm", GATES, f32(4), GATES * 2, ulps=16),
    ms("GatedRMSNorm", GATES, f32(12), GATES, activation="sigmoid", epsilon=0.1, ulps=16),
    ms("GatedRMSNorm", f16(5, 8), f16(8), f16(5, 8), activation="swish", ulps=8),
    ms(
        "TorchEmbedding",
        *(f32(5, 3), i64(2, 3, low=0, high=5)),
        expect=(f32(5, 3)[i64(2, 3, low=0, high=5)],),
        **NOT_ON_CPU,
    ),
    no("GatedRMSNorm", GATES, f32(5), GATES, match="reshape"),
    no("GatedRMSNorm", GATES, f32(4), GATES, activation="relu", match="none of silu"),
    no("LinearAttentionGate", f32(2, 4), f32(4), f32(4), outputs=2, match="missing"),
]

NORM = {"K": 32, "block_size": 16}


def fields(rows: int, seed: int) -> tuple[Any, Any, Any]:
    """Weights of 4 bits, [rows, 32] in blocks of 16; their scales; and what they stand for."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, 16, (rows, 2, 16))
    scales = rng.uniform(0.01, 0.1, (rows, 2)).astype(np.float32)
    packed = (numbers[..., ::2] | numbers[..., 1::2] << 4).astype(np.uint8)
    return packed, scales, ((numbers - 8) * scales[..., None]).reshape(rows, 32)


def rms(x: Any, scale: Any, epsilon: float) -> Any:
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + epsilon) * scale


LINE, SKIP, SCALE = f32(2, 3, 32), f32(2, 3, 32) * 2, f32(32)
Q4, K4, V4 = fields(8, 1), fields(4, 2), fields(4, 3)
BOTH = (LINE + SKIP).astype(np.float64)
BOTH_NORMAL = rms(BOTH, SCALE, 1e-6)
GATE, UP = (LINE.astype(np.float64) @ w[2].T for w in (K4, V4))
SHORTS = ints(np.int16, 3, 5, low=-3000, high=3000), ints(np.int16, 5, 4, low=-3000, high=3000)
BYTES = ints(np.uint8, 2, 3, high=200), ints(np.uint8, 3, high=200)
FUSED = [
    ms(
        "MatMulNBitsQkv",
        *(LINE, SKIP, SCALE, *Q4[:2], None, *K4[:2], f32(4), *V4[:2]),
        outputs=4,
        ulps=32,
        attrs=NORM,
        Nq=8,
        Nkv=4,
        expect=(
            *((BOTH_NORMAL @ Q4[2].T).astype(np.float32),),
            *((BOTH_NORMAL @ K4[2].T + f32(4)).astype(np.float32),),
            *((BOTH_NORMAL @ V4[2].T).astype(np.float32), BOTH.astype(np.float32)),
        ),
        **NOT_ON_CPU,
    ),
    ms(
        "MatMulNBitsMlp",
        *(LINE, None, None, *K4[:2], None, *V4[:2]),
        N=4,
        activation="silu",
        ulps=32,
        attrs=NORM,
        expect=((GATE / (1 + np.exp(-GATE)) * UP).astype(np.float32),),
        **NOT_ON_CPU,
    ),
    no(
        "MatMulNBitsMlp",
        *(LINE, SKIP, None, *K4[:2], None, *V4[:2]),
        N=4,
        activation="silu",
        match="norm_scale is missing",
        attrs=NORM,
    ),
    no(
        "MatMulNBitsMlp",
        *(LINE, None, None, *K4[:2], None, *V4[:2]),
        N=4,
        activation="tanh",
        match="none of silu",
        attrs=NORM,
    ),
    no(
        "MatMulNBitsMlp",
        *(LINE, None, SCALE, *K4[:2], None, *V4[:2]),
        N=4,
        activation="silu",
        outputs=2,
        match="skip, which is missing",
        attrs=NORM,
    ),
    ms("MatMulInteger16", *SHORTS),
    ms(
        "MulInteger",
        *(BYTES[0], of(7, np.uint8), BYTES[1]),
        expect=((BYTES[0].astype(np.int32) - 7) * BYTES[1],),
        **NOT_ON_CPU,
    ),
    ms(
        "ReduceSumInteger",
        BYTES[0],
        axes=[1],
        keepdims=0,
        expect=(BYTES[0].sum(1, dtype=np.int32),),
        **NOT_ON_CPU,
    ),
    ms(
        "BitmaskDropout",
        f32(3, 11),
        outputs=2,
        expect=(f32(3, 11), of([2**32 - 1, 1], np.uint32)),
        **NOT_ON_CPU,
    ),
    ms("BitmaskDropout", f32(3, 9), expect=(f32(3, 9),), **NOT_ON_CPU),
    ms("BitmaskBiasDropout", f32(3, 9), f32(9), f32(3, 9), outputs=2, oracle="none", **NOT_ON_CPU),
]

IMAGE = f32(2, 3, 5, 6)
OLD = [
    old("Affine", f32(5), alpha=2.0, beta=0.5),
    old("Affine", f32(2, 3)),
    old("Scale", f32(2, 3), scale=2.5),
    old("ScaledTanh", f32(7), alpha=1.5, beta=0.7),
    old("ParametricSoftplus", f32(7), alpha=1.5, beta=0.7),
    old("ImageScaler", IMAGE, scale=2.0, bias=[1.0, -2.0, 0.5]),
    old("Crop", IMAGE, border=[1, 0, 2, 1]),
    old("Crop", IMAGE, border=[1, 2, 0, 0], scale=[2, 3]),
    old("DynamicSlice", IMAGE, of([1, 0], np.int64), of([3, -1], np.int64), of([3, 2], np.int64)),
    old("DynamicSlice", f32(3, 4), of([0, 1], np.int32), of([-1, 1000], np.int32)),
    fails("ScaledTanh", f32(7), alpha=1.5, opset=7, match="needs the attribute beta"),
    fails("Crop", IMAGE, border=[1], opset=7, match="has 4 numbers"),
]

CASES = [*SAME, *PARTS, *FUSED, *GATED, *OLD]
