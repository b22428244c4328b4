"""Forms in which functions want constants: other orders in memory, with the same elements."""

from __future__ import annotations

from typing import Final

import torch

CHANNELS_LAST: Final = "channels last"  # of rank 4
COLUMNS: Final = "columns"  # of rank 2, one column after the other, and room for a few more
ALIGNED_BYTES: Final = 16


def padded(count: int, dtype: torch.dtype) -> int:
    """So many elements or a few more, which end at an address that kernels like."""
    each = max(1, ALIGNED_BYTES // dtype.itemsize)
    return -(-count // each) * each
