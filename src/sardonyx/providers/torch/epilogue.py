"""What follows a product in the same node."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sardonyx.ops.chain import Code


def finished(
    y: Tensor, operands: Sequence[Tensor], code: Code | None, dtype: torch.dtype
) -> Tensor:
    """A product after its epilogue; in a type where it has none."""
    if code is None:
        return y.to(dtype)
    from sardonyx.providers.torch.chain import run_code

    return run_code(code, (y, *operands))
