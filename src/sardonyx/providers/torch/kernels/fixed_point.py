"""Block fixed point: activations as integers, so that dot products with n-bit weights are exact.

A unit is 32 consecutive values that share a scale. Each value is an integer multiple of the scale,
of 22 bits and a sign, split into three signed limbs of 8, 8 and 7 bits for dp4a. A word of weights
holds eight values: four in the low nibbles of its bytes, the next four in the high nibbles. The
words of each limb therefore come in pairs, for low and high nibbles: `low0 high0 low1 high1 low2
high2`, four words each; then the sum of the unit's integers (for zero points), and the scale.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc,no-any-return,assignment"

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

from sardonyx.providers.torch.kernels.intrinsics import nan_max, rounded

UNIT: Final = 32
WORDS: Final = 26  # per unit in memory: six times four words of limbs, the sum, the scale
_MAX: Final = tl.constexpr(4177792.0)  # 32639 * 2^7: the first limb still fits a signed byte


@triton.jit
def _pack_bytes(limb, units: tl.constexpr):
    """Return four limbs to a 32-bit word: [units * 8]."""
    fours = tl.reshape(limb & 255, [units * 8, 4])
    return tl.sum(fours << (tl.arange(0, 4) * 8)[None, :], 1)


@triton.jit
def to_fixed_point(x, units: tl.constexpr):
    """Return the words of float32 values [units * 32]; each thread holds whole units.

    The joins and splits below only permute registers, if the compiler assigns a unit to a thread.
    """
    x = tl.reshape(x, [units, 32])
    top = tl.reduce(tl.abs(x), 1, nan_max)
    # The inverse of a scale near float32's smallest normal number would overflow.
    inverse = tl.where(top > 1e-30, _MAX / top, 0.0)
    scale = top * (1.0 / _MAX)
    t = rounded(x * inverse[:, None])
    total = tl.sum(t, 1)
    # Balanced limbs, lowest first: each remainder is centred on zero.
    limb2 = ((t + 64) & 127) - 64
    t = (t - limb2) >> 7
    limb1 = ((t + 128) & 255) - 128
    limb0 = (t - limb1) >> 8
    # Sum and scale are routed like the words, so that they end in the same threads.
    is_low = ((tl.arange(0, 32) & 4) == 0)[None, :]
    both = tl.where(is_low, total[:, None], scale.to(tl.int32, bitcast=True)[:, None])
    extra = tl.max(tl.reshape(both, [units * 8, 4]), 1)
    near = tl.join(_pack_bytes(limb0, units), _pack_bytes(limb1, units))
    far = tl.join(_pack_bytes(limb2, units), extra)
    words = tl.reshape(tl.join(near, far), [units, 4, 2, 2, 2])
    near, far = tl.split(words)
    w0, w1 = tl.split(near)
    w2, w3 = tl.split(far)
    low0, high0 = tl.split(w0)
    low1, high1 = tl.split(w1)
    low2, high2 = tl.split(w2)
    total, scale = tl.split(w3)
    scale = tl.max(scale, 1).to(tl.float32, bitcast=True)
    return low0, high0, low1, high1, low2, high2, tl.max(total, 1), scale


@triton.jit
def load_fixed_point(p, first, n_units: tl.constexpr, units: tl.constexpr, teams: tl.constexpr):
    """Return the words of units [first, first + units), once for each team of warps."""
    team = tl.arange(0, teams)[None, :] * 0
    at = first * 4 + tl.arange(0, units * 4)[:, None] + team
    ok = at < n_units * 4
    words = ()
    for i in tl.static_range(6):
        word = tl.load(p + 4 * i * n_units + at, ok, 0)
        words = words + (tl.reshape(word, [units, 4, 1, teams]),)
    unit = first + tl.arange(0, units)[:, None] + team
    total = tl.load(p + 24 * n_units + unit, unit < n_units, 0)
    scale = tl.load(p + 25 * n_units + unit, unit < n_units, 0).to(tl.float32, bitcast=True)
    return words + (total[:, None, :], scale[:, None, :])


@triton.jit
def store_fixed_point(p, words, unit, n_units):
    """Store the words of units in a row of n_units; units outside of [0, n_units) are skipped.

    Structure of arrays: all low0 words of the row, then all high0 words, and so on.
    """
    low0, high0, low1, high1, low2, high2, total, scale = words
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
    tl.store(p + 25 * n_units + unit, scale.to(tl.int32, bitcast=True), ok)
