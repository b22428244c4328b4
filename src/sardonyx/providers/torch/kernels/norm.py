"""Norms of rows, with a sum in front: RMS and layer normalization in one launch."""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc,no-any-return,assignment"

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from sardonyx.providers.torch.kernels.device import let_next, wait_before
from sardonyx.providers.torch.kernels.launch import launch

MOST_COLUMNS: Final = 32768  # of a row, which one program holds


@triton.jit
def norm_kernel(
    x, residual, gain, bias, y, total, n, eps,
    is_centred: tl.constexpr, columns: tl.constexpr, overlap: tl.constexpr,
):  # fmt: skip
    """One row: the sum with the residual, over its root mean square or deviation."""
    let_next(overlap)
    wait_before(overlap)
    column = tl.arange(0, columns)
    at = tl.program_id(0).to(tl.int64) * n + column
    ok = column < n
    value = tl.load(x + at, ok, 0.0).to(tl.float32)
    if residual is not None:
        value += tl.load(residual + at, ok, 0.0).to(tl.float32)
        rounded = value.to(total.dtype.element_ty)
        tl.store(total + at, rounded, ok)
    if is_centred:
        value = tl.where(ok, value - tl.sum(value, 0) / n, 0.0)
    value = value / tl.sqrt(tl.sum(value * value, 0) / n + eps)
    if gain is not None:
        value *= tl.load(gain + column, ok, 0.0).to(tl.float32)
    if bias is not None:
        value += tl.load(bias + column, ok, 0.0).to(tl.float32)
    tl.store(y + at, value.to(y.dtype.element_ty), ok)


def norm(
    x: Tensor,
    gain: Tensor | None,
    bias: Tensor | None,
    eps: float,
    *,
    residual: Tensor | None = None,
    is_centred: bool = False,
) -> tuple[Tensor, Tensor]:
    """x over its root mean square (centred: its deviation) along the last axis; and the sum.

    The sum is that of x and the residual, which is what is normed; x itself where there is none.
    """
    x = x.contiguous()
    y = torch.empty_like(x)
    total = x if residual is None else torch.empty_like(x)
    n = x.shape[-1]
    if x.numel():
        columns = 1 << max(4, (n - 1).bit_length())
        other = None if residual is None else residual.contiguous()
        given = (x, other, gain, bias, y, None if residual is None else total, n, float(eps))
        n_warps = min(16, max(1, columns // 512))
        launch(norm_kernel, (x.numel() // n, 1, 1), given, (is_centred, columns), n_warps)
    return y, total
