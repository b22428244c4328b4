"""Random streams: sequences of numbers that a key and the number of a run determine.

Words come from counters (`philox`), so the native kernels (`native/kernels/random/`) draw the same
ones in any split over threads. A batch is 16 counters: its first words, then its second ones, ...
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

import sardonyx._native as native
from sardonyx.ops.arrays import Array
from sardonyx.ops.random.mask import philox

Stream = tuple[int, int]  # the key and the number of the run
Seed = float | Stream | None

_COUNTERS: Final = 16  # of a batch, `kCounters` of the native kernels
_WORDS: Final = 4  # of a counter
_BITS: Final = 2**64


def key_of(seed: float) -> int:
    """Return the key of a seed: its bits as float64, so that fractions and signs differ as well."""
    return int(np.float64(seed).view(np.uint64))


def stream_of(seed: Seed) -> Stream:
    """Return the stream of a seed; without one, the next stream of the process."""
    if seed is None:
        return native.next_random_stream()
    return seed if isinstance(seed, tuple) else (key_of(seed), 0)


def generator(seed: Seed) -> np.random.Generator:
    """Return a generator of numpy for a stream, for ops that draw as they go."""
    key, run = stream_of(seed)
    return np.random.Generator(np.random.Philox(key=key + run * _BITS))


def seed_streams(seed: int) -> None:
    """Make the next streams of the process repeatable."""
    native.set_random_stream(abs(int(seed)) % _BITS, 0)


def words(stream: Stream, count: int) -> Array:
    """Return the first words of a stream, as rows of 16 counters: [batches, 4, 16]."""
    key, run = stream
    n_batches = -(-count // (_COUNTERS * _WORDS))
    drawn = philox(np.arange(n_batches * _COUNTERS, dtype=np.uint64), run, key)
    return np.stack([w.reshape(-1, _COUNTERS) for w in drawn], axis=1).astype(np.uint32)


def uniform(seed: Seed, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return numbers in [0, 1) of type float32, with 24 bits, or float64, with 53."""
    count = math.prod(shape)
    if dtype == np.float32:
        drawn = (words(stream_of(seed), count) >> np.uint32(8)).astype(np.float32) * 2.0**-24
    else:
        drawn = _joined(words(stream_of(seed), 2 * count)) * 2.0**-53
    return np.asarray(drawn, dtype).reshape(-1)[:count].reshape(shape)


def normal(seed: Seed, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return standard normal numbers of type float32 or float64 (Box and Muller)."""
    count = math.prod(shape)
    if dtype == np.float32:
        drawn = words(stream_of(seed), count)
        u = drawn[:, ::2].astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)
        fractions = (drawn[:, 1::2] >> np.uint32(8)).astype(np.float32)
        angle = fractions * np.float32(math.tau * 2.0**-24)
    else:
        joined = _joined(words(stream_of(seed), 2 * count))
        u, angle = (joined[:, :1] + 0.5) * 2.0**-53, joined[:, 1:] * (math.tau * 2.0**-53)
    radius = np.sqrt(-2 * np.log(u))
    drawn = np.stack((radius * np.cos(angle), radius * np.sin(angle)), axis=2)
    return np.asarray(drawn, dtype).reshape(-1)[:count].reshape(shape)


def _joined(drawn: Array) -> Array:
    """Return 53 bits of each two words as float64: [batches, 2, 16]."""
    wide = drawn.astype(np.uint64)
    return ((wide[:, ::2] << np.uint64(21)) | (wide[:, 1::2] >> np.uint64(11))).astype(np.float64)
