"""All ops that the torch provider knows, by family."""

from __future__ import annotations

from typing import Final

from sardonyx.providers.torch import (
    attention,
    nbits,
    product,
    qlinear,
    qproducts,
    quantize,
    recurrent,
    softmax,
)
from sardonyx.providers.torch.row import Row

_FAMILIES: Final = (
    softmax,
    product,
    nbits,
    attention,
    recurrent,
    quantize,
    qproducts,
    qlinear,
)
ROWS: Final[dict[tuple[str, str], Row]] = {
    key: row for family in _FAMILIES for key, row in family.ROWS.items()
}
