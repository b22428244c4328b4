"""All ops that the torch provider knows, by family."""

from __future__ import annotations

from typing import Final

from sardonyx.providers.torch import (
    activation,
    cast,
    chain,
    conv,
    elementwise,
    gather,
    loss,
    move,
    normalize,
    optimizer,
    pool,
    product,
    quantize,
    random,
    reduce,
    select,
    shape,
    skip,
    softmax,
    streams,
)
from sardonyx.providers.torch.row import Row

_FAMILIES: Final = (
    activation,
    cast,
    chain,
    conv,
    elementwise,
    gather,
    loss,
    move,
    normalize,
    optimizer,
    pool,
    product,
    quantize,
    random,
    reduce,
    select,
    shape,
    skip,
    softmax,
    streams,
)
ROWS: Final[dict[tuple[str, str], Row]] = {
    key: row for family in _FAMILIES for key, row in family.ROWS.items()
}
