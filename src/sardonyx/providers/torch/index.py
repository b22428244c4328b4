"""All ops that the torch provider knows, by family."""

from __future__ import annotations

from typing import Final

from sardonyx.providers.torch import (
    conv,
    deform,
    gather,
    move,
    pool,
    resize,
    roi,
    sample,
    shape,
    signal,
    softmax,
)
from sardonyx.providers.torch.row import Row

_FAMILIES: Final = (
    conv,
    deform,
    gather,
    move,
    pool,
    resize,
    roi,
    sample,
    shape,
    signal,
    softmax,
)
ROWS: Final[dict[tuple[str, str], Row]] = {
    key: row for family in _FAMILIES for key, row in family.ROWS.items()
}
