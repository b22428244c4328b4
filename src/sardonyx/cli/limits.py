"""What a machine can do at best, measured by kernels that wait for nothing."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

import sardonyx._native as native
from sardonyx.graph.dtype import by_numpy

# By type of what is multiplied: the row, and its operands, whose sums never overflow.
_ROWS: Final[Mapping[str, tuple[str, Any]]] = {
    "float32": ("fma_limit", np.array([0.5, 0.5], np.float32)),
    "float64": ("fma_limit_64", np.array([0.5, 0.5], np.float64)),
    "bfloat16": ("bf16_limit", np.array([0x3F003F00] * 2, np.uint32).view(np.float32)),
    "int8": ("dot_limit", np.array([0x01010101, 1], np.int32)),
}
TYPES: Final = tuple(_ROWS)

_ROUNDS: Final = 32  # of multiplications, for each thread
_TURN_S: Final = 0.01  # of repeating a measurement
_PART_BYTES: Final = 16 << 10  # of a stream, between two looks for more work
_CALL_BYTES: Final = 4 << 20  # of a call at least, so that calling takes no part of it
_CACHES: Final = 8  # a stream is so many times as large as a cache: cores may have several
_CACHE_FILES: Final = "/sys/devices/system/cpu/cpu0/cache"
_LEAST_BYTES: Final = 256 << 20
_MOST_BYTES: Final = 1 << 30


def tensor(array: Any) -> tuple[int, int, list[int], list[int]]:
    """An array as native calls take it."""
    dtype = by_numpy(array.dtype)
    assert dtype is not None
    strides = [s // array.itemsize for s in array.strides]
    return array.ctypes.data, dtype.onnx, list(array.shape), strides


def best(call: Callable[[], Any], seconds: float = _TURN_S) -> float:
    """The shortest of some runs, in seconds."""
    shortest, end = float("inf"), time.perf_counter() + seconds
    while True:
        began = time.perf_counter()
        call()
        now = time.perf_counter()
        shortest = min(shortest, now - began)
        if now >= end:
            return shortest


def _call(
    row: str, x: Any, made: list[Any], threads: int, isa: str = "", ints: Sequence[int] = ()
) -> None:
    outputs = [tensor(y) for y in made]
    wrong = native.call(row, [tensor(x)], outputs, ints, [], 0, isa, None, threads)
    assert not wrong, wrong


class Multiplying:
    """Multiplications and additions in registers; each turn may find a better rate."""

    def __init__(self, type_name: str, threads: int, isa: str = "") -> None:
        self._row, self._x = _ROWS[type_name]
        self._y = np.zeros((_ROUNDS * threads, 2), np.float32)
        self._isa, self._threads = isa, threads
        self.rate = 0.0  # operations per second, two to a multiplication with its addition

    def turn(self, seconds: float = _TURN_S) -> float:
        """Measures for a while, and says the best rate so far."""
        made = [self._y]
        took = best(lambda: _call(self._row, self._x, made, self._threads, self._isa), seconds)
        self.rate = max(self.rate, 2 * float(self._y[:, 0].sum()) / took)
        return self.rate


class Streaming:
    """Bytes that are read and written one after the other, and nothing else."""

    def __init__(self, n_read: int, n_written: int, threads: int) -> None:
        self.n_bytes = n_read + n_written
        # Words, whose sums never overflow; written to, since untouched pages are all one.
        self._x = np.ones(n_read // 4, np.int32).view(np.uint8)
        self._y = np.ones(n_written, np.uint8)
        self._sums = np.zeros(max(threads, self.n_bytes // _PART_BYTES), np.int32)
        self._threads = threads
        self._times = max(1, _CALL_BYTES // max(1, self.n_bytes))
        self.rate = 0.0  # bytes per second

    def turn(self, seconds: float = _TURN_S) -> float:
        """Measures for a while, and says the best rate so far."""
        made = [self._y, self._sums]
        ints = [self._times]
        took = best(lambda: _call("stream_limit", self._x, made, self._threads, ints=ints), seconds)
        self.rate = max(self.rate, self._times * self.n_bytes / took)
        return self.rate


def beyond_caches() -> int:
    """Bytes of which no cache holds much."""
    sizes = [_kilobytes(path) for path in pathlib.Path(_CACHE_FILES).glob("index*/size")]
    return min(max(_LEAST_BYTES, _CACHES * 1024 * max(sizes, default=0)), _MOST_BYTES)


def _kilobytes(path: pathlib.Path) -> int:
    """A size as Linux writes it: 32768K."""
    try:
        return int(path.read_text().strip().removesuffix("K"))
    except (OSError, ValueError):
        return 0


class Limits:
    """Rates of multiplications by type, and of reads from memory; measured in turns."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._multiplying = {t: Multiplying(t, threads) for t in TYPES}
        self._reading = Streaming(beyond_caches(), 0, threads)

    def turn(self) -> None:
        """Measures everything once more."""
        for one in self._multiplying.values():
            one.turn()
        self._reading.turn()

    @property
    def rates(self) -> dict[str, float]:
        """Operations per second by type."""
        return {t: m.rate for t, m in self._multiplying.items()}

    @property
    def reads(self) -> float:
        """Bytes per second."""
        return self._reading.rate
