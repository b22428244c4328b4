"""Cases of the SkipLayerNormalization ops."""

from __future__ import annotations

import numpy as np

from tests.op_cases import f32, ms, no

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
