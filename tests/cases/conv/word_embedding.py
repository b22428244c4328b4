"""Cases of WordConvEmbedding."""

from __future__ import annotations

import numpy as np

from tests.op_cases import case, f32, fails, of

MS = {"domain": "com.microsoft"}


WORDS = of([[3, 2, 7, 5, 1], [6, 6, 0, 0, 0], [4, 0, 0, 0, 0]], np.int32)


FILTERS = (f32(5, 1, 2, 4), f32(5), f32(8, 4))


OF_CONV = [
    case("WordConvEmbedding", WORDS, *FILTERS, **MS),
    case(
        "WordConvEmbedding",
        WORDS,
        *FILTERS,
        embedding_size=5,
        conv_window_size=2,
        char_embedding_size=4,
        **MS,
    ),
    case(
        "WordConvEmbedding",
        of([[0, 0]], np.int32),
        *FILTERS,
        expect=(np.zeros((1, 5), "f"),),
        why="onnxruntime leaves rows of no word as they were in memory",
        **MS,
    ),
    fails("WordConvEmbedding", of([[1, 9]], np.int32), *FILTERS, match="outside", **MS),
    fails("WordConvEmbedding", of([[1]], np.int32), *FILTERS, match="windows of 2", **MS),
    fails("WordConvEmbedding", WORDS, *FILTERS, embedding_size=6, match="embedding_size", **MS),
]


CASES = [
    *OF_CONV,
]
