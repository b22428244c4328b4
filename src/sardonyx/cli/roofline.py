"""The roofline of this machine: peak rates of arithmetic and of memory reads, measured."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

import sardonyx._native as native
from sardonyx.cli.bench_worker import shortest
from sardonyx.graph.dtype import by_numpy

# By element type: the kernel, and operands with which accumulators never overflow.
_KERNELS: Final[Mapping[str, tuple[str, Any]]] = {
    "float32": ("fma_limit", np.array([0.5, 0.5], np.float32)),
    "float64": ("fma_limit_64", np.array([0.5, 0.5], np.float64)),
    "bfloat16": ("bf16_limit", np.array([0x3F003F00] * 2, np.uint32).view(np.float32)),
    "int8": ("dot_limit", np.array([0x01010101, 1], np.int32)),
}
TYPES: Final = tuple(_KERNELS)

_ROUNDS: Final = 32  # rounds of multiplications per thread
_MEASURE_S: Final = 0.01  # of one measurement
_CHUNK_BYTES: Final = 16 << 10  # of a stream: the unit of work of the thread pool
_CALL_BYTES: Final = 4 << 20  # at least per call, so that the call overhead does not count
_CACHES: Final = 8  # a stream has so many times the size of the largest cache: CPUs have several
_CACHE_FILES: Final = "/sys/devices/system/cpu/cpu0/cache"
_MIN_BYTES: Final = 256 << 20
_MAX_BYTES: Final = 1 << 30


def tensor(array: Any) -> tuple[int, int, list[int], list[int]]:
    """Return an array as native.call takes it: address, ONNX type, shape, strides in elements."""
    dtype = by_numpy(array.dtype)
    assert dtype is not None
    strides = [s // array.itemsize for s in array.strides]
    return array.ctypes.data, dtype.onnx, list(array.shape), strides


def _call(
    kernel: str, x: Any, ys: list[Any], threads: int, isa: str = "", ints: Sequence[int] = ()
) -> None:
    outputs = [tensor(y) for y in ys]
    error = native.call(kernel, [tensor(x)], outputs, ints, [], 0, isa, None, threads)
    assert not error, error


class ComputePeak:
    """The peak rate of multiply-adds in registers, the best of all measurements."""

    def __init__(self, type_name: str, threads: int, isa: str = "") -> None:
        self._kernel, self._x = _KERNELS[type_name]
        self._y = np.zeros((_ROUNDS * threads, 2), np.float32)
        self._isa, self._threads = isa, threads
        self.rate = 0.0  # operations per second; a multiply-add counts as two

    def measure(self, seconds: float = _MEASURE_S) -> float:
        """Measure for `seconds` and return the best rate so far."""
        ys = [self._y]
        took = shortest(lambda: _call(self._kernel, self._x, ys, self._threads, self._isa), seconds)
        self.rate = max(self.rate, 2 * float(self._y[:, 0].sum()) / took)
        return self.rate


class BandwidthPeak:
    """The peak rate of sequential reads and writes, the best of all measurements."""

    def __init__(self, n_read: int, n_written: int, threads: int) -> None:
        self.n_bytes = n_read + n_written
        # Ones, whose sum does not overflow. They are written: untouched pages all map to one page.
        self._x = np.ones(n_read // 4, np.int32).view(np.uint8)
        self._y = np.ones(n_written, np.uint8)
        self._sums = np.zeros(max(threads, self.n_bytes // _CHUNK_BYTES), np.int32)
        self._threads = threads
        self._times = max(1, _CALL_BYTES // max(1, self.n_bytes))
        self.rate = 0.0  # bytes per second

    def measure(self, seconds: float = _MEASURE_S) -> float:
        """Measure for `seconds` and return the best rate so far."""
        ys, ints = [self._y, self._sums], [self._times]
        call = partial(_call, "stream_limit", self._x, ys, self._threads, ints=ints)
        took = shortest(call, seconds)
        self.rate = max(self.rate, self._times * self.n_bytes / took)
        return self.rate


def bytes_beyond_caches() -> int:
    """Return a size of which caches hold only a small share."""
    sizes = [_kilobytes(path) for path in pathlib.Path(_CACHE_FILES).glob("index*/size")]
    return min(max(_MIN_BYTES, _CACHES * 1024 * max(sizes, default=0)), _MAX_BYTES)


def _kilobytes(path: pathlib.Path) -> int:
    """Read a cache size as Linux writes it: 32768K."""
    try:
        return int(path.read_text().strip().removesuffix("K"))
    except (OSError, ValueError):
        return 0


class Roofline:
    """Peak rates of multiply-adds by type, and of reads from memory."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._compute = {t: ComputePeak(t, threads) for t in TYPES}
        self._reads = BandwidthPeak(bytes_beyond_caches(), 0, threads)

    def measure(self) -> None:
        """Measure all rates once more; better ones replace those so far."""
        for peak in self._compute.values():
            peak.measure()
        self._reads.measure()

    @property
    def operations_per_s(self) -> dict[str, float]:
        """Return the peak rates of arithmetic by type."""
        return {t: peak.rate for t, peak in self._compute.items()}

    @property
    def bytes_read_per_s(self) -> float:
        """Return the peak rate of reads from memory."""
        return self._reads.rate
