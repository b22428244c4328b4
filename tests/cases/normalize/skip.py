"""Rows for the com.microsoft family."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.rows import Row, case, f32, fails

DOMAIN = "com.microsoft"


def ms(op: str, *inputs: Any, **options: Any) -> Row:
    """A row of this domain."""
    return case(op, *inputs, domain=DOMAIN, **options)


def no(op: str, *inputs: Any, match: str, **options: Any) -> Row:
    """A row of this domain that is refused."""
    return fails(op, *inputs, domain=DOMAIN, match=match, **options)


A, B = f32(3, 5), f32(5, 4)


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
    no("SkipSimplifiedLayerNormalization", f32(8), f32(8), G, match="rank 2 or 3"),
]


CASES = [
    *SKIP,
]
