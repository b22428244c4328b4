"""Cases of BifurcationDetector and NGramRepeatBlock."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tests.op_cases import case, f32, fails, i64, of

MS = {"domain": "com.microsoft"}


ngram: Any = functools.partial(case, "NGramRepeatBlock", **MS)


bifurcation: Any = functools.partial(case, "BifurcationDetector", outputs=2, **MS)


I64 = np.int64


def tokens(*numbers: int) -> Any:
    return of(numbers, I64)


OF_GENERATION = [
    *(
        ngram(of([[1, 2, 1, 2, 1], [0, 0, 3, 0, 0]], I64), f32(2, 4), ngram_size=n)
        for n in (1, 2, 3, 5, 6)
    ),
    ngram(i64(0, 3), f32(0, 4), ngram_size=2),
    ngram(np.zeros((2, 0), I64), f32(2, 4), ngram_size=2),
    fails("NGramRepeatBlock", of([[9, 1, 9]], I64), f32(1, 4), ngram_size=1, match="outside", **MS),
    fails("NGramRepeatBlock", of([[1]], I64), f32(1, 4), ngram_size=0, match="at least 1", **MS),
    bifurcation(tokens(1, 2, 3, 4), tokens(7), of(1, I64), tokens(2, 3, 9, 9)),
    bifurcation(tokens(1, 2, 3, 4), tokens(7), of(0, I64), tokens(1, 2, 3, 4, 5)),
    bifurcation(tokens(1, 2, 1, 3), tokens(5, 2, 1), of(0, I64)),
    bifurcation(tokens(1, 2, 1, 3), tokens(5, 1), of(0, I64), max_ngram_size=1),
    bifurcation(tokens(1, 2, 1, 3), tokens(2, 1), of(0, I64), min_ngram_size=2),
    bifurcation(tokens(1, 2), tokens(), of(0, I64)),
    fails(
        "BifurcationDetector",
        tokens(1, 2),
        tokens(1),
        of(0, I64),
        tokens(1),
        outputs=2,
        match="one for each",
        **MS,
    ),
    fails(
        "BifurcationDetector",
        tokens(1, 2),
        tokens(1),
        of(-3, I64),
        tokens(1, 2),
        outputs=2,
        match="one for each",
        **MS,
    ),
]


CASES = [
    *OF_GENERATION,
]
