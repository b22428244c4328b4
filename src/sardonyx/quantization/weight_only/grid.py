"""Grids of codes: the numbers that n-bit codes stand for, in blocks along the rows of a weight.

A weight [K, N] has a scale and a zero point per block of rows and column: code c stands for
(c - zero) * scale. The last block is padded with zeros.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.errors import InvalidArgument

Array = np.ndarray[Any, Any]

STORED_BITS: Final = {2: 2, 3: 4, 4: 4, 8: 8}  # bits of a code in a model, by bits of its levels
_TILE: Final = 1 << 18  # elements that a search works on at a time, which stay in the cache


@frozen
class Format:
    """How weights are quantized: levels, block size, and whether zero points are free.

    There are 2^bits levels. Without zero points, code 2^(stored bits - 1) is the number 0.
    """

    bits: int
    block: int
    is_symmetric: bool

    def __post_init__(self) -> None:
        if self.bits not in STORED_BITS:
            raise InvalidArgument(
                f"bits must be 2, 3, 4 or 8, got {self.bits}",
                hint="3 bits are stored in codes of 4 bits, as MatMulNBits has no others",
            )

    def check_block(self) -> None:
        """Raise for a block size that MatMulNBits does not have."""
        if self.block < 16 or self.block & (self.block - 1):
            raise InvalidArgument(
                f"block_size is {self.block}, and must be a power of two from 16",
                hint="MatMulNBits has no other blocks",
            )

    @property
    def stored_bits(self) -> int:
        """The bits of a stored code."""
        return STORED_BITS[self.bits]

    @property
    def middle(self) -> int:
        """The code of 0 where a model has no zero points."""
        return int(1 << (self.stored_bits - 1))

    @property
    def codes(self) -> tuple[int, int]:
        """The lowest and the highest code."""
        if not self.is_symmetric:
            return 0, (1 << self.bits) - 1
        half = 1 << (self.bits - 1)
        return self.middle - half, self.middle + half - 1

    def blocks(self, rows: int) -> int:
        """Return the number of blocks of so many rows."""
        return -(-rows // self.block)


@frozen
class Grid:
    """Scales and zero points [blocks, N], both float32; zero points are whole numbers."""

    scale: Array
    zero: Array

    def codes(self, weight: Array, form: Format) -> Array:
        """Return the nearest codes [K, N] of a weight."""
        low, high = form.codes
        steps = np.rint(weight / self._rows(self.scale, weight, form))
        codes: Array = np.clip(steps + self._rows(self.zero, weight, form), low, high)
        return codes.astype(np.uint8)

    def values(self, codes: Array, form: Format) -> Array:
        """Return the numbers [K, N] that codes stand for."""
        centered = codes.astype(np.float32) - self._rows(self.zero, codes, form)
        return np.asarray(centered * self._rows(self.scale, codes, form))

    @staticmethod
    def _rows(per_block: Array, like: Array, form: Format) -> Array:
        return np.repeat(per_block, form.block, 0)[: like.shape[0]]


def padded_blocks(weight: Array, form: Format) -> Array:
    """Return a weight [K, N] as float32 [blocks, block, N]."""
    rows, columns = weight.shape
    n = form.blocks(rows)
    if rows == n * form.block:
        return np.asarray(weight, np.float32).reshape(n, form.block, columns)
    padded = np.zeros((n * form.block, columns), np.float32)
    padded[:rows] = weight
    return padded.reshape(n, form.block, columns)


def range_grid(x: Array, form: Format, shrink: float = 1.0) -> Grid:
    """Return the grid that covers the range of each block [blocks, block, N], times `shrink`."""
    low_code, high_code = form.codes
    if form.is_symmetric:
        high, low = x.max(1), x.min(1)
        largest = np.where(np.abs(high) > np.abs(low), high, low) * np.float32(shrink)
        scale = largest / np.float32(low_code - form.middle)
        zero = np.full_like(scale, form.middle)
    else:
        low = np.minimum(x.min(1), 0) * np.float32(shrink)
        high = np.maximum(x.max(1), 0) * np.float32(shrink)
        scale = (high - low) / np.float32(high_code)
        ratio = np.divide(-low, scale, out=np.zeros_like(scale), where=scale != 0)
        zero = np.clip(np.rint(ratio), low_code, high_code)
    return Grid(np.where(scale == 0, np.float32(1), scale), zero)


SHRINKS: Final = tuple(np.linspace(1.0, 0.5, 11).tolist())


def searched_grid(weight: Array, form: Format, importance: Array | None = None) -> Grid:
    """Return the grid of least squared error, each row of the weight counted by its importance.

    Ranges are clipped by several factors; for each, the scale is then fitted to its codes.
    """
    blocks = padded_blocks(weight, form)
    n_blocks, _, columns = blocks.shape
    counts = np.ones((n_blocks, form.block, 1), np.float32)
    if importance is not None:
        padded = np.zeros(n_blocks * form.block, np.float32)
        padded[: importance.size] = importance / max(float(importance.mean()), 1e-30)
        counts = padded.reshape(n_blocks, form.block, 1)
    scale, zero = np.empty((2, n_blocks, columns), np.float32)
    step = max(1, _TILE // form.block)
    for i in range(n_blocks):
        for j in range(0, columns, step):
            tile = np.ascontiguousarray(blocks[i : i + 1, :, j : j + step])
            best = _search(tile, form, counts[i : i + 1])
            scale[i, j : j + step], zero[i, j : j + step] = best.scale[0], best.zero[0]
    return Grid(scale, zero)


def _search(x: Array, form: Format, counts: Array) -> Grid:
    low, high = form.codes
    best_error = np.full((x.shape[0], x.shape[2]), np.inf, np.float32)
    best = range_grid(x, form)
    scale, zero = best.scale.copy(), best.zero.copy()
    for shrink in SHRINKS:
        grid = range_grid(x, form, shrink)
        trial = grid.scale
        for _ in range(2):
            codes = np.rint(x / trial[:, None])
            np.clip(codes, low - grid.zero[:, None], high - grid.zero[:, None], out=codes)
            weighted = codes * counts
            square = (weighted * codes).sum(1)
            fitted = (weighted * x).sum(1)
            trial = np.divide(fitted, square, out=trial.copy(), where=square != 0)
            trial = np.where(trial == 0, np.float32(1), trial)
        error = ((x - codes * trial[:, None]) ** 2 * counts).sum(1)
        is_better = error < best_error
        best_error = np.where(is_better, error, best_error)
        scale = np.where(is_better, trial, scale)
        zero = np.where(is_better, grid.zero, zero)
    return Grid(scale, zero)
