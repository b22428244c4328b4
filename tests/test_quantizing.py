"""N-bit weights are those that onnxruntime's own functions make, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as theirs

from sardonyx.capi import onnxruntime_pybind11_state as ours
from sardonyx.errors import InvalidArgument

# Rows fill whole bytes: beyond others, onnxruntime's 2 bits hold bytes after the weights.
SHAPES = [
    (40, 3, 16),
    (36, 5, 16),
    (32, 2, 32),
    (64, 4, 64),
    (8, 3, 16),
    (132, 2, 128),
    (36, 1, 32),
]
TYPES = [np.float32, np.float16]


def weights(rows: int, columns: int, dtype: Any) -> Any:
    made = np.random.default_rng(rows).standard_normal((rows, columns)).astype(dtype)
    if columns == 5:  # blocks of zeros, and of one sign
        made[:16, 0], made[:, 1], made[:, 2] = 0, np.abs(made[:, 1]), -np.abs(made[:, 2])
    return made


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("is_symmetric", [True, False])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("k", "n", "block"), SHAPES)
def test_weights_of_matmuls(
    k: int, n: int, block: int, bits: int, is_symmetric: bool, dtype: Any
) -> None:
    blocks, per_byte, w = -(-k // block), 8 // bits, weights(k, n, dtype)
    made = []
    for module in (ours, theirs):
        out = (
            np.zeros((n, blocks, block * bits // 8), np.uint8),
            np.zeros(n * blocks, dtype),
            np.zeros(n * -(-blocks // per_byte), np.uint8),
        )
        quantize = getattr(module, f"quantize_matmul_{bits}bits")
        quantize(out[0], w, out[1], out[2], block, n, k, is_symmetric)
        made.append(out)
    for mine, other in zip(*made, strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("is_symmetric", [True, False])
@pytest.mark.parametrize(("k", "n", "block"), [(32, 4, 16), (40, 4, 16), (33, 5, 16), (35, 3, 32)])
def test_weights_of_dequantize_linear(
    k: int, n: int, block: int, is_symmetric: bool, dtype: Any
) -> None:
    """Of 4 bits alone: onnxruntime's function for 2 writes beyond its outputs."""
    blocks, w, made = -(-k // block), weights(k, n, dtype), []
    for module in (ours, theirs):
        out = (
            np.zeros((k * n + 1) // 2, np.uint8),
            np.zeros(blocks * n, dtype),
            np.zeros((blocks * n + 1) // 2, np.uint8),
        )
        found = module.quantize_qdq_matmul_4bits(
            out[0], w, out[1], out[2], block, n, k, is_symmetric
        )
        made.append((found, *out))
    for mine, other in zip(*made, strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("is_symmetric", [True, False])
def test_2_bit_weights_of_dequantize_linear(is_symmetric: bool) -> None:
    w = weights(32, 4, np.float32)
    q, scales, zeros = np.zeros(32, np.uint8), np.zeros((2, 4), np.float32), np.zeros(2, np.uint8)
    ours.quantize_qdq_matmul_2bits(q, w, scales, zeros, 16, 4, 32, is_symmetric)
    fields = np.arange(4, dtype=np.uint8) * 2
    codes = (q[:, None] >> fields & 3).reshape(32, 4).astype(int)
    places = (zeros[:, None] >> fields & 3).reshape(2, 4).astype(int)
    if is_symmetric:
        codes, places = codes - 4 * (codes > 1), np.zeros_like(places)
    found = (codes - np.repeat(places, 16, 0)) * np.repeat(scales, 16, 0)
    assert (np.abs(found - w) <= np.abs(np.repeat(scales, 16, 0)) * 1.001).all()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize(("k", "n", "block"), [(40, 3, 16), (33, 5, 16), (35, 2, 32), (7, 3, 16)])
def test_bnb4(k: int, n: int, block: int, kind: int, dtype: Any) -> None:
    w, made = weights(k, n, dtype), []
    w[:, 0] = 0
    for module in (ours, theirs):
        out = np.zeros((n * k + 1) // 2, np.uint8), np.zeros(-(-n * k // block), dtype)
        module.quantize_matmul_bnb4(out[0], w, out[1], block, kind, n, k)
        made.append(out)
    for mine, other in zip(*made, strict=True):
        np.testing.assert_array_equal(mine, other)


def test_fp4_codes_are_transposed() -> None:
    codes = np.random.default_rng(0).integers(0, 256, (6, 5)).astype(np.uint8)
    mine, other = (m.pack_fp4_weights_for_cuda_moe_gemm(codes, 6, 10) for m in (ours, theirs))
    np.testing.assert_array_equal(mine, other)
    for shape, words in (((6, 9), "even"), ((6, 8), r"\[N, K / 2")):
        with pytest.raises(InvalidArgument, match=words):
            ours.pack_fp4_weights_for_cuda_moe_gemm(codes, *shape)


def test_arrays_that_do_not_fit() -> None:
    w, q, s, z = np.zeros((16, 2), "f"), np.zeros(16, "u1"), np.zeros(2, "f"), np.zeros(2, "u1")
    call = ours.quantize_matmul_4bits
    for wrong, match in (
        ((q[1:], w, s, z, 16, 2, 16, True), "dst must be an array of 16 elements of uint8"),
        ((q, w, s.astype(float), z, 16, 2, 16, True), "scale must be an array of 2"),
        ((q, w, s, z[:1], 16, 2, 16, False), "zero_points must be an array of 2"),
        ((q, w, s, z, 16, 3, 16, True), "16 rows and 3 columns have 32"),
        ((q, w, s, z, 0, 2, 16, True), "1 element or more"),
        ((q, w.astype(int), s, z, 16, 2, 16, True), "float32 or float16"),
        ((q, w, s[::-1], z, 16, 2, 16, True), "must be writable and contiguous"),
    ):
        with pytest.raises(InvalidArgument, match=match):
            call(*wrong)
    with pytest.raises(InvalidArgument, match="0 for FP4"):
        ours.quantize_matmul_bnb4(q, w, s, 16, 2, 2, 16)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_rows_that_pad_to_whole_blocks(bits: int) -> None:
    w = np.random.default_rng(bits).standard_normal((48, 6)).astype(np.float32)
    quantize, results = getattr(ours, f"quantize_matmul_{bits}bits"), []
    for weights in (w, w[:40]):
        out = (np.zeros((6, 3, 2 * bits), np.uint8), np.zeros(18, np.float32),
               np.zeros(6 * -(-3 * bits // 8), np.uint8))  # fmt: skip
        quantize(out[0], weights, out[1], out[2], 16, 6, 40, False)
        results.append([x.tolist() for x in out])
    assert results[0] == results[1]
