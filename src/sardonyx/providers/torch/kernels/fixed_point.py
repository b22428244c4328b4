"""Floats as whole numbers of three digits, so that products with few-bit weights are exact sums.

A unit is 32 numbers in a row that share a step. Each number is a multiple of the step of 22 bits
and a sign, in digits of 8, 8 and 7 bits. A word of weights holds eight of a row: four in the low
halves of its bytes, the next four in the high ones. So a unit's words come in pairs, for the low
and for the high halves: `low0 high0 low1 high1 low2 high2`, four words each; then the sum of the
unit's numbers, and the step.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc,no-any-return,assignment"

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

from sardonyx.providers.torch.kernels.intrinsics import larger, rounded

UNIT: Final = 32
WORDS: Final = 26  # of a unit in memory: six times four, the sum, the step
_MOST: Final = tl.constexpr(4177792.0)  # 32639 * 2^7: the first digit stays in a signed byte


@triton.jit
def _packed(digit, units: tl.constexpr):
    fours = tl.reshape(digit & 255, [units * 8, 4])
    return tl.sum(fours << (tl.arange(0, 4) * 8)[None, :], 1)


@triton.jit
def digits_of(x, units: tl.constexpr):
    """The words of float32 numbers [units * 32], for threads that each take a unit."""
    x = tl.reshape(x, [units, 32])
    top = tl.reduce(tl.abs(x), 1, larger)
    # Steps under float32's smallest normal number would lose the inverse.
    inverse = tl.where(top > 1e-30, _MOST / top, 0.0)
    step = top * (1.0 / _MOST)
    t = rounded(x * inverse[:, None])
    total = tl.sum(t, 1)
    d2 = ((t + 64) & 127) - 64
    t = (t - d2) >> 7
    d1 = ((t + 128) & 255) - 128
    d0 = (t - d1) >> 8
    # Sum and step take the words' way, so that they arrive in the threads that have the words.
    is_low = ((tl.arange(0, 32) & 4) == 0)[None, :]
    both = tl.where(is_low, total[:, None], step.to(tl.int32, bitcast=True)[:, None])
    extra = tl.max(tl.reshape(both, [units * 8, 4]), 1)
    near = tl.join(_packed(d0, units), _packed(d1, units))
    far = tl.join(_packed(d2, units), extra)
    words = tl.reshape(tl.join(near, far), [units, 4, 2, 2, 2])
    near, far = tl.split(words)
    w0, w1 = tl.split(near)
    w2, w3 = tl.split(far)
    low0, high0 = tl.split(w0)
    low1, high1 = tl.split(w1)
    low2, high2 = tl.split(w2)
    total, step = tl.split(w3)
    total = tl.max(total, 1)
    return (
        low0,
        high0,
        low1,
        high1,
        low2,
        high2,
        total,
        tl.max(step, 1).to(tl.float32, bitcast=True),
    )


@triton.jit
def load_digits(p, first, n_units: tl.constexpr, units: tl.constexpr, teams: tl.constexpr):
    """The words of units [first, first + units) from memory, once for each team of warps."""
    team = tl.arange(0, teams)[None, :] * 0
    at = first * 4 + tl.arange(0, units * 4)[:, None] + team
    ok = at < n_units * 4
    words = ()
    for i in tl.static_range(6):
        word = tl.load(p + 4 * i * n_units + at, ok, 0)
        words = words + (tl.reshape(word, [units, 4, 1, teams]),)
    unit = first + tl.arange(0, units)[:, None] + team
    total = tl.load(p + 24 * n_units + unit, unit < n_units, 0)
    step = tl.load(p + 25 * n_units + unit, unit < n_units, 0).to(tl.float32, bitcast=True)
    return words + (total[:, None, :], step[:, None, :])


@triton.jit
def put_digits(p, words, unit, n_units):
    """Writes the words of units to their places in a row of n_units; places < 0 are none."""
    low0, high0, low1, high1, low2, high2, total, step = words
    at = unit[:, None] * 4 + tl.arange(0, 4)[None, :]
    ok = (unit >= 0) & (unit < n_units)
    is_word = ok[:, None] & (tl.arange(0, 4) >= 0)[None, :]
    tl.store(p + at, low0, is_word)
    tl.store(p + 4 * n_units + at, high0, is_word)
    tl.store(p + 8 * n_units + at, low1, is_word)
    tl.store(p + 12 * n_units + at, high1, is_word)
    tl.store(p + 16 * n_units + at, low2, is_word)
    tl.store(p + 20 * n_units + at, high2, is_word)
    tl.store(p + 24 * n_units + unit, total, ok)
    tl.store(p + 25 * n_units + unit, step.to(tl.int32, bitcast=True), ok)
