"""All ops that the torch provider knows, by family."""

from __future__ import annotations

from typing import Final

from sardonyx.providers.torch import (
    activation,
    attention,
    cast,
    chain,
    channels,
    conv,
    deform,
    elementwise,
    gather,
    loss,
    matrix,
    move,
    nbits,
    normalize,
    optimizer,
    pool,
    product,
    quantize,
    random,
    reduce,
    relative,
    resize,
    roi,
    sample,
    select,
    shape,
    signal,
    skip,
    softmax,
    streams,
)
from sardonyx.providers.torch.attention import (
    dot,
    fused,
    group_query,
    multi_head,
    projected,
    rotary,
)
from sardonyx.providers.torch.row import Row

_FAMILIES: Final = (
    activation,
    attention,
    cast,
    chain,
    channels,
    conv,
    deform,
    dot,
    elementwise,
    fused,
    gather,
    group_query,
    loss,
    matrix,
    move,
    multi_head,
    nbits,
    normalize,
    optimizer,
    pool,
    product,
    projected,
    quantize,
    random,
    reduce,
    relative,
    resize,
    roi,
    rotary,
    sample,
    select,
    shape,
    signal,
    skip,
    softmax,
    streams,
)
ROWS: Final[dict[tuple[str, str], Row]] = {
    key: row for family in _FAMILIES for key, row in family.ROWS.items()
}
