"""Rows for the com.microsoft family."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.rows import Array, Row, bf16, case, f16, f32, f64, fails, ints, of

DOMAIN = "com.microsoft"
BYTES = {np.int8: (-100, 100), np.uint8: (0, 255)}


def ms(op: str, *inputs: Any, **options: Any) -> Row:
    """A row of this domain."""
    return case(op, *inputs, domain=DOMAIN, **options)


def no(op: str, *inputs: Any, match: str, **options: Any) -> Row:
    """A row of this domain that is refused."""
    return fails(op, *inputs, domain=DOMAIN, match=match, **options)


def weights(dtype: Any, *shape: int) -> Array:
    """8-bit weights over most of their range."""
    low, high = BYTES[dtype]
    return ints(dtype, *shape, low=low, high=high)


def strings(*texts: Any) -> Array:
    return of(texts, object)


def cut(*texts: Any, mark: int = 0, mincharnum: int = 1, **options: Any) -> Row:
    """Strings to cut, padded with #."""
    return ms(
        "Tokenizer", strings(*texts), mark=mark, mincharnum=mincharnum, pad_value="#", **options
    )


def lstm(dtype: Any, *, batch: int = 3, per_column: bool = False, **options: Any) -> Row:
    """A quantized LSTM of 4 inputs and 6 cells."""
    n = 2 if options.get("direction") == "bidirectional" else 1
    lens = options.pop("lens", None)
    shape = (n, 24) if per_column else (n,)
    zero = np.zeros(shape, dtype) if per_column else ints(dtype, *shape, low=0, high=3)
    state = f32(n, batch, 6)
    return ms(
        "DynamicQuantizeLSTM",
        f32(5, batch, 4),
        weights(dtype, n, 4, 24),
        weights(dtype, n, 6, 24),
        f32(n, 48),
        None if lens is None else of(lens, np.int32),
        state,
        state * np.float32(0.5),
        f32(n, 18) if options.pop("peepholes", False) else None,
        np.full(shape, 0.01, np.float32),
        zero,
        np.full(shape, 0.008, np.float32),
        zero,
        hidden_size=6,
        outputs=3,
        ulps=64,
        why="a step of the quantizer may fall either way",
        **options,
    )


X, W = f32(1, 2, 5, 6), f32(3, 2, 3, 3)
CONV = [
    ms("FusedConv", X, W, activation="Relu", ulps=16),
    ms("FusedConv", X, W, f32(3), activation="Tanh", pads=[1, 1, 1, 1], strides=[2, 1], ulps=16),
    ms("FusedConv", X, W, f32(3), activation="Sigmoid", auto_pad="SAME_UPPER", ulps=16),
    ms("FusedConv", X, W, None, f32(1, 3, 3, 4), activation="Relu", ulps=16),
    ms("FusedConv", X, W, activation="LeakyRelu", activation_params=[0.1], ulps=16),
    ms("FusedConv", X, W, activation="Clip", activation_params=[-1.0, 1.0], ulps=16),
    ms("FusedConv", X, W, activation="HardSigmoid", activation_params=[0.2, 0.4], ulps=16),
    ms("FusedConv", X, W, activation="HardSwish", ulps=16),
    ms("FusedConv", X, f32(2, 1, 3, 3), group=2, dilations=[2, 1], activation="Relu", ulps=16),
    ms("FusedConv", f16(1, 2, 5, 6), f16(3, 2, 3, 3), activation="Relu", oracle="none"),
    no("FusedConv", X, W, activation="LeakyRelu", match="needs a value for alpha"),
    no("FusedConv", X, W, activation="Cube", match="Cube"),
    no("FusedConv", X, W, None, f32(1, 3, 1, 1), activation="Relu", match="Z has another shape"),
]

A, B = f32(3, 5), f32(5, 4)
SETTINGS = {"activation_alpha": 0.3, "activation_beta": 0.6, "activation_gamma": 1.2}
GEMM = [
    ms("FusedGemm", A, B, activation="Relu", ulps=16),
    ms("FusedGemm", A, B, f32(4), activation="Sigmoid", alpha=0.5, beta=2.0, ulps=16),
    ms("FusedGemm", A.T.copy(), B.T.copy(), activation="Tanh", transA=1, transB=1, ulps=16),
    *(
        ms("FusedGemm", A, B, activation=name, ulps=16, **SETTINGS)
        for name in (
            "Elu",
            "HardSigmoid",
            "LeakyRelu",
            "Selu",
            "Softplus",
            "Softsign",
            "ThresholdedRelu",
            "Celu",
            "ParametricSoftplus",
            "ScaledTanh",
        )
    ),
    ms("FusedGemm", f64(3, 5), f64(5, 4), activation="Relu", oracle="none"),
    ms("FusedMatMul", f32(2, 3, 5), f32(5, 4), alpha=0.3, ulps=16),
    ms("FusedMatMul", f32(2, 5, 3), f32(2, 4, 5), transA=1, transB=1, ulps=16),
    ms("FusedMatMul", f32(3, 2, 5), f32(2, 5, 4), transBatchA=1, ulps=16),
    ms("FusedMatMul", f32(3, 2, 5), f32(3, 2, 4), transBatchA=1, transBatchB=1, transA=1, ulps=16),
    ms("FusedMatMul", f32(3, 2, 7, 5), f32(2, 7, 5, 4), transBatchA=1, ulps=16),
    ms("FusedMatMul", f32(5), f32(5, 4), transA=1, ulps=16),
    ms("FusedMatMul", f32(0, 5), f32(5, 4)),
    ms("FusedMatMul", bf16(3, 5), bf16(5, 4), oracle="none"),
    no("FusedMatMul", f32(3, 5), f32(4, 5), match="inner dimensions differ"),
    no("FusedMatMul", f32(3, 5), f32(5, 4), transBatchA=1, match="3 dims or more"),
    no("FusedGemm", A, B, activation="Selu", match="alpha and gamma"),
]

GELU = [
    ms("Gelu", f32(3, 7)),
    ms("Gelu", of([np.nan, np.inf, -np.inf, 0.0, -5.0, 90.0]), oracle="none"),
    ms("Gelu", f16(3, 7), oracle="none"),
    ms("FastGelu", f32(3, 7), ulps=8),
    ms("FastGelu", f32(2, 3, 7), f32(7), ulps=8),
    ms("BiasGelu", f32(2, 3, 7), f32(7), ulps=8),
    ms("BiasGelu", f32(0, 7), f32(7)),
    ms("QuickGelu", f32(3, 7), ulps=8),
    ms("QuickGelu", f32(3, 7), alpha=1.0, ulps=8),
    no("BiasGelu", f32(2, 7), f32(6), match="does not fit the last dim"),
    no("FastGelu", f32(2, 7), f32(2, 7), match="one vector"),
]

TOKENS, G = f32(2, 3, 8), f32(8)
SKIP = [
    ms(
        "SkipLayerNormalization",
        TOKENS,
        f32(2, 3, 8) * 2,
        G,
        f32(8) * 3,
        f32(8),
        outputs=4,
        ulps=16,
    ),
    ms("SkipLayerNormalization", TOKENS, f32(1, 3, 8), G, outputs=1, ulps=16),
    ms(
        "SkipLayerNormalization",
        TOKENS,
        f32(3, 8),
        G,
        None,
        f32(8),
        epsilon=0.1,
        outputs=1,
        ulps=16,
    ),
    ms("SkipLayerNormalization", f32(3, 8), f32(3, 8) * 2, G, ulps=16),
    ms(
        "SkipLayerNormalization",
        *(x.astype(np.float16) for x in (TOKENS, TOKENS, G)),
        outputs=1,
        ulps=8,
    ),
    ms("SkipSimplifiedLayerNormalization", TOKENS, f32(3, 8), G, f32(8), ulps=16),
    ms("SkipSimplifiedLayerNormalization", TOKENS, TOKENS, G, epsilon=1e-5, ulps=16),
    no("SkipLayerNormalization", TOKENS, f32(2, 1, 8), G, match="last two dims"),
    no("SkipLayerNormalization", TOKENS, TOKENS, f32(7), match="does not fit the last dim"),
    no("SkipSimplifiedLayerNormalization", f32(8), f32(8), G, match="rank 1"),
]

QUANTIZED = [
    ms("DynamicQuantizeMatMul", f32(2, 3, 5), weights(np.int8, 5, 4), of(0.1)),
    ms(
        "DynamicQuantizeMatMul",
        f32(3, 5),
        weights(np.uint8, 5, 4),
        np.abs(f32(4)),
        ints(np.uint8, 4, low=100, high=130),
        f32(4),
    ),
    ms("DynamicQuantizeMatMul", np.zeros((3, 5), np.float32), weights(np.int8, 5, 4), of(0.1)),
    ms("DynamicQuantizeMatMul", np.abs(f32(3, 5)) + 2, weights(np.int8, 5, 4), of([0.1])),
    ms(
        "MatMulIntegerToFloat",
        weights(np.uint8, 3, 5),
        weights(np.int8, 5, 4),
        of(0.1),
        np.abs(f32(4)),
        of(120, np.uint8),
        ints(np.int8, 4),
        f32(4),
    ),
    ms("MatMulIntegerToFloat", weights(np.int8, 2, 3, 5), weights(np.int8, 5, 4), of(0.1), of(0.2)),
    no("DynamicQuantizeMatMul", f32(3, 5), weights(np.int8, 4, 4), of(0.1), match="inner dim"),
    no("DynamicQuantizeMatMul", f32(3, 5), weights(np.int8, 5, 4), f32(3), match="columns of B"),
    lstm(np.int8),
    lstm(np.uint8, batch=1),
    lstm(np.int8, direction="bidirectional"),
    lstm(np.int8, direction="reverse", per_column=True),
    lstm(np.int8, batch=1, peepholes=True, clip=0.5),
    lstm(np.int8, batch=1, input_forget=1),
    lstm(np.int8, batch=1, lens=[3]),
]

TOKENIZER = [
    cut("Hello World", "I love  computer science !", separators=[" "]),
    cut("Hello World", "I love  computer science !", separators=[" "], mark=1),
    cut(["a b", "c"], ["d e f", ""], separators=[" "]),
    cut("ab", "cé", "", separators=[""]),
    cut("ab", "cé", "", separators=[""], mark=1),
    cut(" ", " ", separators=[" "], mark=1),
    cut("abc--def-g", separators=["--", "-"]),
    cut("aXbcXXd", separators=["X+"], mincharnum=2),
    cut("xaby", separators=["a|ab"]),
    cut("aXbXc", separators=["X", "^b"]),
    cut("éaXXéb", separators=["X*"]),
    cut("Hello, World a", tokenexp="[a-zA-Z0-9_]+"),
    cut("Hello, World a", "é", tokenexp="[a-z]*", mincharnum=2),
    cut("aab abc", tokenexp="a|ab|abc"),
    cut("aéb", tokenexp="."),
    cut("abcab", tokenexp="^ab"),
    cut("..a", "!", tokenexp="[a-z]+", mark=1),
    no("Tokenizer", strings("a"), mark=0, mincharnum=1, pad_value="#", match="has neither"),
    no(
        "Tokenizer",
        strings("a"),
        mark=0,
        mincharnum=1,
        pad_value="#",
        tokenexp="(",
        match="no regular expression",
    ),
    no(
        "Tokenizer",
        strings("a"),
        mark=0,
        mincharnum=2,
        pad_value="#",
        separators=[""],
        match="mincharnum 2",
    ),
]

CASES = [*CONV, *GEMM, *GELU, *SKIP, *QUANTIZED, *TOKENIZER]
