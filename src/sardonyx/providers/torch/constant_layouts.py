"""Weight layouts that kernels prefer: the same elements in another memory order."""

from __future__ import annotations

from typing import Final

import torch

CHANNELS_LAST: Final = "channels last"  # rank 4
COLUMNS: Final = "columns"  # rank 2, column-major, with padding columns
ALIGNED_BYTES: Final = 16  # of rows, for the vectorized loads of cuBLAS kernels


def padded(count: int, dtype: torch.dtype) -> int:
    """Return a count of elements rounded up to a multiple of ALIGNED_BYTES."""
    per_block = max(1, ALIGNED_BYTES // dtype.itemsize)
    return -(-count // per_block) * per_block
