"""Attention in torch: dot products with masks and caches, and rotary positions."""

from __future__ import annotations

from typing import Final

from sardonyx.providers.torch.attention import (
    dot,
    fused,
    group_query,
    linear,
    multi_head,
    packed,
    projected,
    rotary,
)
from sardonyx.providers.torch.row import Rows

ROWS: Final[Rows] = {
    key: row
    for part in (dot, rotary, multi_head, projected, group_query, fused, linear, packed)
    for key, row in part.ROWS.items()
}
