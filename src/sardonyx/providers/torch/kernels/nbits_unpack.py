"""Dequantization of packed n-bit weights to a matrix, for matmuls of many rows (prefill)."""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc,no-any-return"

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from sardonyx.providers.torch.kernels.intrinsics import wait_for_previous
from sardonyx.providers.torch.kernels.launch import launch
from sardonyx.providers.torch.kernels.nbits_matmul import PackedWeights

_BLOCK: Final = 1024  # elements of a program: eight per thread, one word of weights


@triton.jit
def dequantize_kernel(
    q, scale, zero, y,
    k: tl.constexpr, layout: tl.constexpr, block: tl.constexpr, overlap: tl.constexpr,
):  # fmt: skip
    """A block of a row; `layout` is (units, units per block, kind of zero points, the default)."""
    wait_for_previous(overlap)
    n_units: tl.constexpr = layout[0]
    zero_kind: tl.constexpr = layout[2]
    n_blocks: tl.constexpr = (n_units + layout[1] - 1) // layout[1]
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    ok = at < k
    word = tl.load(q + row * (n_units * 4) + at // 8, ok, 0)
    within = at % 8  # four in the low nibbles of bytes, then four in the high nibbles
    code = ((word >> (8 * (within % 4) + 4 * (within // 4))) & 15).to(tl.float32)
    group = at // 32 // layout[1]  # the block of a weight
    if zero_kind == 1:
        pair = tl.load(zero + row * ((n_blocks + 1) // 2) + group // 2, ok, 0).to(tl.int32)
        code -= ((pair >> (4 * (group & 1))) & 15).to(tl.float32)
    elif zero_kind == 2:
        code -= tl.load(zero + row * n_blocks + group, ok, 0.0).to(tl.float32)
    else:
        code -= layout[3]
    value = code * tl.load(scale + row * n_blocks + group, ok, 0.0).to(tl.float32)
    tl.store(y + row * k + at, value.to(y.dtype.element_ty), ok)


def dequantize(weights: PackedWeights, dtype: torch.dtype) -> Tensor:
    """Return the weights [n, k] in a floating-point type."""
    y = torch.empty((weights.n, weights.k), dtype=dtype, device=weights.q.device)
    arguments = (weights.q, weights.scale, weights.zero, y)
    grid = (weights.n, -(-weights.k // _BLOCK), 1)
    launch(dequantize_kernel, grid, arguments, (weights.k, weights.layout, _BLOCK), 4)
    return y
