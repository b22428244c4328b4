"""Cases of QEmbedLayerNormalization.

Scales are powers of two, so that sums are exact, and zero points of results even: onnxruntime
rounds some results before it adds the zero point and some after, which is the same but for a half
and an odd zero point. tests/test_qlinear.py has scales and zero points of any kind.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.op_cases import Array, Case, codes, ms, no, of, zero

IDS = of([[1, 4, 2], [0, 3, 6]], np.int32)


SEGMENTS = of([[0, 0, 1], [1, 1, 0]], np.int32)


def embed(segments: Any = SEGMENTS, mask: Any = None, ids: Array = IDS, **options: Any) -> Case:
    """Embeddings of 7 words, 5 places and 2 segments, 8 wide."""
    has = segments is not None
    table = {k: options.pop(k, v) for k, v in (("words", (7, 8)), ("places", (5, 8)))}
    return (ms if "match" not in options else no)(
        "QEmbedLayerNormalization", ids, segments, codes(np.uint8, *table["words"]),
        codes(np.uint8, *table["places"]), codes(np.uint8, 2, 8) if has else None,
        codes(np.uint8, 8), codes(np.uint8, 8)[::-1].copy(),
        None if mask is None else of(mask, np.int32), of(0.03), of(0.02),
        of(0.01) if has else None,
        of(0.015), of(0.02), zero(120), zero(130), zero(100) if has else None, zero(3), zero(128),
        outputs=2, **options,
    )  # fmt: skip


TRANSFORMERS_NORMALIZE = [
    embed(ulps=16),
    embed(None, ulps=16),
    embed(mask=[[1, 1, 0], [1, 1, 1]], epsilon=0.1, ulps=16),
    embed(mask=[[0, 0, 0], [0, 1, 0]], ulps=16),
    embed(ids=of([[1, 7, 2], [0, 3, 6]], np.int32), match="outside"),
    embed(ids=of([[1, -1, 2], [0, 3, 6]], np.int32), match="outside"),
    embed(SEGMENTS[:, :2], match="segment_ids must have shape"),
    embed(places=(2, 8), match="fewer rows"),
    embed(places=(5, 7), match="position_embedding has rows"),
]


CASES = [
    *TRANSFORMERS_NORMALIZE,
]
