"""Layer norm and RMS norm of rows, with the skip connection before them, in one launch."""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc,no-any-return"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sardonyx.providers.torch.kernels.intrinsics import wait_for_previous
from sardonyx.providers.torch.kernels.launch import launch

Normalized = tuple[Tensor, Tensor, Tensor, Tensor]  # y, mean, inverse std deviation, input sum


@triton.jit
def norm_kernel(
    x, skip, bias, gain, shift, y, total, mean, inverse, eps,
    columns: tl.constexpr, block: tl.constexpr, is_rms: tl.constexpr, overlap: tl.constexpr,
):  # fmt: skip
    """One row per program: x + skip + bias, normalized; computed in float32."""
    wait_for_previous(overlap)
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
    center = tl.zeros([], tl.float32)
    if not is_rms:
        center = tl.sum(value, 0) / columns
    # Two passes over registers, not E[x^2] - E[x]^2, which cancels.
    centered = tl.where(ok, value - center, 0.0)
    inv_std = 1 / tl.sqrt(tl.sum(centered * centered, 0) / columns + eps)
    result = centered * inv_std
    if gain is not None:
        result *= tl.load(gain + at, ok, 0.0).to(tl.float32)
    if shift is not None:
        result += tl.load(shift + at, ok, 0.0).to(tl.float32)
    tl.store(y + first + at, result.to(y.dtype.element_ty), ok)
    tl.store(mean + row, center)
    tl.store(inverse + row, inv_std)


def normalize(
    x: Tensor,
    gain: Tensor | None,
    shift: Tensor | None,
    eps: float,
    *,
    skip: Tensor | None = None,
    bias: Tensor | None = None,
    is_rms: bool = False,
) -> Normalized:
    """Return x + skip + bias normalized along the last axis; without skip, the input sum is x."""
    columns = x.shape[-1]
    x = x.contiguous()
    y, total = torch.empty_like(x), x if skip is None else torch.empty_like(x)
    mean = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
    inverse = torch.empty_like(mean)
    if x.numel():
        block = triton.next_power_of_2(columns)
        # About 16 elements per thread, so that a row stays in registers.
        warps = 4 if block <= 2048 else 8 if block <= 4096 else 16
        skips, totals = (None, None) if skip is None else (skip.contiguous(), total)
        arguments = (x, skips, bias, gain, shift, y, totals, mean, inverse, eps)
        rows = x.numel() // columns
        launch(norm_kernel, (rows, 1, 1), arguments, (columns, block, is_rms), warps)
    return y, mean, inverse, total
