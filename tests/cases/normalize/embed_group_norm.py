"""Cases of EmbedLayerNormalization, GroupNorm and SkipGroupNorm."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.op_cases import Case, f16, f32, ints, ms, no, of

NOT_ON_CPU: dict[str, Any] = {"oracle": "none", "why": "onnxruntime has it on other devices only"}


def ids(*shape: int, high: int) -> Any:
    return ints(np.int32, *shape, low=0, high=high)


WORDS, PLACES, KINDS = f32(11, 8), f32(6, 8) * 2, f32(3, 8) * 3


ROWS = (f32(8), f32(8) * 2)


MASK = of([[1, 1, 1, 0, 0], [0, 1, 2, 1, 1]], np.int32)


TEXT = ids(2, 5, high=11)


def embed(*inputs: Any, **options: Any) -> Case:
    return ms("EmbedLayerNormalization", *inputs, ulps=16, outputs=2, **options)


def no_embed(*inputs: Any, match: str) -> Case:
    return no("EmbedLayerNormalization", *inputs, match=match)


EMBED = [
    embed(TEXT, ids(2, 5, high=3), WORDS, PLACES, KINDS, *ROWS, MASK),
    embed(TEXT, None, WORDS, PLACES, None, *ROWS, MASK, epsilon=0.1),
    embed(TEXT, None, WORDS, PLACES, None, *ROWS),
    embed(TEXT, None, WORDS, PLACES, None, *ROWS, None, ids(2, 5, high=6), mask_index_type=0),
    embed(TEXT, None, WORDS, PLACES, None, *ROWS, None, ids(1, 5, high=6)),
    ms(
        "EmbedLayerNormalization",
        *(TEXT, ids(2, 5, high=3), WORDS, PLACES, KINDS, *ROWS, MASK),
        outputs=3,
        ulps=16,
    ),
    embed(ids(1, 6, high=11), None, WORDS, PLACES, None, *ROWS),
    embed(ids(0, 5, high=11), None, WORDS, PLACES, None, *ROWS),
    embed(TEXT, None, f16(11, 8), f16(6, 8), None, f16(8), f16(8), **NOT_ON_CPU),
    no_embed(of([[11]], np.int32), None, WORDS, PLACES, None, *ROWS, match="11"),
    no_embed(of([[-1]], np.int32), None, WORDS, PLACES, None, *ROWS, match="outside"),
    no_embed(ids(1, 7, high=9), None, WORDS, PLACES, None, *ROWS, match="fewer rows"),
    no_embed(TEXT, TEXT, WORDS, PLACES, None, *ROWS, match="go together"),
    no_embed(TEXT, None, WORDS, f32(6, 7), None, *ROWS, match="position_embedding"),
    no_embed(TEXT, None, WORDS, PLACES, None, f32(7), f32(8), match="gamma"),
    no_embed(TEXT, None, WORDS, PLACES, None, *ROWS, f32(2, 4).astype(np.int32), match="mask"),
]


IMAGE = f32(2, 3, 5, 8)


def normal(x: Any, groups: int, *, silu: bool, last: bool = True) -> Any:
    """What GroupNorm makes of an image with ROWS for its channels, in float64."""
    images = np.moveaxis(x, -1, 1) if last else x
    parts = images.astype(np.float64).reshape(len(x), groups, -1)
    y = (parts - parts.mean(-1, keepdims=True)) / np.sqrt(parts.var(-1, keepdims=True) + 1e-5)
    y = y.reshape(images.shape) * ROWS[0][:, None, None] + ROWS[1][:, None, None]
    y = y / (1 + np.exp(-y)) if silu else y
    return (np.moveaxis(y, 1, -1) if last else y).astype(np.float32)


def grouped(*inputs: Any, x: Any = IMAGE, **options: Any) -> Case:
    name = "SkipGroupNorm" if inputs else "GroupNorm"
    options = {"activation": 0, "groups": 2, "ulps": 16, **options}
    return ms(name, x, *ROWS, *inputs, **{**NOT_ON_CPU, **options})


FIRST = np.ascontiguousarray(np.moveaxis(IMAGE, -1, 1))


SKIPS = (f32(2, 3, 5, 8) * 2, f32(2, 1, 1, 8), f32(2, 8))


GROUP_NORM = [
    grouped(expect=(normal(IMAGE, 2, silu=False),)),
    grouped(activation=1, groups=4, expect=(normal(IMAGE, 4, silu=True),)),
    grouped(x=FIRST, channels_last=0, expect=(normal(FIRST, 2, silu=False, last=False),)),
    grouped(x=f16(2, 3, 5, 8), activation=1, ulps=8),
    grouped(x=f32(0, 3, 5, 8)),
    grouped(
        SKIPS[0], outputs=2, expect=(normal(IMAGE + SKIPS[0], 2, silu=False), IMAGE + SKIPS[0])
    ),
    grouped(SKIPS[1], ROWS[0], expect=(normal(IMAGE + SKIPS[1] + ROWS[0], 2, silu=False),)),
    grouped(SKIPS[2], activation=1, outputs=2),
    grouped(f32(2, 8), ROWS[0], x=FIRST, channels_last=0, outputs=2),
    no("GroupNorm", IMAGE, *ROWS, activation=0, groups=3, match="groups must divide"),
    no("GroupNorm", IMAGE, *ROWS, activation=2, groups=2, match="activation must be .*got 2"),
    no("GroupNorm", f32(2, 3, 8), *ROWS, activation=0, groups=2, match="rank 4"),
    no("SkipGroupNorm", IMAGE, *ROWS, f32(2, 3, 4, 8), activation=0, groups=2, match="skip"),
    no("SkipGroupNorm", IMAGE, *ROWS, f32(2, 7), activation=0, groups=2, match="skip"),
]


CASES = [
    *EMBED,
    *GROUP_NORM,
]
