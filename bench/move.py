"""Copies and transposes of shapes that models have, in GB/s, beside numpy and a plain memcpy."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import sardonyx._native as native
from sardonyx.graph.dtype import by_numpy

SECONDS = 0.15  # for each way of each case
CASES: tuple[tuple[str, tuple[int, ...], tuple[int, ...], Any], ...] = (
    ("NCHW to NHWC, image", (1, 3, 224, 224), (0, 2, 3, 1), np.float32),
    ("NHWC to NCHW, image", (1, 224, 224, 3), (0, 3, 1, 2), np.float32),
    ("NCHW to NHWC", (1, 64, 56, 56), (0, 2, 3, 1), np.float32),
    ("NHWC to NCHW", (1, 56, 56, 64), (0, 3, 1, 2), np.float32),
    ("NCHW to NHWC", (1, 512, 7, 7), (0, 2, 3, 1), np.float32),
    ("NHWC to NCHW", (1, 7, 7, 512), (0, 3, 1, 2), np.float32),
    ("NCHW to NHWC", (1, 128, 64, 64), (0, 2, 3, 1), np.float32),
    ("NCHW to NHWC, u8", (1, 64, 56, 56), (0, 2, 3, 1), np.uint8),
    ("NHWC to NCHW, f16", (1, 56, 56, 64), (0, 3, 1, 2), np.float16),
    ("NCHW to NHWC, f64", (1, 64, 56, 56), (0, 2, 3, 1), np.float64),
    ("split heads", (1, 128, 12, 64), (0, 2, 1, 3), np.float32),
    ("join heads", (1, 12, 128, 64), (0, 2, 1, 3), np.float32),
    ("split heads, transposed", (1, 128, 12, 64), (0, 2, 3, 1), np.float32),
    ("windows", (1, 8, 7, 8, 7, 96), (0, 1, 3, 2, 4, 5), np.float32),
    ("matrix", (1024, 1024), (1, 0), np.float32),
)


def best(run: Callable[[], object]) -> float:
    """The fastest of many runs, in seconds."""
    least, end = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        run()
        least = min(least, time.perf_counter() - start)
    return least


def tensor(array: np.ndarray) -> tuple[int, int, list[int], list[int]]:
    """An array as native calls take it."""
    dtype = by_numpy(array.dtype)
    assert dtype is not None
    strides = [s // array.itemsize for s in array.strides]
    return (array.ctypes.data, dtype.onnx, list(array.shape), strides)


def main() -> None:
    """Prints one line for each case."""
    print(f"{'GB/s, read and written':54} {'sardonyx':>9} {'numpy':>7} {'memcpy':>7}")
    for name, shape, perm, dtype in CASES:
        x = np.ones(shape, dtype)
        view = x.transpose(perm)
        out, flat = np.empty(view.shape, dtype), np.empty(shape, dtype)
        given, made = [tensor(view)], [tensor(out)]
        times = (
            best(lambda: native.call("copy", given, made, [], [])),  # noqa: B023 - run at once
            best(lambda: np.copyto(out, view)),  # noqa: B023
            best(lambda: np.copyto(flat, x)),  # noqa: B023
        )
        rates = [2 * x.nbytes / t / 1e9 for t in times]
        print(f"{name:28} {shape!s:25} {rates[0]:9.1f} {rates[1]:7.1f} {rates[2]:7.1f}")


if __name__ == "__main__":
    main()
