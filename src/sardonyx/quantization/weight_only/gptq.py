"""Rounding with compensation of errors: GPTQ, and a descent over codes and scales after it.

For activations X and a weight W, the error of a quantized weight Q is |X W - X Q|^2, which depends
on X only through the Hessian H = X^T X. GPTQ (Frantar et al., arXiv 2210.17323) rounds one row of W
after the other, and changes the rows that are left to compensate for each error. The descent then
changes single codes, and the scale of a block, to their optimum while all others stay.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen, replace
from sardonyx.quantization.weight_only.grid import Format, Grid, searched_grid

Array = np.ndarray[Any, Any]

_TRIANGLE: Final = 64  # rows of a triangular matrix that are inverted at once
_COLUMNS: Final = 1024  # columns that are rounded at a time: columns do not depend on each other


@frozen
class Rounding:
    """How errors are compensated."""

    damping: float = 0.01  # added to the Hessian's diagonal, relative to its mean
    block: int = 128  # rows between two updates of the rest of the weight
    by_activation: bool = True  # round rows of large activations first
    searches: bool = True  # clip the range of blocks where that lowers the error
    sweeps: int = 0  # of the descent


@frozen
class Curvature:
    """What rounding needs of a damped Hessian [K, K]."""

    importance: Array  # its diagonal, float32
    order: Array  # of the rows
    factor: Array  # float32 upper triangular: the Cholesky factor of the inverse, rows ordered
    hessian: Array | None  # float32; only for a descent


def curvature(hessian: Array, rounding: Rounding) -> Curvature:
    """Return what rounding needs of a Hessian in float64, which is damped in place.

    Rows of activations that are always 0 count nothing.
    """
    diagonal = np.einsum("ii->i", hessian)
    mean = float(diagonal.mean()) or 1.0
    diagonal[diagonal == 0] = mean
    diagonal += rounding.damping * mean
    order = np.arange(len(hessian))
    if rounding.by_activation:
        order = np.argsort(-diagonal, kind="stable")
    kept = hessian.astype(np.float32) if rounding.sweeps else None
    # The upper factor U of the inverse, U^T U = H^-1, from the Cholesky factor of the reversed H.
    lower = np.linalg.cholesky(hessian[np.ix_(order[::-1], order[::-1])])
    _invert_lower(lower)
    factor = np.ascontiguousarray(lower[::-1, ::-1], np.float32)
    return Curvature(diagonal.astype(np.float32), order, factor, kept)


def _invert_lower(lower: Array) -> None:
    """Invert a lower triangular matrix in place."""
    size = len(lower)
    if size <= _TRIANGLE:
        lower[:] = np.tril(np.linalg.inv(lower))
        return
    half = size // 2
    first, last = lower[:half, :half], lower[half:, half:]
    _invert_lower(first)
    _invert_lower(last)
    lower[half:, :half] = -(last @ (lower[half:, :half] @ first))


def compensated(
    weight: Array, form: Format, curve: Curvature, rounding: Rounding
) -> tuple[Array, Grid]:
    """Return codes [K, N] and the grid of a weight [K, N]."""
    rows, columns = weight.shape
    codes = np.empty((rows, columns), np.uint8)
    n_blocks = form.blocks(rows)
    scale, zero = np.empty((2, n_blocks, columns), np.float32)
    for j in range(0, columns, _COLUMNS):
        part = np.ascontiguousarray(weight[:, j : j + _COLUMNS], np.float32)
        grid = (
            searched_grid(part, form, curve.importance) if rounding.searches else _plain(part, form)
        )
        found = _rounded(part.copy(), form, grid, curve, rounding.block)
        for _ in range(rounding.sweeps):
            assert curve.hessian is not None
            found, grid = _descended(part, form, found, grid, curve.hessian)
        codes[:, j : j + _COLUMNS] = found
        scale[:, j : j + _COLUMNS], zero[:, j : j + _COLUMNS] = grid.scale, grid.zero
    return codes, Grid(scale, zero)


def _plain(part: Array, form: Format) -> Grid:
    from sardonyx.quantization.weight_only.grid import padded_blocks, range_grid

    return range_grid(padded_blocks(part, form), form)


def _rounded(w: Array, form: Format, grid: Grid, curve: Curvature, step: int) -> Array:
    """Round the rows of a weight in order; `w` is overwritten."""
    low, high = form.codes
    order, factor = curve.order, curve.factor
    w = w[order]
    codes = np.empty(w.shape, np.uint8)
    for start in range(0, len(order), step):
        end = min(start + step, len(order))
        block, errors = w[start:end], np.empty((end - start, w.shape[1]), np.float32)
        within = factor[start:end, start:end]
        for i in range(end - start):
            row, group = order[start + i], order[start + i] // form.block
            scale, zero = grid.scale[group], grid.zero[group]
            code = np.clip(np.rint(block[i] / scale) + zero, low, high)
            codes[row] = code
            errors[i] = (block[i] - (code - zero) * scale) / within[i, i]
            block[i + 1 :] -= np.outer(within[i, i + 1 :], errors[i])
        w[end:] -= factor[start:end, end:].T @ errors
    return codes


def _descended(
    weight: Array, form: Format, codes: Array, grid: Grid, hessian: Array
) -> tuple[Array, Grid]:
    """Change the scale, then the codes of each block to their optimum, one after the other."""
    low, high = form.codes
    values = grid.values(codes, form)
    slope = hessian @ (values - weight)  # half the gradient of the error
    codes, scale = codes.copy(), grid.scale.copy()
    for group in range(len(scale)):
        rows = slice(group * form.block, min((group + 1) * form.block, len(weight)))
        before = values[rows].copy()
        local, zero = hessian[rows, rows], grid.zero[group]
        inner = slope[rows].copy()
        centered = codes[rows].astype(np.float32) - zero
        curve = np.einsum("kn,kn->n", centered, local @ centered)
        change = -np.einsum("kn,kn->n", centered, inner)
        change = np.divide(change, curve, out=np.zeros_like(change), where=curve > 0)
        scale[group] += np.where(scale[group] + change == 0, 0, change)
        current = centered * scale[group]
        inner += local @ (current - before)
        for i in range(len(current)):
            wish = (current[i] - inner[i] / local[i, i]) / scale[group]
            code = np.clip(np.rint(wish) + zero, low, high)
            moved = (code - zero) * scale[group] - current[i]
            codes[rows.start + i] = code
            current[i] += moved
            inner[i + 1 :] += np.outer(local[i + 1 :, i], moved)
        values[rows] = current
        slope += hessian[:, rows] @ (current - before)
    return codes, replace(grid, scale=scale)


def error(weight: Array, quantized: Array, hessian: Array) -> float:
    """Return |X (W - Q)|^2 relative to |X W|^2."""
    wide, difference = weight.astype(np.float64), np.subtract(weight, quantized, dtype=np.float64)
    lost = float(np.einsum("kn,kn->", difference, hessian @ difference))
    return lost / max(float(np.einsum("kn,kn->", wide, hessian @ wide)), 1e-300)
