"""Block quantization of MatMul weights to 2, 4 and 8 bits, with onnxruntime's results."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument

Array = np.ndarray[Any, Any]

_HALF: Final = np.float32(0.5)
# The values of the 16 codes of bitsandbytes' NF4; a number gets the code of the nearest one.
_NF4: Final = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
_FP4_ORDER: Final = (0, 1, 6, 7, 4, 5, 2, 3)  # codes by magnitude; bit 3 is the sign
_FP4_LIMITS: Final = (0.00260417, 0.0859375, 0.20833333, 0.29166667, 0.4166667, 0.583333, 0.8333333)
_FP4, _NF = 0, 1


def _round(x: Array) -> Array:
    """Round to the nearest integer, ties away from zero."""
    rounded: Array = np.copysign(np.floor(np.abs(x) + _HALF), x)
    return rounded


def _blocks(weights: Array, block: int) -> Array:
    """Return [columns, blocks, block]: each column in blocks of rows, padded with zeros."""
    rows, columns = weights.shape
    n_blocks = -(-rows // block)
    padded = np.zeros((n_blocks * block, columns), np.float32)
    padded[:rows] = weights
    return padded.reshape(n_blocks, block, columns).transpose(2, 0, 1)


def quantized_codes(
    weights: Array, block: int, bits: int, is_symmetric: bool
) -> tuple[Array, Array, Array]:
    """Return codes, scales and zero points of blocks, whose ranges always include 0."""
    x, max_code, middle = _blocks(weights, block), (1 << bits) - 1, 1 << (bits - 1)
    low, high = np.minimum(x.min(-1), 0), np.maximum(x.max(-1), 0)
    if is_symmetric:
        # The value of the largest magnitude becomes code 0, that is -2^(bits-1): the range of
        # codes has one more negative than positive number.
        largest = np.where(np.abs(high) > np.abs(low), high, low)
        scales = (largest / np.float32(-middle)).astype(weights.dtype)
        zeros = np.full(scales.shape, middle, np.uint8)
    else:
        exact = (high - low) / np.float32(max_code)
        ratio = np.divide(low, exact, out=-low, where=exact != 0)
        zeros = np.clip(_round(np.float32(0) - ratio), 0, max_code).astype(np.uint8)
        scales = exact.astype(weights.dtype)
    # Codes are computed with the scales as they are stored, possibly rounded to float16.
    rounded = scales.astype(np.float32)
    inverse = np.divide(np.float32(1), rounded, out=np.zeros_like(rounded), where=rounded != 0)
    codes = _round(x * inverse[..., None] + zeros[..., None].astype(np.float32))
    return np.clip(codes, 0, max_code).astype(np.uint8), scales, zeros


def packed_codes(codes: Array, bits: int, fill: int = 0) -> Array:
    """Pack codes along the last axis, several per byte, the first in the lowest bits."""
    per_byte = 8 // bits
    padding = -codes.shape[-1] % per_byte
    if padding:
        width = [(0, 0)] * (codes.ndim - 1) + [(0, padding)]
        codes = np.pad(codes, width, constant_values=fill)
    groups = codes.reshape(*codes.shape[:-1], -1, per_byte)
    packed = np.zeros(groups.shape[:-1], np.uint8)
    for i in range(per_byte):
        packed |= groups[..., i] << np.uint8(i * bits)
    return packed


def quantized_blocks(
    weights: Array, block: int, bits: int, is_symmetric: bool
) -> tuple[Array, Array, Array]:
    """Quantize weights [K, N]: packed codes, scales and packed zero points of a MatMulNBits."""
    k, n = weights.shape
    codes, scales, zeros = quantized_codes(weights, block, bits, is_symmetric)
    codes.reshape(n, -1)[:, k:] = 0  # padding after the last row
    return packed_codes(codes, bits), scales, packed_codes(zeros, bits, 1 << (bits - 1))


def _store(out: Any, values: Array, what: str) -> None:
    """Write to an output array of the caller, which must have exactly this many elements."""
    if not isinstance(out, np.ndarray) or out.dtype != values.dtype or out.size != values.size:
        shown = f"{out.dtype} {out.size}" if isinstance(out, np.ndarray) else type(out).__name__
        raise InvalidArgument(
            f"{what} must be an array of {values.size} elements of {values.dtype}, got {shown}"
        )
    if not out.flags.c_contiguous or not out.flags.writeable:
        raise InvalidArgument(f"{what} must be writable and contiguous")
    out.reshape(-1)[:] = values.reshape(-1)


def _checked_weights(src: Any, rows: int, columns: int, block: int) -> Array:
    if not isinstance(src, np.ndarray) or src.dtype not in (np.float32, np.float16):
        raise InvalidArgument("weights must be an array of float32 or float16")
    count = rows * columns
    # More rows are padding: onnxruntime's quantizer pads to whole blocks, and states K without.
    if src.size < count or (src.size > count and (src.ndim != 2 or src.shape[1] != columns)):
        raise InvalidArgument(
            f"weights of {rows} rows and {columns} columns have {src.size} elements"
        )
    if block < 1:
        raise InvalidArgument(f"a block must have 1 element or more, got {block}")
    return np.ascontiguousarray(src).reshape(-1)[:count].reshape(rows, columns)


def _quantize(bits: int, is_qdq: bool, dst: Any, src: Any, scale: Any, *rest: Any) -> bool | None:
    """Quantize src [K, N], in dst, scale and zero_points: as B of a MatMulNBits, or for QDQ.

    The rest: zero_points, block_size, N, K, is_symmetric. With `is_qdq` the outputs have the layout
    of a DequantizeLinear, and the result is whether the codes are signed.
    """
    zero_points, block_size, n, k, is_symmetric = rest
    weights = _checked_weights(src, k, n, block_size)
    if is_qdq:
        codes, scales, zeros = quantized_codes(weights, block_size, bits, is_symmetric)
        codes = codes.reshape(n, -1)[:, :k].T.reshape(-1)
        if is_symmetric:  # from offset binary to two's complement
            codes ^= np.uint8(1 << (bits - 1))
        packed, scales, zeros = (
            packed_codes(codes, bits),
            scales.T,
            packed_codes(zeros.T.reshape(-1), bits),
        )
    else:
        packed, scales, zeros = quantized_blocks(weights, block_size, bits, is_symmetric)
    _store(dst, packed, "dst")
    _store(scale, scales, "scale")
    if not is_symmetric:
        _store(zero_points, zeros, "zero_points")
    return bool(is_symmetric) if is_qdq else None


quantize_matmul_2bits: Final = partial(_quantize, 2, False)
quantize_matmul_4bits: Final = partial(_quantize, 4, False)
quantize_matmul_8bits: Final = partial(_quantize, 8, False)
quantize_qdq_matmul_2bits: Final = partial(_quantize, 2, True)
quantize_qdq_matmul_4bits: Final = partial(_quantize, 4, True)


def quantize_matmul_bnb4(dst: Any, src: Any, absmax: Any, *rest: Any) -> None:
    """Quantize src [N, K] to B of a MatMulBnb4, in dst and absmax.

    The rest: block_size, quant_type (0: FP4, 1: NF4), N, K.
    """
    block_size, quant_type, n, k = rest
    weights = _checked_weights(src, k, n, block_size)
    if quant_type not in (_FP4, _NF):
        raise InvalidArgument(f"quant_type must be 0 for FP4 or 1 for NF4, got {quant_type}")
    flat = weights.reshape(-1)
    n_blocks = -(-flat.size // block_size)
    padded = np.zeros(n_blocks * block_size, np.float32)
    padded[: flat.size] = flat
    blocks = padded.reshape(n_blocks, block_size)
    largest = np.abs(blocks).max(-1) if flat.size else np.zeros(0, np.float32)
    inverse = np.divide(np.float32(1), largest, out=np.zeros_like(largest), where=largest != 0)
    blocks *= inverse[:, None]
    flat = np.append(padded[: flat.size], np.zeros(flat.size % 2, np.float32))
    codes = _bnb4_codes(flat, quant_type)
    _store(dst, codes[0::2] << np.uint8(4) | codes[1::2], "dst")
    _store(absmax, largest.astype(src.dtype), "absmax")


def _bnb4_codes(x: Array, kind: int) -> Array:
    """Return the codes of numbers from -1 to 1."""
    if kind == _NF:
        table = np.array(_NF4, np.float32)
        limits = (table[1:] + table[:-1]) / np.float32(2)
        return np.searchsorted(limits, x, side="left").astype(np.uint8)
    order = np.array(_FP4_ORDER, np.uint8)
    limits = np.array(_FP4_LIMITS, np.float32)
    codes = order[np.searchsorted(limits, np.abs(x), side="left")]
    signed: Array = codes | (x < 0).astype(np.uint8) << np.uint8(3)
    return signed


def pack_fp4_weights_for_cuda_moe_gemm(q_weights: Array, N: int, K: int) -> Array:  # noqa: N803
    """Return packed 4-bit codes [N, K / 2] transposed: those of [K, N / 2], as one vector."""
    codes = np.asarray(q_weights, np.uint8)
    if N % 2 or K % 2:
        raise InvalidArgument(f"N and K must be even, got {N} and {K}")
    if codes.shape != (N, K // 2):
        raise InvalidArgument(f"q_weights must be of shape [N, K / 2], got {list(codes.shape)}")
    rows = np.stack((codes & 15, codes >> 4), 2).reshape(N, K).T
    packed: Array = (rows[:, 0::2] | rows[:, 1::2] << 4).reshape(-1)
    return packed
