"""The kernel that multiplies few rows with few-bit weights, which it reads once."""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc,no-any-return,assignment"

from __future__ import annotations

import triton
import triton.language as tl

from sardonyx.providers.torch.kernels.fixed_point import digits_of, load_digits, put_digits
from sardonyx.providers.torch.kernels.intrinsics import dot4, let_next, wait_before


@triton.jit
def _fetch(w, row, first: tl.constexpr, units: tl.constexpr, plan: tl.constexpr):
    """Words, scales and zero points of rows and of units [first, first + units)."""
    q, scale, zero, n, one = w
    n_units: tl.constexpr = plan[0]
    per: tl.constexpr = plan[1]
    kind: tl.constexpr = plan[2]
    n_blocks: tl.constexpr = (n_units + per - 1) // per
    flat = first * 4 + tl.arange(0, units * 4)
    ok = (row < n)[None, :]
    at = row[None, :].to(tl.int64)
    words = tl.load(q + at * (n_units * 4) + flat[:, None], ok & (flat < n_units * 4)[:, None], 0)
    # The factor of 1 is not known to the compiler, which so keeps one unit to a thread.
    unit = (first + tl.arange(0, units))[:, None] * one
    ok = ok & (unit < n_units)
    block = unit // per
    s = tl.load(scale + at * n_blocks + block, ok, 0.0).to(tl.float32)
    z = tl.zeros([units, row.shape[0]], tl.int32)
    if kind == 1:
        z = tl.load(zero + at * ((n_blocks + 1) // 2) + block // 2, ok, 0).to(tl.int32)
        z = (z >> (4 * (block & 1))) & 15
    elif kind == 2:
        z = tl.load(zero + at * n_blocks + block, ok, 0.0).to(tl.float32).to(tl.int32, bitcast=True)
    return words, s, z


@triton.jit
def _product(tile, x, units: tl.constexpr, rows: tl.constexpr, plan: tl.constexpr):
    """What units [units] give for rows: [units, rows]."""
    words, s, z = tile
    low0, high0, low1, high1, low2, high2, total, step = x
    kind: tl.constexpr = plan[2]
    default: tl.constexpr = plan[3]
    teams: tl.constexpr = plan[4]
    turns: tl.constexpr = rows // teams
    q = tl.reshape(words, [units, 4, turns, teams])
    s = tl.reshape(s, [units, turns, teams])
    z = tl.reshape(z, [units, turns, teams])
    low = q & 0x0F0F0F0F
    high = (q >> 4) & 0x0F0F0F0F
    none = tl.zeros_like(q)
    d0 = tl.sum(dot4(low, low0, dot4(high, high0, none)), 1)
    d1 = tl.sum(dot4(low, low1, dot4(high, high1, none)), 1)
    d2 = tl.sum(dot4(low, low2, dot4(high, high2, none)), 1)
    # The sum with centred weights fits in 32 bits, so it does not matter that parts may wrap.
    d = (d0 << 15) + (d1 << 7) + d2
    if kind == 2:
        f = d.to(tl.float32) - z.to(tl.float32, bitcast=True) * total.to(tl.float32)
    elif kind == 1:
        f = (d - z * total).to(tl.float32)
    else:
        f = (d - default * total).to(tl.float32)
    return f * (s * step)


@triton.jit
def _spread(words):
    """The digits of all teams alike."""
    low0, high0, low1, high1, low2, high2, total, step = words
    return (
        low0[:, :, None, None], high0[:, :, None, None], low1[:, :, None, None],
        high1[:, :, None, None], low2[:, :, None, None], high2[:, :, None, None],
        total[:, None, None], step[:, None, None],
    )  # fmt: skip


@triton.jit
def _second(w, plan: tl.constexpr):
    """The rows behind the first n."""
    q, scale, zero, n, one = w
    n_units: tl.constexpr = plan[0]
    per: tl.constexpr = plan[1]
    kind: tl.constexpr = plan[2]
    n_blocks: tl.constexpr = (n_units + per - 1) // per
    if kind == 1:
        zero += n * ((n_blocks + 1) // 2)
    elif kind == 2:
        zero += n * n_blocks
    return q + n * (n_units * 4), scale + n * n_blocks, zero, n, one


@triton.jit
def _tiles(w, row, plan: tl.constexpr, shape: tl.constexpr):
    """The tiles of all units for rows."""
    units: tl.constexpr = shape[0]
    parts: tl.constexpr = shape[1]
    tiles = ()
    for i in tl.static_range(parts):
        tiles = tiles + (_fetch(w, row, i * units, units, plan),)
    return tiles


@triton.jit
def _sums(tiles, xs, plan: tl.constexpr, shape: tl.constexpr):
    """One number for each row."""
    units: tl.constexpr = shape[0]
    parts: tl.constexpr = shape[1]
    rows: tl.constexpr = shape[2]
    total = _product(tiles[0], xs[0], units, rows, plan)
    for i in tl.static_range(1, parts):
        total += _product(tiles[i], xs[i], units, rows, plan)
    return tl.reshape(tl.sum(total, 0), [rows])


@triton.jit
def _all_digits(
    x, gain, k: tl.constexpr, plan: tl.constexpr, shape: tl.constexpr, from_digits: tl.constexpr
):
    """The digits of all units of a row, and the sum of squares."""
    units: tl.constexpr = shape[0]
    parts: tl.constexpr = shape[1]
    n_units: tl.constexpr = plan[0]
    xs = ()
    squares = 0.0
    if from_digits and gain is not None:  # what the kernel before summed up for each unit
        for i in tl.static_range(parts):
            at = i * units + tl.arange(0, units)
            squares += tl.sum(tl.load(gain + at, at < n_units, 0.0), 0)
    for i in tl.static_range(parts):
        if from_digits:
            xs = xs + (load_digits(x, i * units, n_units, units, plan[4]),)
        else:
            at = i * units * 32 + tl.arange(0, units * 32)
            value = tl.load(x + at, at < k, 0.0).to(tl.float32)
            if gain is not None:
                squares += tl.sum(value * value, 0)
                value *= tl.load(gain + at, at < k, 0.0).to(tl.float32)
            xs = xs + (_spread(digits_of(value, units)),)
    return xs, squares


@triton.jit
def _finish(value, other, row, m, n, factor, bias, residual, gated: tl.constexpr):
    """What is done to sums before they are stored."""
    value = value * factor
    if bias is not None:
        value += tl.load(bias + row, row < n, 0.0).to(tl.float32)
    if gated:
        other = other * factor
        if bias is not None:
            other += tl.load(bias + n + row, row < n, 0.0).to(tl.float32)
        value = value / (1 + tl.exp(-value)) * other
    if residual is not None:
        value += tl.load(residual + m * n + row, row < n, 0.0).to(tl.float32)
    return value


@triton.jit(do_not_specialize=["one"])
def rows_kernel(
    x, q, scale, zero, gain, bias, residual, y, out, next_gain, squares_out, n, one, eps,
    k: tl.constexpr, plan: tl.constexpr, shape: tl.constexpr, n_rows: tl.constexpr,
    group: tl.constexpr, from_digits: tl.constexpr, gated: tl.constexpr, overlap: tl.constexpr,
):  # fmt: skip
    """y = x W^T for tiles of rows of W; each program takes groups of tiles.

    `plan` is (units of a row, units of a block, kind of zero points, the default one,
    teams of warps that share a row), `shape`
    (units of a tile, tiles along a row, rows of a tile).
    """
    let_next(overlap)
    rows: tl.constexpr = shape[2]
    n_units: tl.constexpr = plan[0]
    me = tl.program_id(0)
    step = tl.num_programs(0)
    lane = tl.arange(0, rows)
    w = (q, scale, zero, n, one)
    w2 = _second(w, plan)
    row = me * (group * rows) + lane
    tiles = _tiles(w, row, plan, shape)
    tiles2 = tiles
    if gated:
        tiles2 = _tiles(w2, row, plan, shape)
    wait_before(overlap)
    xs, squares = _all_digits(x, gain, k, plan, shape, from_digits)
    factor = 1.0
    if gain is not None:
        factor = 1 / tl.sqrt(squares / k + eps)
    n_groups = tl.cdiv(n, group * rows)
    for j in range(0, tl.cdiv(n_groups - me, step) * group):
        i = j + 1
        first = (me + (i // group) * step) * (group * rows) + (i % group) * rows
        ahead = _tiles(w, first + lane, plan, shape)
        ahead2 = ahead
        if gated:
            ahead2 = _tiles(w2, first + lane, plan, shape)
        for m in tl.static_range(n_rows):
            if n_rows > 1:
                more = None if gain is None else gain + m * n_units
                xs, squares = _all_digits(x + m * (26 * n_units), more, k, plan, shape, True)
                if gain is not None:
                    factor = 1 / tl.sqrt(squares / k + eps)
            value = _sums(tiles, xs, plan, shape)
            other = value
            if gated:
                other = _sums(tiles2, xs, plan, shape)
            value = _finish(value, other, row, m, n, factor, bias, residual, gated)
            tl.store(y + m * n + row, value.to(y.dtype.element_ty), row < n)
        if out is not None and i % group == 0:
            tl.debug_barrier()  # all of a unit are stored
            at = tl.min(row, 0) // 32 * 32
            for m in tl.static_range(n_rows):
                unit = at + tl.arange(0, 32)
                numbers = tl.load(y + m * n + unit, unit < n, 0.0).to(tl.float32)
                if next_gain is not None:
                    tl.store(
                        squares_out + m * tl.cdiv(n, 32) + at // 32, tl.sum(numbers * numbers, 0)
                    )
                    numbers *= tl.load(next_gain + unit, unit < n, 0.0).to(tl.float32)
                words = digits_of(numbers, 1)
                n_out = tl.cdiv(n, 32)
                put_digits(out + m * (26 * n_out), words, at // 32 + tl.arange(0, 1), n_out)
        tiles = ahead
        tiles2 = ahead2
        row = first + lane


@triton.jit
def digits_kernel(
    x, gain, words, eps,
    k: tl.constexpr, n_units: tl.constexpr, units: tl.constexpr, overlap: tl.constexpr,
):  # fmt: skip
    """The digits of one row, over its root mean square times the gain where there is one."""
    let_next(overlap)
    wait_before(overlap)
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
        put_digits(words + row * (26 * n_units), digits_of(value, units), unit, n_units)
