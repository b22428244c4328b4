"""The difference of two outputs."""

from __future__ import annotations

from typing import Any

import numpy as np


def difference(expected: Any, got: Any) -> float:
    """Return the largest difference, as a fraction of the largest expected value.

    It is infinite if shapes, kinds of types, strings or the positions of non-finite values differ.
    """
    if got is None or expected.shape != got.shape or expected.dtype.kind != got.dtype.kind:
        return float("inf")
    if expected.dtype.kind not in "fiubc":
        return 0.0 if np.array_equal(expected, got) else float("inf")
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, b = expected.astype(wide), got.astype(wide)
    finite = np.isfinite(a)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return float("inf")
    a, b = a[finite], b[finite]
    if not np.isfinite(b).all():
        return float("inf")
    return float(np.abs(a - b).max(initial=0)) / (float(np.abs(a).max(initial=0)) or 1.0)
