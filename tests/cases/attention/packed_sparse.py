"""Cases of packed, paged, sparse and relative-position attention ops of com.microsoft."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.op_cases import Array, Case, f16, f32, ms, no, of

NOT_ON_CPU: dict[str, Any] = {"oracle": "none", "why": "onnxruntime has it on other devices only"}


def i32(*numbers: Any) -> Array:
    return of(numbers, np.int32)


X = f32(3, 4, 5)


TOKENS = np.concatenate((X[0, :1], X[1, :2], X[2]))


OFFSETS = of([[0, 4, 5, 8], [9, 10, 11, 1], [2, 3, 6, 7]], np.int32)


KEPT = np.where((np.arange(4) < of([1, 2, 4])[:, None])[..., None], X, 0).astype(np.float32)


PADDING = [
    ms(
        "RemovePadding",
        *(X, i32(1, 2, 4)),
        outputs=4,
        expect=(TOKENS, OFFSETS, i32(0, 1, 3, 7), i32(4)),
        **{**NOT_ON_CPU, "oracle": "auto"},
    ),
    ms("RemovePadding", X, i32(0, 0, 0), outputs=4, **NOT_ON_CPU),
    no("RemovePadding", X, i32(1, 5, 4), match="5 is outside"),
    no("RemovePadding", X, i32(1, 4), match="sequence_token_count"),
    ms("RestorePadding", TOKENS, OFFSETS, expect=(KEPT,), **{**NOT_ON_CPU, "oracle": "auto"}),
    no("RestorePadding", TOKENS, OFFSETS + 5, match="does not say"),
    no("RestorePadding", TOKENS, OFFSETS[:1], match="does not say"),
]


WEIGHTS = (f32(5, 24), f32(24))


ENDS = i32(0, 1, 3, 7)


QKV = (f32(7, 8), f32(7, 8) * 2, f32(7, 12))


PACKED = [
    ms("PackedAttention", TOKENS, *WEIGHTS, OFFSETS, ENDS, num_heads=2, **NOT_ON_CPU),
    ms(
        "PackedAttention",
        *(TOKENS, f32(5, 20), f32(20), OFFSETS, ENDS, f32(1, 2, 4, 4)),
        num_heads=2,
        qkv_hidden_sizes=[8, 8, 4],
        scale=0.3,
        **NOT_ON_CPU,
    ),
    no("PackedAttention", TOKENS, *WEIGHTS, OFFSETS, ENDS, num_heads=5, match="weights"),
    no("PackedAttention", TOKENS, *WEIGHTS, OFFSETS, ENDS[:3], num_heads=2, match="cumulative"),
    no("PackedAttention", TOKENS, *WEIGHTS, OFFSETS, ENDS + 1, num_heads=2, match="does not split"),
    ms("PackedMultiHeadAttention", *QKV, f32(28), OFFSETS, ENDS, num_heads=2, **NOT_ON_CPU),
    ms(
        "PackedMultiHeadAttention",
        *(f32(7, 2, 3, 4), None, None, f32(24), OFFSETS, ENDS, f32(3, 1, 4, 4)),
        num_heads=2,
        **NOT_ON_CPU,
    ),
    no("PackedMultiHeadAttention", *QKV[:2], None, None, OFFSETS, ENDS, num_heads=2, match="go t"),
]


LENGTH = of([6], np.int64)


RELATIVE = [
    ms("RelativePositionBias", f32(8, 2), LENGTH, LENGTH, max_distance=16, **NOT_ON_CPU),
    ms(
        "RelativePositionBias",
        *(f32(8, 2), of([40], np.int64), of([40], np.int64)),
        is_bidirectional=1,
        max_distance=20,
        **NOT_ON_CPU,
    ),
    no("RelativePositionBias", f32(8, 2), LENGTH, -LENGTH, max_distance=9, match="negative"),
    ms(
        "GatedRelativePositionBias",
        *(f32(3, 4, 8), f32(8), f32(1, 2, 4, 4), f32(4, 6), f32(6), f32(1, 2, 1, 1)),
        num_heads=2,
        **NOT_ON_CPU,
    ),
    ms(
        "GatedRelativePositionBias",
        *(f32(7, 8), f32(8), f32(1, 2, 4, 4), f32(4, 6), f32(6), f32(1, 2, 1, 1), OFFSETS),
        num_heads=2,
        **NOT_ON_CPU,
    ),
    no(
        "GatedRelativePositionBias",
        *(f32(3, 4, 8), f32(8), f32(1, 2, 4, 4), f32(4, 5), f32(5), f32(1, 2, 1, 1)),
        num_heads=2,
        match="odd number",
    ),
]


TEXT = f32(2, 8, 6)


MASK = np.zeros((2, 8), np.float32)


CHOSEN = of([[1, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0, 0, 0]], np.int32)


LONG = (f32(6, 18), f32(18))


FAR = (f32(6, 18) * np.float32(0.5), f32(18))


ROWS_AND_COLUMNS = of([[0, 1, 3]], np.int32), of([[0, 0, 1]], np.int32)


CACHE = (np.zeros((1, 2, 32, 8), np.float32),) * 2


SPARSE = [
    ms("LongformerAttention", TEXT, *LONG, MASK, *FAR, CHOSEN, num_heads=2, window=2, **NOT_ON_CPU),
    no("LongformerAttention", TEXT, *LONG, MASK, *FAR, CHOSEN, num_heads=4, window=2, match="spl"),
    no("LongformerAttention", TEXT, *LONG, MASK, *FAR, CHOSEN, num_heads=2, window=0, match="win"),
    ms(
        "SparseAttention",
        *(f32(1, 20, 32), f32(1, 20, 16), f32(1, 20, 16), *CACHE),
        *(*ROWS_AND_COLUMNS, i32(20), i32(20)),
        num_heads=4,
        kv_num_heads=2,
        sparse_block_size=16,
        outputs=3,
        oracle="none",
        why="onnxruntime wants past and present in the same memory",
    ),
    no(
        "SparseAttention",
        *(f32(1, 40, 32), f32(1, 40, 16), f32(1, 40, 16), *CACHE),
        *(*ROWS_AND_COLUMNS, i32(40), i32(40)),
        num_heads=4,
        kv_num_heads=2,
        sparse_block_size=16,
        match="do not fit",
    ),
]


POOL = (f16(6, 4, 2, 8), f16(6, 4, 2, 8))


TABLE = of([[3, 1, 0], [5, 2, 4]], np.int32)


ROWS_OF_TWO = (f16(5, 32), f16(5, 16), f16(5, 16), *POOL, i32(0, 4, 5), i32(3, 6), TABLE)


PAGE: dict[str, Any] = {"num_heads": 4, "kv_num_heads": 2}


COS_SIN = tuple(f(f32(16, 4)).astype(np.float16) for f in (np.cos, np.sin))


def paged(*inputs: Any, **options: Any) -> Case:
    return ms("PagedAttention", *inputs, outputs=3, **NOT_ON_CPU, **PAGE, **options)


def no_paged(*inputs: Any, match: str, **options: Any) -> Case:
    return no("PagedAttention", *inputs, match=match, **PAGE, **options)


PAGED = [
    paged(*ROWS_OF_TWO),
    paged(*ROWS_OF_TWO, *COS_SIN, do_rotary=1, softcap=2.0),
    paged(f16(5, 64), None, None, *ROWS_OF_TWO[3:], local_window_size=2),
    paged(*ROWS_OF_TWO, None, None, i32(15, 4, 5, -1, 10), f16(4), is_causal=0),
    paged(*ROWS_OF_TWO, None, None, None, None, f16(8), f16(8)),
    no_paged(*ROWS_OF_TWO[:5], i32(0, 4, 6), i32(3, 6), TABLE, match="does not split 5 tokens"),
    no_paged(*ROWS_OF_TWO[:6], i32(3, 12), TABLE, match="no block for position 12"),
    no_paged(*ROWS_OF_TWO[:7], TABLE + 3, match="outside"),
    no_paged(*ROWS_OF_TWO, kv_cache_layout="LATENT", match="kv_cache_layout"),
    no_paged(*ROWS_OF_TWO, COS_SIN[0], f16(16, 4, 3), do_rotary=1, match="sin_cache"),
]


CASES = [
    *PAGED,
    *PADDING,
    *PACKED,
    *RELATIVE,
    *SPARSE,
]
