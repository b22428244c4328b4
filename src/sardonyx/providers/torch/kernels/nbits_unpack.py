"""Packed weights of few bits as a plain matrix, for products of many rows."""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc,no-any-return"

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from sardonyx.providers.torch.kernels.intrinsics import wait_before
from sardonyx.providers.torch.kernels.launch import launch
from sardonyx.providers.torch.kernels.nbits_matmul import Weights

_BLOCK: Final = 1024  # elements of a program


@triton.jit
def matrix_kernel(
    q, scale, zero, y,
    k: tl.constexpr, plan: tl.constexpr, block: tl.constexpr, overlap: tl.constexpr,
):  # fmt: skip
    """Part of a row; `plan` is (units, units of a block, kind of zero points, the default one)."""
    wait_before(overlap)
    n_units: tl.constexpr = plan[0]
    kind: tl.constexpr = plan[2]
    n_blocks: tl.constexpr = (n_units + plan[1] - 1) // plan[1]
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    ok = at < k
    word = tl.load(q + row * (n_units * 4) + at // 8, ok, 0)
    within = at % 8  # four in the low halves of bytes, the next four in the high ones
    step = ((word >> (8 * (within % 4) + 4 * (within // 4))) & 15).to(tl.float32)
    group = at // 32 // plan[1]
    if kind == 1:
        pair = tl.load(zero + row * ((n_blocks + 1) // 2) + group // 2, ok, 0).to(tl.int32)
        step -= ((pair >> (4 * (group & 1))) & 15).to(tl.float32)
    elif kind == 2:
        step -= tl.load(zero + row * n_blocks + group, ok, 0.0).to(tl.float32)
    else:
        step -= plan[3]
    value = step * tl.load(scale + row * n_blocks + group, ok, 0.0).to(tl.float32)
    tl.store(y + row * k + at, value.to(y.dtype.element_ty), ok)


def matrix(weights: Weights, dtype: torch.dtype) -> Tensor:
    """The weights [n, k] in a type."""
    y = torch.empty((weights.n, weights.k), dtype=dtype, device=weights.q.device)
    given = (weights.q, weights.scale, weights.zero, y)
    grid = (weights.n, -(-weights.k // _BLOCK), 1)
    launch(matrix_kernel, grid, given, (weights.k, weights.plan, _BLOCK), 4)
    return y
