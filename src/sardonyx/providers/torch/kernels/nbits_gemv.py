"""GEMV with n-bit weights: up to four rows of x, weights dequantized in registers and read once.

Memory bandwidth bounds it. Programs are persistent: each walks over tiles of weight rows and loads
the next tile while it computes this one. Integer dot products (dp4a) replace dequantization; x is
in block fixed point, which keeps about the accuracy of float32.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc,no-any-return,assignment"

from __future__ import annotations

import triton
import triton.language as tl

from sardonyx.providers.torch.kernels.fixed_point import (
    load_fixed_point,
    store_fixed_point,
    to_fixed_point,
)
from sardonyx.providers.torch.kernels.intrinsics import dot4, launch_dependents, wait_for_previous


@triton.jit
def _load_weights(w, row, first: tl.constexpr, units: tl.constexpr, layout: tl.constexpr):
    """Return words, scales and zero points of weight rows, for units [first, first + units)."""
    q, scale, zero, n, one = w
    n_units: tl.constexpr = layout[0]
    units_per_block: tl.constexpr = layout[1]
    zero_kind: tl.constexpr = layout[2]
    n_blocks: tl.constexpr = (n_units + units_per_block - 1) // units_per_block
    flat = first * 4 + tl.arange(0, units * 4)
    ok = (row < n)[None, :]
    at = row[None, :].to(tl.int64)
    words = tl.load(q + at * (n_units * 4) + flat[:, None], ok & (flat < n_units * 4)[:, None], 0)
    # `one` is a runtime 1: the compiler cannot prove contiguity, so it does not vectorize these
    # loads and keeps one unit per thread, as the words have it.
    unit = (first + tl.arange(0, units))[:, None] * one
    ok = ok & (unit < n_units)
    block = unit // units_per_block
    s = tl.load(scale + at * n_blocks + block, ok, 0.0).to(tl.float32)
    z = tl.zeros([units, row.shape[0]], tl.int32)
    if zero_kind == 1:  # two 4-bit zero points to a byte
        z = tl.load(zero + at * ((n_blocks + 1) // 2) + block // 2, ok, 0).to(tl.int32)
        z = (z >> (4 * (block & 1))) & 15
    elif zero_kind == 2:
        z = tl.load(zero + at * n_blocks + block, ok, 0.0).to(tl.float32).to(tl.int32, bitcast=True)
    return words, s, z


@triton.jit
def _unit_products(tile, x, units: tl.constexpr, rows: tl.constexpr, layout: tl.constexpr):
    """Return the dot products of units with weight rows: [units, rows]."""
    words, s, z = tile
    low0, high0, low1, high1, low2, high2, total, x_scale = x
    zero_kind: tl.constexpr = layout[2]
    default_zero: tl.constexpr = layout[3]
    teams: tl.constexpr = layout[4]
    rows_per_team: tl.constexpr = rows // teams
    q = tl.reshape(words, [units, 4, rows_per_team, teams])
    s = tl.reshape(s, [units, rows_per_team, teams])
    z = tl.reshape(z, [units, rows_per_team, teams])
    # Four codes in the bytes of a word: one dp4a multiplies them with four limbs of x.
    low = q & 0x0F0F0F0F
    high = (q >> 4) & 0x0F0F0F0F
    none = tl.zeros_like(q)
    d0 = tl.sum(dot4(low, low0, dot4(high, high0, none)), 1)
    d1 = tl.sum(dot4(low, low1, dot4(high, high1, none)), 1)
    d2 = tl.sum(dot4(low, low2, dot4(high, high2, none)), 1)
    # The sum with centred weights fits in 32 bits, so intermediate sums may wrap.
    d = (d0 << 15) + (d1 << 7) + d2
    # sum((q - zero) * x) = sum(q * x) - zero * sum(x)
    if zero_kind == 2:
        f = d.to(tl.float32) - z.to(tl.float32, bitcast=True) * total.to(tl.float32)
    elif zero_kind == 1:
        f = (d - z * total).to(tl.float32)
    else:
        f = (d - default_zero * total).to(tl.float32)
    return f * (s * x_scale)


@triton.jit
def _broadcast_to_teams(words):
    """Return fixed-point words with the axes of `load_fixed_point`, the same for all teams."""
    low0, high0, low1, high1, low2, high2, total, scale = words
    return (
        low0[:, :, None, None], high0[:, :, None, None], low1[:, :, None, None],
        high1[:, :, None, None], low2[:, :, None, None], high2[:, :, None, None],
        total[:, None, None], scale[:, None, None],
    )  # fmt: skip


@triton.jit
def _second_half(w, layout: tl.constexpr):
    """Return the weights from row n on: the `up` half of a gated matmul."""
    q, scale, zero, n, one = w
    n_units: tl.constexpr = layout[0]
    units_per_block: tl.constexpr = layout[1]
    zero_kind: tl.constexpr = layout[2]
    n_blocks: tl.constexpr = (n_units + units_per_block - 1) // units_per_block
    if zero_kind == 1:
        zero += n * ((n_blocks + 1) // 2)
    elif zero_kind == 2:
        zero += n * n_blocks
    return q + n * (n_units * 4), scale + n * n_blocks, zero, n, one


@triton.jit
def _load_tiles(w, row, layout: tl.constexpr, tile: tl.constexpr):
    """Return the tiles of all units of weight rows."""
    units: tl.constexpr = tile[0]
    n_tiles: tl.constexpr = tile[1]
    tiles = ()
    for i in tl.static_range(n_tiles):
        tiles = tiles + (_load_weights(w, row, i * units, units, layout),)
    return tiles


@triton.jit
def _dot_rows(tiles, xs, layout: tl.constexpr, tile: tl.constexpr):
    """Return the dot product of x with each weight row: [rows]."""
    units: tl.constexpr = tile[0]
    n_tiles: tl.constexpr = tile[1]
    rows: tl.constexpr = tile[2]
    total = _unit_products(tiles[0], xs[0], units, rows, layout)
    for i in tl.static_range(1, n_tiles):
        total += _unit_products(tiles[i], xs[i], units, rows, layout)
    return tl.reshape(tl.sum(total, 0), [rows])


@triton.jit
def _load_x(
    x, gain, k: tl.constexpr, layout: tl.constexpr, tile: tl.constexpr, is_fixed: tl.constexpr
):
    """Return the fixed-point words of all units of a row of x, and its sum of squares.

    If x is fixed point, `gain` holds the sums of squares of its units, from the kernel before.
    """
    units: tl.constexpr = tile[0]
    n_tiles: tl.constexpr = tile[1]
    n_units: tl.constexpr = layout[0]
    xs = ()
    squares = 0.0
    if is_fixed and gain is not None:
        for i in tl.static_range(n_tiles):
            at = i * units + tl.arange(0, units)
            squares += tl.sum(tl.load(gain + at, at < n_units, 0.0), 0)
    for i in tl.static_range(n_tiles):
        if is_fixed:
            xs = xs + (load_fixed_point(x, i * units, n_units, units, layout[4]),)
        else:
            at = i * units * 32 + tl.arange(0, units * 32)
            value = tl.load(x + at, at < k, 0.0).to(tl.float32)
            if gain is not None:
                squares += tl.sum(value * value, 0)
                value *= tl.load(gain + at, at < k, 0.0).to(tl.float32)
            xs = xs + (_broadcast_to_teams(to_fixed_point(value, units)),)
    return xs, squares


@triton.jit
def _epilogue(value, up, row, m, n, factor, bias, residual, gated: tl.constexpr):
    """Return results after the norm's factor, bias, silu gate and residual."""
    value = value * factor
    if bias is not None:
        value += tl.load(bias + row, row < n, 0.0).to(tl.float32)
    if gated:
        up = up * factor
        if bias is not None:
            up += tl.load(bias + n + row, row < n, 0.0).to(tl.float32)
        # SwiGLU: silu(gate) * up.
        value = value / (1 + tl.exp(-value)) * up
    if residual is not None:
        value += tl.load(residual + m * n + row, row < n, 0.0).to(tl.float32)
    return value


@triton.jit
def _store_fixed_results(y, out, next_gain, squares_out, at, n, n_rows: tl.constexpr):
    """Convert the unit of results at column `at` to fixed point for the next matmul.

    With `next_gain` the next RMS norm is prepared: the gain is applied, and the unit's sum of
    squares stored; the next kernel applies the common factor to its results.
    """
    n_units = tl.cdiv(n, 32)
    column = at + tl.arange(0, 32)
    for m in tl.static_range(n_rows):
        values = tl.load(y + m * n + column, column < n, 0.0).to(tl.float32)
        if next_gain is not None:
            tl.store(squares_out + m * n_units + at // 32, tl.sum(values * values, 0))
            values *= tl.load(next_gain + column, column < n, 0.0).to(tl.float32)
        words = to_fixed_point(values, 1)
        store_fixed_point(out + m * (26 * n_units), words, at // 32 + tl.arange(0, 1), n_units)


@triton.jit(do_not_specialize=["one"])
def gemv_kernel(
    x, q, scale, zero, gain, bias, residual, y, out, next_gain, squares_out, n, one, eps,
    k: tl.constexpr, layout: tl.constexpr, tile: tl.constexpr, n_rows: tl.constexpr,
    group: tl.constexpr, is_fixed: tl.constexpr, gated: tl.constexpr, overlap: tl.constexpr,
):  # fmt: skip
    """y = x W^T by tiles of weight rows; a program walks over groups of `group` tiles.

    `layout` is (units of a weight row, units of a block, kind of zero points, the default one,
    teams of warps that share a row), `tile` (units of a tile, tiles along a row, rows of a tile).
    """
    launch_dependents(overlap)
    rows: tl.constexpr = tile[2]
    n_units: tl.constexpr = layout[0]
    me = tl.program_id(0)
    n_programs = tl.num_programs(0)
    lane = tl.arange(0, rows)
    w = (q, scale, zero, n, one)
    w_up = _second_half(w, layout)
    row = me * (group * rows) + lane
    # Weights are constants: the first tiles are loaded before the previous kernel has ended.
    tiles = _load_tiles(w, row, layout, tile)
    up_tiles = tiles
    if gated:
        up_tiles = _load_tiles(w_up, row, layout, tile)
    wait_for_previous(overlap)
    xs, squares = _load_x(x, gain, k, layout, tile, is_fixed)
    factor = 1.0
    if gain is not None:
        factor = 1 / tl.sqrt(squares / k + eps)
    n_groups = tl.cdiv(n, group * rows)
    for j in range(0, tl.cdiv(n_groups - me, n_programs) * group):
        # Software prefetch of the next tile; rows past n are masked.
        i = j + 1
        first = (me + (i // group) * n_programs) * (group * rows) + (i % group) * rows
        next_tiles = _load_tiles(w, first + lane, layout, tile)
        next_up_tiles = next_tiles
        if gated:
            next_up_tiles = _load_tiles(w_up, first + lane, layout, tile)
        for m in tl.static_range(n_rows):
            if n_rows > 1:  # several rows do not fit in registers: re-read, from L1
                more = None if gain is None else gain + m * n_units
                xs, squares = _load_x(x + m * (26 * n_units), more, k, layout, tile, True)
                if gain is not None:
                    factor = 1 / tl.sqrt(squares / k + eps)
            value = _dot_rows(tiles, xs, layout, tile)
            up = value
            if gated:
                up = _dot_rows(up_tiles, xs, layout, tile)
            value = _epilogue(value, up, row, m, n, factor, bias, residual, gated)
            tl.store(y + m * n + row, value.to(y.dtype.element_ty), row < n)
        if out is not None and i % group == 0:
            tl.debug_barrier()  # all threads have stored their results of the unit
            at = tl.min(row, 0) // 32 * 32
            _store_fixed_results(y, out, next_gain, squares_out, at, n, n_rows)
        tiles = next_tiles
        up_tiles = next_up_tiles
        row = first + lane


@triton.jit
def fixed_point_kernel(
    x, gain, words, eps,
    k: tl.constexpr, n_units: tl.constexpr, units: tl.constexpr, overlap: tl.constexpr,
):  # fmt: skip
    """Convert one row to fixed point, after an RMS norm if a gain is given."""
    launch_dependents(overlap)
    wait_for_previous(overlap)
    row = tl.program_id(0)
    factor = 1.0
    if gain is not None:
        total = tl.zeros([units * 32], tl.float32)
        for first in range(0, k, units * 32):
            at = first + tl.arange(0, units * 32)
            value = tl.load(x + row * k + at, at < k, 0.0).to(tl.float32)
            total += value * value
        factor = 1 / tl.sqrt(tl.sum(total, 0) / k + eps)
    for first in range(0, n_units, units):
        at = first * 32 + tl.arange(0, units * 32)
        value = tl.load(x + row * k + at, at < k, 0.0).to(tl.float32) * factor
        if gain is not None:
            value *= tl.load(gain + at, at < k, 0.0).to(tl.float32)
        unit = first + tl.arange(0, units)
        row_words = words + row * (26 * n_units)
        store_fixed_point(row_words, to_fixed_point(value, units), unit, n_units)


@triton.jit
def dequantize_kernel(
    q, scale, zero, y,
    k: tl.constexpr, layout: tl.constexpr, block: tl.constexpr, overlap: tl.constexpr,
):  # fmt: skip
    """A block of a row; `layout` is (units, units per block, kind of zero points, the default)."""
    wait_for_previous(overlap)
    n_units: tl.constexpr = layout[0]
    zero_kind: tl.constexpr = layout[2]
    n_blocks: tl.constexpr = (n_units + layout[1] - 1) // layout[1]
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    ok = at < k
    word = tl.load(q + row * (n_units * 4) + at // 8, ok, 0)
    within = at % 8  # four in the low nibbles of bytes, then four in the high nibbles
    code = ((word >> (8 * (within % 4) + 4 * (within // 4))) & 15).to(tl.float32)
    group = at // 32 // layout[1]  # the block of a weight
    if zero_kind == 1:
        pair = tl.load(zero + row * ((n_blocks + 1) // 2) + group // 2, ok, 0).to(tl.int32)
        code -= ((pair >> (4 * (group & 1))) & 15).to(tl.float32)
    elif zero_kind == 2:
        code -= tl.load(zero + row * n_blocks + group, ok, 0.0).to(tl.float32)
    else:
        code -= layout[3]
    value = code * tl.load(scale + row * n_blocks + group, ok, 0.0).to(tl.float32)
    tl.store(y + row * k + at, value.to(y.dtype.element_ty), ok)
