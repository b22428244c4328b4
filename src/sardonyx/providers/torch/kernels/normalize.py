"""Normalizations of rows, with the sum before them, in one launch."""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc,no-any-return"

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from sardonyx.providers.torch.kernels.intrinsics import wait_before
from sardonyx.providers.torch.kernels.launch import launch

MOST_COLUMNS: Final = 16384  # that one program holds
Normed = tuple[Tensor, Tensor, Tensor, Tensor]  # y, mean, inverse deviation, sum


@triton.jit
def norm_kernel(
    x, skip, bias, gain, shift, y, total, mean, inverse, eps,
    columns: tl.constexpr, block: tl.constexpr, is_rms: tl.constexpr, overlap: tl.constexpr,
):  # fmt: skip
    """One row for each program: the sum of what is given, over its deviation."""
    wait_before(overlap)
    row = tl.program_id(0)
    first = row.to(tl.int64) * columns
    at = tl.arange(0, block)
    ok = at < columns
    value = tl.load(x + first + at, ok, 0.0).to(tl.float32)
    if skip is not None:
        value += tl.load(skip + first + at, ok, 0.0).to(tl.float32)
    if bias is not None:
        value += tl.load(bias + at, ok, 0.0).to(tl.float32)
    if total is not None:
        tl.store(total + first + at, value.to(total.dtype.element_ty), ok)
    centre = tl.zeros([], tl.float32)
    if not is_rms:
        centre = tl.sum(value, 0) / columns
    apart = tl.where(ok, value - centre, 0.0)
    deviation = 1 / tl.sqrt(tl.sum(apart * apart, 0) / columns + eps)
    result = apart * deviation
    if gain is not None:
        result *= tl.load(gain + at, ok, 0.0).to(tl.float32)
    if shift is not None:
        result += tl.load(shift + at, ok, 0.0).to(tl.float32)
    tl.store(y + first + at, result.to(y.dtype.element_ty), ok)
    tl.store(mean + row, centre)
    tl.store(inverse + row, deviation)


def normed(
    x: Tensor,
    gain: Tensor | None,
    shift: Tensor | None,
    eps: float,
    *,
    skip: Tensor | None = None,
    bias: Tensor | None = None,
    is_rms: bool = False,
) -> Normed:
    """The last axis of x + skip + bias normalized; the sum is x itself where nothing is added."""
    columns = x.shape[-1]
    x = x.contiguous()
    y, total = torch.empty_like(x), x if skip is None else torch.empty_like(x)
    mean = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
    inverse = torch.empty_like(mean)
    if x.numel():
        block = triton.next_power_of_2(columns)
        warps = 4 if block <= 2048 else 8 if block <= 4096 else 16
        skips, sums = (None, None) if skip is None else (skip.contiguous(), total)
        given = (x, skips, bias, gain, shift, y, sums, mean, inverse, eps)
        rows = x.numel() // columns
        launch(norm_kernel, (rows, 1, 1), given, (columns, block, is_rms), warps)
    return y, mean, inverse, total
