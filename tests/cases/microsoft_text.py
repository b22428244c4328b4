"""Rows of the ops over tokens, and of products of 8-bit floats."""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto as T

from tests.rows import case, f16, f32, fails, i64, of

MS = {"domain": "com.microsoft"}
ngram: Any = functools.partial(case, "NGramRepeatBlock", **MS)
bifurcation: Any = functools.partial(case, "BifurcationDetector", outputs=2, **MS)
I64 = np.int64
E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2


def tokens(*numbers: int) -> Any:
    return of(numbers, I64)


WORDS = of([[3, 2, 7, 5, 1], [6, 6, 0, 0, 0], [4, 0, 0, 0, 0]], np.int32)
FILTERS = (f32(5, 1, 2, 4), f32(5), f32(8, 4))


def gemm8(a: Any, b: Any, *rest: Any, **options: Any) -> Any:
    return case("GemmFloat8", a, b, *rest, **MS, **options)


A, B = f32(3, 4), f32(4, 5)
A8, B8 = A.astype(E4M3), B.astype(E5M2)
PRODUCT = A8.astype(np.float32) @ B8.astype(np.float32)

CASES = [
    *(ngram(of([[1, 2, 1, 2, 1], [0, 0, 3, 0, 0]], I64), f32(2, 4), ngram_size=n)
      for n in (1, 2, 3, 5, 6)),
    ngram(i64(0, 3), f32(0, 4), ngram_size=2),
    ngram(np.zeros((2, 0), I64), f32(2, 4), ngram_size=2),
    fails("NGramRepeatBlock", of([[9, 1, 9]], I64), f32(1, 4), ngram_size=1, match="outside", **MS),
    fails("NGramRepeatBlock", of([[1]], I64), f32(1, 4), ngram_size=0, match="1 or more", **MS),
    bifurcation(tokens(1, 2, 3, 4), tokens(7), of(1, I64), tokens(2, 3, 9, 9)),
    bifurcation(tokens(1, 2, 3, 4), tokens(7), of(0, I64), tokens(1, 2, 3, 4, 5)),
    bifurcation(tokens(1, 2, 1, 3), tokens(5, 2, 1), of(0, I64)),
    bifurcation(tokens(1, 2, 1, 3), tokens(5, 1), of(0, I64), max_ngram_size=1),
    bifurcation(tokens(1, 2, 1, 3), tokens(2, 1), of(0, I64), min_ngram_size=2),
    bifurcation(tokens(1, 2), tokens(), of(0, I64)),
    fails("BifurcationDetector", tokens(1, 2), tokens(1), of(0, I64), tokens(1), outputs=2,
          match="one for each", **MS),
    fails("BifurcationDetector", tokens(1, 2), tokens(1), of(-3, I64), tokens(1, 2), outputs=2,
          match="one for each", **MS),
    case("WordConvEmbedding", WORDS, *FILTERS, **MS),
    case("WordConvEmbedding", WORDS, *FILTERS, embedding_size=5, conv_window_size=2,
         char_embedding_size=4, **MS),
    case("WordConvEmbedding", of([[0, 0]], np.int32), *FILTERS, expect=(np.zeros((1, 5), "f"),),
         why="onnxruntime leaves rows of no word as they were in memory", **MS),
    fails("WordConvEmbedding", of([[1, 9]], np.int32), *FILTERS, match="outside", **MS),
    fails("WordConvEmbedding", of([[1]], np.int32), *FILTERS, match="windows of 2", **MS),
    fails("WordConvEmbedding", WORDS, *FILTERS, embedding_size=6, match="embedding_size", **MS),
    gemm8(A8, B8, None, of([2.0]), of([0.5]), expect=(PRODUCT,)),
    gemm8(A8.T.copy(), B8.T.copy(), transA=1, transB=1, alpha=2.0, expect=(2 * PRODUCT,)),
    gemm8(A, B, f32(5), beta=0.5, activation="RELU", expect=(np.maximum(A @ B + f32(5) / 2, 0),)),
    gemm8(A8, B8, dtype=T.FLOAT8E4M3FN, expect=(PRODUCT.astype(E4M3),)),
    gemm8(f16(2, 3), f16(3, 2), dtype=T.FLOAT16,
          expect=((f16(2, 3).astype("f") @ f16(3, 2).astype("f")).astype(np.float16),)),
    fails("GemmFloat8", A, B, activation="TANH", match="NONE, RELU or GELU", **MS),
    fails("GemmFloat8", A, B, dtype=7, match="float of 8 to 32 bits", **MS),
]  # fmt: skip
