"""Matmul of a few rows with weights of 2 or 4 bits: packing of the weights, fused GEMV launches.

Float32 rows are converted to block fixed point of 22 bits and a sign, with a scale per 32 values:
about as accurate as a float32 sum. A value that is not finite makes its whole row not finite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from sardonyx.base.records import frozen
from sardonyx.providers.torch.dtypes import unpacked
from sardonyx.providers.torch.kernels import n_processors
from sardonyx.providers.torch.kernels.fixed_point import UNIT, WORDS
from sardonyx.providers.torch.kernels.launch import launch
from sardonyx.providers.torch.kernels.nbits_gemv import (
    dequantize_kernel,
    fixed_point_kernel,
    gemv_kernel,
)

if TYPE_CHECKING:
    from sardonyx.ops.nbits.internal import NBitsLayout

MAX_ROWS: Final = 4  # rows of x; with more, dequantization and a matmul on matrix units are faster
_CHUNK: Final = 1 << 24  # weights packed at a time, to bound the temporary memory
_DEFAULT, _PACKED, _FLOAT = 0, 1, 2  # kinds of zero points
# Larger k would exceed the registers of a program, which holds a whole row of x.
_MAX_K: Final = 32768
_BLOCK: Final = 1024  # weights dequantized by a program: eight per thread, one word


@frozen(eq=False)
class PackedWeights:
    """Weights [n, k] of 4 bits, padded to whole units of 32, in the order the kernels read."""

    q: Tensor  # int32 [n, units * 4]
    scale: Tensor  # [n, blocks]
    zero: Tensor | None  # uint8 [n, ceil(blocks / 2)], two to a byte; or floats [n, blocks]
    default_zero: int  # the zero point where `zero` is None
    k: int
    units_per_block: int

    @property
    def n(self) -> int:
        """Columns of the result."""
        return self.q.shape[0]

    @property
    def layout(self) -> tuple[int, int, int, int]:
        """The layout constants that the kernels are compiled for."""
        kind = (
            _DEFAULT if self.zero is None else _FLOAT if self.zero.is_floating_point() else _PACKED
        )
        return self.q.shape[1] // 4, self.units_per_block, kind, self.default_zero


@frozen(eq=False)
class FixedPointRows:
    """Rows of activations in block fixed point, as described in `fixed_point.py`."""

    words: Tensor  # int32 [rows, 26 * units]
    value: Tensor  # floats [rows, k], before a norm
    squares: Tensor | None = None  # [rows, units]: sums of squares for a norm not yet applied
    eps: float = 0.0  # epsilon of that norm


Norm = tuple[Tensor, float]  # gain, epsilon


def fits(form: NBitsLayout, scale: tuple[int, ...]) -> bool:
    """Return whether `pack` accepts weights of this layout with scales of this shape."""
    if form.bits not in (2, 4) or form.k < 1 or form.n < 1 or form.k > _MAX_K:
        return False
    is_one_block = form.n_blocks <= 1 or form.scale_strides(scale, "scales").block_stride == 0
    return is_one_block or form.block % UNIT == 0


def pack(
    q: Tensor, scale: Tensor, zero: Tensor | None, form: NBitsLayout, default: int = 0
) -> PackedWeights:
    """Return the weights in the kernels' layout, on the same device.

    q and zero hold one code per byte, or packed bytes of whole blocks.
    """
    grid = form.scale_strides(tuple(scale.shape), "scales")
    per_column = grid.block_stride == 0
    n_units = -(-form.k // UNIT)
    blocks = 1 if per_column else form.n_blocks
    # Signed codes are shifted to unsigned ones, and the zero points with them.
    shift = 1 << (form.bits - 1) if form.is_signed else 0
    words = torch.empty((form.n, n_units * 4), dtype=torch.int32, device=q.device)
    step = max(1, _CHUNK // (n_units * UNIT))
    for first in range(0, form.n, step):
        rows = slice(first, min(first + step, form.n))
        words[rows] = _pack_words(_codes(q, form, rows, shift), n_units)
    index = torch.arange(form.n, device=q.device)[:, None] * grid.column_stride
    index = index + torch.arange(blocks, device=q.device) * grid.block_stride
    scales = scale.reshape(-1)[index].contiguous()
    zeros = None if zero is None else _pack_zeros(zero, form, blocks, shift)
    per_block = n_units if per_column else form.block // UNIT
    return PackedWeights(words, scales, zeros, default + shift, form.k, max(per_block, 1))


def _codes(q: Tensor, form: NBitsLayout, rows: slice, shift: int) -> Tensor:
    """Return the codes [rows, k] of the weights, one per byte."""
    if form.is_k_major:
        codes = q[:, rows].t()
    elif form.is_blocked:
        codes = unpacked(q[rows].reshape(rows.stop - rows.start, -1), form.bits)[:, : form.k]
    else:
        codes = q[rows]
    return _to_unsigned(codes, form.bits, shift)


def _to_unsigned(codes: Tensor, bits: int, shift: int) -> Tensor:
    """Return codes in [0, 2^bits): signed ones are shifted up."""
    return ((codes.view(torch.uint8) + shift) if shift else codes) & ((1 << bits) - 1)


def _pack_words(codes: Tensor, n_units: int) -> Tensor:
    """Return eight codes to a word: four in the low nibbles of bytes, then four in the high ones.

    In this order one mask or one shift gives four codes that match four consecutive values of x.
    """
    missing = n_units * UNIT - codes.shape[1]
    if missing:
        codes = torch.nn.functional.pad(codes, (0, missing))
    eights = codes.reshape(codes.shape[0], n_units * 4, 2, 4)
    return (eights[:, :, 0] | (eights[:, :, 1] << 4)).contiguous().view(torch.int32)[..., 0]


def _pack_zeros(zero: Tensor, form: NBitsLayout, blocks: int, shift: int) -> Tensor:
    """Return the zero points: float32 [n, blocks], or two to a byte."""
    is_float = zero.is_floating_point()
    grid = form.zero_strides(tuple(zero.shape), not is_float)
    is_packed = form.is_blocked and not is_float
    flat = unpacked(zero.reshape(-1), form.bits) if is_packed else zero.reshape(-1)
    index = torch.arange(form.n, device=zero.device)[:, None] * grid.column_stride
    zeros = flat[index + torch.arange(blocks, device=zero.device) * grid.block_stride]
    if is_float:
        return zeros.float().contiguous()
    zeros = _to_unsigned(zeros, form.bits, shift)
    if blocks % 2:
        zeros = torch.nn.functional.pad(zeros, (0, 1))
    return (zeros[:, 0::2] | (zeros[:, 1::2] << 4)).contiguous()


@frozen
class Tiling:
    """Tile sizes and launch parameters of `gemv_kernel`."""

    shape: tuple[int, int, int]  # units of a tile, tiles along a row, rows of a tile
    n_warps: int
    programs_per_processor: int


def tiling(n_units: int, is_fixed: bool, gives_fixed_point: bool) -> Tiling:
    """Return the tiles for rows of `n_units`, for x in fixed point or not, and results likewise.

    One unit per thread and warp lane: a tile of 32 units is a warp wide. Results in fixed point
    need more registers, so fewer rows per tile or fewer programs per processor.
    """
    if n_units <= 32 * 4:
        # One wide tile: every program converts x itself, once for the whole row.
        if not is_fixed and 32 < n_units <= 64:
            return Tiling((64, 1, 8 if gives_fixed_point else 16), 8, 2)
        return Tiling((32, -(-n_units // 32), 8), 4, 2 if gives_fixed_point else 3)
    units = 256 if n_units <= 1024 else 512
    return Tiling((units, -(-n_units // units), 4), units // 32, 2)


def nbits_gemv(
    x: Tensor | FixedPointRows,
    weights: PackedWeights,
    *,
    norm: Norm | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    gated: bool = False,
    next_waits: bool = False,
) -> Tensor:
    """Return x [.., k] of up to MAX_ROWS rows times the weights: [.., n].

    With `norm`, x is RMS-normalized first. `gated`: the result is silu of the first half of the
    columns times the second half. Then the residual is added. `next_waits` says that the next
    kernel is one of ours, which may then start early.
    """
    return _launch_gemv(x, weights, (norm, bias, residual, gated), False, None, next_waits).value


def nbits_gemv_fixed_point(
    x: Tensor | FixedPointRows,
    weights: PackedWeights,
    *,
    norm: Norm | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    gated: bool = False,
    next_norm: Norm | None = None,
    next_waits: bool = False,
) -> FixedPointRows:
    """`nbits_gemv` with the result in fixed point for the next matmul, after `next_norm`."""
    fused = (norm, bias, residual, gated)
    return _launch_gemv(x, weights, fused, True, next_norm, next_waits)


def fixed_point(x: Tensor, norm: Norm | None = None, *, next_waits: bool = False) -> FixedPointRows:
    """Return rows [.., k] in fixed point, RMS-normalized first if `norm` is given."""
    flat = x.reshape(-1, x.shape[-1]).contiguous()
    n_rows, k = flat.shape
    n_units = -(-k // UNIT)
    words = torch.empty((n_rows, WORDS * n_units), dtype=torch.int32, device=x.device)
    gain, eps = norm if norm is not None else (None, 0.0)
    units = min(32, 1 << (n_units - 1).bit_length())
    if n_rows:
        arguments, constants = (flat, gain, words, eps), (k, n_units, units)
        launch(fixed_point_kernel, (n_rows, 1, 1), arguments, constants, 4, next_waits)
    return FixedPointRows(words, x)


Fused = tuple[Norm | None, Tensor | None, Tensor | None, bool]  # norm, bias, residual, gated


def _launch_gemv(
    x: Tensor | FixedPointRows,
    weights: PackedWeights,
    fused: Fused,
    gives_fixed_point: bool,
    next_norm: Norm | None,
    next_waits: bool,
) -> FixedPointRows:
    norm, bias, residual, gated = fused
    value = x.value if isinstance(x, FixedPointRows) else x
    n_rows = value.numel() // weights.k
    n = weights.n // 2 if gated else weights.n
    if n_rows > 1 and isinstance(x, Tensor):  # the kernel re-reads several rows: convert them once
        x, norm = fixed_point(x, norm, next_waits=True), None
    y = torch.empty((*value.shape[:-1], n), dtype=value.dtype, device=value.device)
    result = _new_result(y, n_rows, n, gives_fixed_point, next_norm)
    if not y.numel():
        return result
    is_fixed = isinstance(x, FixedPointRows)
    tile = tiling(weights.layout[0], is_fixed, gives_fixed_point)
    rows = tile.shape[2]
    # A program converts whole units of results, so it takes as many tiles as make a unit.
    group = max(1, UNIT // rows) if gives_fixed_point else 1
    max_programs = tile.programs_per_processor * n_processors(value.device)
    programs = min(-(-n // (rows * group)), max_programs)
    source = x.words if isinstance(x, FixedPointRows) else x.contiguous()
    gain, eps = _gain(x, norm)
    # Triton functions cannot return None in a tuple: without zero points, an unused pointer.
    zero = weights.scale if weights.zero is None else weights.zero
    arguments = (
        source, weights.q, weights.scale, zero, gain, bias,
        None if residual is None else residual.contiguous(), y,
        result.words if gives_fixed_point else None,
        None if next_norm is None else next_norm[0], result.squares, n, 1, eps,
    )  # fmt: skip
    # Warps that a tile is too narrow for work as teams on different rows.
    teams = min(max(1, tile.n_warps * UNIT // tile.shape[0]), rows)
    layout = (*weights.layout, teams)
    constants = (weights.k, layout, tile.shape, n_rows, group, is_fixed, gated)
    launch(gemv_kernel, (programs, 1, 1), arguments, constants, tile.n_warps, next_waits)
    return result


def _gain(x: Tensor | FixedPointRows, norm: Norm | None) -> tuple[Tensor | None, float]:
    """Return the scale and epsilon of a norm of x; of fixed-point rows, their sums of squares."""
    if isinstance(x, FixedPointRows) and x.squares is not None:
        return x.squares, x.eps
    return norm if norm is not None else (None, 0.0)


def _new_result(
    y: Tensor, n_rows: int, n: int, gives_fixed_point: bool, next_norm: Norm | None
) -> FixedPointRows:
    """Return uninitialized results, in fixed point if asked."""
    if not gives_fixed_point:
        return FixedPointRows(y, y)
    n_units = -(-n // UNIT)
    words = torch.empty((n_rows, WORDS * n_units), dtype=torch.int32, device=y.device)
    if next_norm is None:
        return FixedPointRows(words, y)
    squares = torch.empty((n_rows, n_units), dtype=torch.float32, device=y.device)
    return FixedPointRows(words, y, squares, next_norm[1])


def dequantize(weights: PackedWeights, dtype: torch.dtype) -> Tensor:
    """Return the weights [n, k] in a floating-point type."""
    y = torch.empty((weights.n, weights.k), dtype=dtype, device=weights.q.device)
    arguments = (weights.q, weights.scale, weights.zero, y)
    grid = (weights.n, -(-weights.k // _BLOCK), 1)
    launch(dequantize_kernel, grid, arguments, (weights.k, weights.layout, _BLOCK), 4)
    return y
