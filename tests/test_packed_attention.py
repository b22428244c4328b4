"""Attention without padding, or over some keys only, compared with dense attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.ops import lookup
from tests.op_cases import Array, f32

DOMAIN = "com.microsoft"
LENGTHS = np.array([1, 2, 4], np.int32)
WEIGHTS, BIAS = f32(5, 24), f32(24)
TEXTS = f32(3, 4, 5)


def run(name: str, *inputs: Any, **attrs: Any) -> Any:
    """The reference of an op, with its defaults."""
    op = lookup(DOMAIN, name)
    assert op is not None
    return op.run(inputs, {**op.defaults, **attrs})


def whole() -> Array:
    """Attention over the padded batch."""
    result: Array = run("Attention", TEXTS, WEIGHTS, BIAS, LENGTHS, num_heads=2)[0]
    return result


def is_token() -> Array:
    return np.arange(4) < LENGTHS[:, None]


def test_packed_equals_padded() -> None:
    tokens, offsets, ends, _ = run("RemovePadding", TEXTS, LENGTHS)
    made = run("PackedAttention", tokens, WEIGHTS, BIAS, offsets, ends, num_heads=2)[0]
    restored = run("RestorePadding", made, offsets)[0]
    np.testing.assert_allclose(restored[is_token()], whole()[is_token()], rtol=1e-5, atol=1e-6)
    assert not restored[~is_token()].any()


@pytest.mark.parametrize("form", ["apart", "together"])
def test_packed_heads_equal_padded(form: str) -> None:
    tokens, offsets, ends, _ = run("RemovePadding", TEXTS, LENGTHS)
    product = tokens @ WEIGHTS
    parts: list[Any] = list(np.split(product, 3, axis=1))
    if form == "together":
        stacked = np.stack([p.reshape(7, 2, 4) for p in parts], axis=2)
        parts = [stacked, None, None]
    made = run("PackedMultiHeadAttention", *parts, BIAS, offsets, ends, num_heads=2)[0]
    np.testing.assert_allclose(made, whole()[is_token()], rtol=1e-5, atol=1e-6)


def test_a_wide_window_sees_everything() -> None:
    mask, nobody = np.zeros((3, 4), np.float32), np.zeros((3, 4), np.int32)
    weights, bias = f32(6, 18), f32(18)
    texts = f32(3, 4, 6)
    full = run("Attention", texts, weights, bias, num_heads=2)[0]
    for chosen, other in ((nobody, weights * 2), (nobody + 1, weights)):
        window = 1 if chosen.any() else 4
        inputs = (texts, weights, bias, mask, other, bias, chosen)
        made = run("LongformerAttention", *inputs, num_heads=2, window=window)[0]
        np.testing.assert_allclose(made, full, rtol=1e-5, atol=1e-6)


def test_a_window_is_a_band() -> None:
    """Far tokens do not change what a token sees, unless they are chosen."""
    weights, bias, mask = f32(6, 18), f32(18), np.zeros((1, 8), np.float32)
    texts = f32(1, 8, 6)
    other = texts.copy()
    other[0, 7] += 1
    for chosen, is_same in ((0, True), (1, False)):
        flags = np.zeros((1, 8), np.int32)
        flags[0, 7] = chosen
        found = [
            run("LongformerAttention", t, weights, bias, mask, weights, bias, flags, num_heads=2,
                window=2)[0]
            for t in (texts, other)
        ]  # fmt: skip
        assert np.array_equal(found[0][0, 0], found[1][0, 0]) is is_same


def test_sparse_attention_with_all_blocks() -> None:
    """With every block seen, and a shared cache, it is grouped attention."""
    q, k, v = f32(1, 20, 32), f32(1, 20, 16), f32(1, 20, 16) * 2
    cache = np.zeros((1, 2, 32, 8), np.float32)
    length, last = np.array([20], np.int32), np.array([19], np.int32)
    heads = {"num_heads": 4, "kv_num_heads": 2}
    rows, columns = np.array([[0, 1, 3]], np.int32), np.array([[0, 0, 1]], np.int32)
    sparse = run(
        "SparseAttention", q, k, v, cache, cache, rows, columns, length, length,
        sparse_block_size=16, **heads,
    )  # fmt: skip
    dense = run("GroupQueryAttention", q, k, v, cache, cache, last, length, **heads)
    for a, b in zip(sparse, dense, strict=False):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    columns[0, 1] = 1  # the second block of rows no longer sees the first of keys
    blind = run(
        "SparseAttention", q, k, v, cache, cache, np.array([[0, 1, 2]], np.int32), columns, length,
        length, sparse_block_size=16, **heads,
    )  # fmt: skip
    near = run("GroupQueryAttention", q[:, 16:], k[:, 16:], v[:, 16:], None, None,
               np.array([3], np.int32), np.array([4], np.int32), **heads)  # fmt: skip
    np.testing.assert_allclose(blind[0][:, 16:], near[0], rtol=1e-5, atol=1e-6)


def test_paged_attention_equals_a_contiguous_cache() -> None:
    """Blocks of a pool in any order are the same as one cache."""
    rng = np.random.default_rng(7)
    heads = {"num_heads": 4, "kv_num_heads": 2}
    q, k, v = (rng.standard_normal((3, n * 8)).astype(np.float16) for n in (4, 2, 2))
    pool = [rng.standard_normal((5, 4, 2, 8)).astype(np.float16) for _ in range(2)]
    table = np.array([[4, 1, 2]], np.int32)
    ends, past = np.array([0, 3], np.int32), np.array([6], np.int32)
    made, keys, _ = run("PagedAttention", q, k, v, *pool, ends, past, table, **heads)
    old = [p[table[0]].reshape(1, 12, 2, 8)[:, :6].swapaxes(1, 2) for p in pool]
    total = np.array([9], np.int32)
    inputs = (q[None], k[None], v[None], *old, total - 1, total)
    wanted, cache, _, _ = run("GroupQueryAttention", *inputs, **heads)
    np.testing.assert_allclose(made, wanted[0], rtol=1e-2, atol=1e-3)
    assert np.array_equal(keys[table[0]].reshape(1, 12, 2, 8)[:, :9].swapaxes(1, 2), cache)
