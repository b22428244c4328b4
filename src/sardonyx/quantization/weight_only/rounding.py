"""Rounding of weights without samples: onnxruntime's default, RTN, k-quant and HQQ.

Codes are those of onnxruntime's tools, in their arithmetic. Sums over blocks of HQQ are in another
order than torch's: single codes may differ, by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.graph.const import Const
from sardonyx.ort.matmul_nbits_quantizer import quantized_codes
from sardonyx.quantization.weight_only.grid import Format, padded_blocks, range_grid
from sardonyx.quantization.weight_only.stored import Codes

Array = np.ndarray[Any, Any]
Rounder = Callable[[Array, Format], Codes]  # of some columns of a weight [K, N]

_TILE: Final = 1 << 20  # elements that are quantized at a time
_FLOAT16: Final = np.float16

# HQQ: the norm of the error is |x|^0.7; parameters of its half-quadratic solver.
_NORM, _BETA, _KAPPA, _STEPS = 0.7, 10.0, 1.01, 20
_MAX_INVERSE: Final = 2e4  # the largest inverse of a scale

# k-quant: steps of the search for a range, and their width in codes.
_RANGES, _WIDTH = 20, 0.1


def matrix(const: Const) -> Array:
    """Return a weight [K, N]; float32, or float16 as it is."""
    array = const.view()
    array = array.reshape(array.shape[-2:])
    return array if array.dtype in (np.float32, _FLOAT16) else array.astype(np.float32)


def by_columns(weight: Array, form: Format, round_: Rounder) -> Codes:
    """Quantize a weight [K, N] some columns at a time, to bound memory."""
    parts = [round_(part, form) for part in column_tiles(weight)]
    zeros = [p.zero for p in parts if p.zero is not None]
    codes = np.concatenate([p.codes for p in parts])
    scale = np.concatenate([p.scale for p in parts])
    return Codes(codes, scale, np.concatenate(zeros) if zeros else None)


def column_tiles(weight: Array) -> Iterator[Array]:
    """Yield groups of columns of a weight [K, N]."""
    rows, columns = weight.shape
    step = max(1, _TILE // rows)
    for start in range(0, columns, step):
        yield weight[:, start : start + step]


def default(weight: Array, form: Format) -> Codes:
    """Round to the nearest code of a range that includes 0."""
    if form.bits == 3:
        return _three_bits(weight, form)
    codes, scale, zero = quantized_codes(weight, form.block, form.bits, form.is_symmetric)
    _clear_padding(codes, weight.shape[0])
    return Codes(codes, scale, None if form.is_symmetric else zero)


def _three_bits(weight: Array, form: Format) -> Codes:
    grid = range_grid(padded_blocks(weight, form), form)
    scale = grid.scale.astype(weight.dtype)
    stored = type(grid)(scale.astype(np.float32), grid.zero)
    return on_grid(stored.codes(weight, form), stored.scale, stored.zero, form, weight.dtype)


def on_grid(codes: Array, scale: Array, zero: Array, form: Format, dtype: Any) -> Codes:
    """Return codes [K, N] with scales and zero points [blocks, N] in the layout of storage."""
    rows, columns = codes.shape
    blocks = form.blocks(rows)
    padded = np.zeros((columns, blocks * form.block), np.uint8)
    padded[:, :rows] = codes.T
    zeros = None if form.is_symmetric else np.ascontiguousarray(zero.T).astype(np.uint8)
    scales = np.ascontiguousarray(scale.T).astype(dtype)
    return Codes(padded.reshape(columns, blocks, form.block), scales, zeros)


def _clear_padding(codes: Array, rows: int) -> None:
    codes.reshape(codes.shape[0], -1)[:, rows:] = 0


def _rows_of_blocks(weight: Array, form: Format) -> Array:
    """Return [N, blocks, block], contiguous."""
    return np.ascontiguousarray(padded_blocks(weight, form).transpose(2, 0, 1))


def rtn(weight: Array, form: Format, ratio: float = 1.0) -> Codes:
    """Round to the nearest code of the range of a block, which need not include 0.

    The arithmetic is float64 after the range, as in the RTN of onnxruntime's neural_compressor.
    """
    x = _rows_of_blocks(weight, form).astype(weight.dtype)
    levels = (1 << form.bits) - 1
    low, high = x.min(-1) * ratio, x.max(-1) * ratio
    scale = np.ones(low.shape)
    if form.is_symmetric:
        largest = np.maximum(np.abs(low), np.abs(high))
        scale[largest > 0] = (largest[largest > 0] * 2.0).astype(np.float64) / levels
        zero = np.full(low.shape, 1 << (form.bits - 1), np.uint8)
    else:
        is_wide = low != high
        scale[is_wide] = (high - low)[is_wide].astype(np.float64) / levels
        zero = np.clip(np.rint((0.0 - low) / scale), 0, levels).astype(np.uint8)
    return _nearest(x, scale, zero, form, weight)


def _nearest(x: Array, scale: Array, zero: Array, form: Format, weight: Array) -> Codes:
    """Return the nearest codes, computed in float64."""
    codes = x / scale[..., None]
    codes += zero[..., None]
    np.rint(codes, out=codes)
    np.clip(codes, 0, (1 << form.bits) - 1, out=codes)
    if form.is_symmetric and form.bits != form.stored_bits:
        shift = form.middle - (1 << (form.bits - 1))
        codes, zero = codes + shift, zero + shift
    return Codes(
        codes.astype(np.uint8), scale.astype(weight.dtype), None if form.is_symmetric else zero
    )


def k_quant(weight: Array, form: Format) -> Codes:
    """Search the range of each block with least squared error, large weights counting more.

    For each of some ranges, scale and minimum are fitted to the codes by least squares. The search
    is that of llama.cpp; codes are asymmetric.
    """
    blocks = padded_blocks(weight, form)
    shape = weight.shape[1], len(blocks)
    # onnxruntime sums a column that is one block in memory order, which is another.
    rows = blocks[0].T if len(blocks) == 1 else blocks.transpose(2, 0, 1)
    x = rows.reshape(-1, form.block)
    levels = np.float32((1 << form.bits) - 1)
    with np.errstate(all="ignore"):
        scale, low = _fitted_ranges(x, levels)
        zero = np.clip(np.rint(-low / scale), 0, levels).astype(np.uint8)
    wide = scale.astype(np.float64)
    free = Format(form.bits, form.block, is_symmetric=False)
    return _nearest(
        x.reshape(*shape, form.block), wide.reshape(shape), zero.reshape(shape), free, weight
    )


def _fitted_ranges(x: Array, levels: np.float32) -> tuple[Array, Array]:
    """Return scale and minimum of each row, as columns."""
    mean = np.sqrt(np.sum(x**2, axis=1, keepdims=True) / x.shape[1])
    counts = mean + np.abs(x)
    low, high = x.min(1, keepdims=True), x.max(1, keepdims=True)
    sum_w, sum_x = (np.sum(a, axis=1, keepdims=True) for a in (counts, counts * x))

    def steep(width: np.float32) -> Array:
        """Return the inverse of the scale for which the range has so many codes."""
        found, is_wide = np.ones(low.shape, np.float32), low != high
        found[is_wide] = width / (high - low)[is_wide]
        return found

    scale = 1 / steep(levels)
    codes = np.clip(np.rint(steep(levels) * (x - low)), 0, levels)
    best = np.sum(counts * (scale * codes + low - x) ** 2, axis=1, keepdims=True)
    for step in range(_RANGES):
        inverse = steep(np.float32(-1 + _WIDTH * step + int(levels)))
        codes = np.clip(np.rint(inverse * (x - low)), 0, levels)
        weighted = counts * codes
        sum_l, sum_l2, sum_xl = (
            np.sum(a, axis=1, keepdims=True) for a in (weighted, weighted * codes, weighted * x)
        )
        divisor = sum_w * sum_l2 - sum_l**2
        trial = (sum_w * sum_xl - sum_x * sum_l) / divisor
        minimum = (sum_l2 * sum_x - sum_l * sum_xl) / divisor
        error = np.sum(counts * (trial * codes + minimum - x) ** 2, axis=1, keepdims=True)
        is_better = error < best
        best, scale = np.where(is_better, error, best), np.where(is_better, trial, scale)
        low = np.where(is_better, minimum, low)
    return scale, low


@frozen
class _Tile:
    """Columns of a weight during HQQ: blocks, inverse scales, zero points."""

    x: Array  # [N, blocks, block]
    steep: Array  # [N, blocks, 1]
    zero: Array  # [N, blocks, 1], changed in place

    def codes(self, levels: int) -> Array:
        """Return the nearest codes, as floats."""
        return np.asarray(np.clip(np.rint(self.x * self.steep + self.zero), 0, levels))


def hqq(weight: Array, form: Format) -> Codes:
    """Half-quadratic quantization (Badri, Shaji): zero points for a norm that ignores outliers."""
    levels = (1 << form.bits) - 1
    tiles = [_first_tile(part, form, levels) for part in column_tiles(weight)]
    beta, best = _BETA, 1e4
    for _ in range(_STEPS):
        error = sum(_refine(tile, levels, beta) for tile in tiles)
        error /= sum(tile.x.size for tile in tiles)
        beta *= _KAPPA
        if error >= best:
            break
        best = error
    codes = np.concatenate([tile.codes(levels).astype(np.uint8) for tile in tiles])
    scale, zero = (
        np.concatenate([a[..., 0] for a in arrays]).astype(weight.dtype)
        for arrays in ([1 / tile.steep for tile in tiles], [tile.zero for tile in tiles])
    )
    return Codes(codes, scale, zero)


def _first_tile(part: Array, form: Format, levels: int) -> _Tile:
    x = _rows_of_blocks(part, form)
    low, high = x.min(-1, keepdims=True), x.max(-1, keepdims=True)
    width = np.where(high == low, np.float32(levels), high - low)
    steep = np.minimum(np.float32(levels) / width, np.float32(_MAX_INVERSE))
    return _Tile(x, steep, np.rint(-low * steep))


def _refine(tile: _Tile, levels: int, beta: float) -> float:
    """Move the zero points of a tile; return the sum of its absolute errors before."""
    codes = tile.codes(levels)
    difference = tile.x - (codes - tile.zero) / tile.steep
    size = np.abs(difference)
    shrunk = size - np.float32(1 / beta) * (size + np.float32(1e-8)) ** np.float32(_NORM - 1)
    sparse = np.sign(difference) * np.maximum(shrunk, 0)
    np.mean(codes - (tile.x - sparse) * tile.steep, axis=-1, keepdims=True, out=tile.zero)
    return float(size.sum(dtype=np.float64))


def table(data: Array, axis: int, block: int, is_symmetric: bool) -> list[Array]:
    """Quantize an embedding to 4 bits in blocks along an axis: codes, scales, zero points."""
    moved = np.moveaxis(data, axis, -1)
    n_blocks = -(-moved.shape[-1] // block)
    padding = [(0, 0)] * (moved.ndim - 1) + [(0, n_blocks * block - moved.shape[-1])]
    x = np.pad(moved, padding, mode="edge").reshape(*moved.shape[:-1], n_blocks, block)
    low, high = x.min(-1, keepdims=True), x.max(-1, keepdims=True)
    middle, lowest, highest = (0, -8, 7) if is_symmetric else (8, 0, 15)
    if is_symmetric:
        scale = np.where(np.abs(high) > np.abs(low), high, low) / -8.0
        zero = np.zeros(scale.shape, np.int8)
    else:
        low, high = np.minimum(low, 0), np.maximum(high, 0)
        scale = (high - low) / 15.0
    scale = scale.astype(data.dtype)
    with np.errstate(all="ignore"):
        if not is_symmetric:
            zero = np.where(scale == 0, 8, -low / scale).round().clip(0, 15).astype(np.uint8)
        codes = np.where(scale == 0, middle, x / scale + zero).round().clip(lowest, highest)
    flat = codes.reshape(*moved.shape[:-1], -1)[..., : moved.shape[-1]].astype(zero.dtype)
    found = [flat, scale[..., 0]] if is_symmetric else [flat, scale[..., 0], zero[..., 0]]
    return [np.ascontiguousarray(np.moveaxis(a, -1, axis)) for a in found]
