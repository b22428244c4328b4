"""TopK, NonZero and Unique."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from sardonyx.errors import InvalidArgument
from sardonyx.ops.arrays import Array, one_int
from sardonyx.providers.torch.dtypes import wide
from sardonyx.providers.torch.kernel import PLAIN, REALS, WHOLE, TorchKernel, TorchKernels

_BITS: Final = {torch.float32: torch.int32, torch.float64: torch.int64}


def _top_k(x: Tensor, k: Array, *, axis: int, largest: int, sorted: int) -> tuple[Tensor, Tensor]:
    count, size = one_int(k, "K"), x.shape[axis]
    if not 0 <= count <= size:
        raise InvalidArgument(f"K is {count}, and axis {axis} has {size} elements")
    if count == 1 and largest and x.numel():
        best = torch.max(x, axis, keepdim=True)
        return best.values, best.indices
    # Among equals the lower index comes first, which torch.topk does not guarantee.
    values, order = torch.sort(x, dim=axis, descending=bool(largest), stable=True)
    return values.narrow(axis, 0, count), order.narrow(axis, 0, count)


def _unique(x: Tensor, *, axis: int | None, sorted: int) -> tuple[Tensor, ...]:
    if axis is None:
        x, axis = x.reshape(-1), 0
    if x.numel():
        _, inverse, counts = torch.unique(
            _keys(x), return_inverse=True, return_counts=True, dim=axis
        )
    else:  # all slices are empty, hence equal
        inverse = torch.zeros(x.shape[axis], dtype=torch.int64, device=x.device)
        counts = torch.full((min(1, x.shape[axis]),), x.shape[axis], device=x.device)
    places = torch.arange(len(inverse), device=x.device)
    first = torch.full_like(counts, len(inverse)).scatter_reduce(0, inverse, places, "amin")
    if not sorted:
        first, order = torch.sort(first)
        counts = counts[order]
        inverse = torch.argsort(order)[inverse]
    return x.index_select(axis, first), first, inverse, counts


def _keys(x: Tensor) -> Tensor:
    """Return integers in the order of the numbers; both zeros are one, and so are all NaNs."""
    x = wide(x)
    if not x.is_floating_point():
        return x
    bits = (x + 0.0).view(_BITS[x.dtype])
    top = torch.iinfo(bits.dtype).max
    return torch.where(bits < 0, bits ^ top, bits).masked_fill(x.isnan(), top)


KERNELS: Final[TorchKernels] = {
    ("", "TopK"): TorchKernel(_top_k, REALS | WHOLE, host=(1,)),
    ("", "NonZero"): TorchKernel(lambda x: torch.nonzero(x).T, PLAIN, syncs=True),
    ("", "Unique"): TorchKernel(_unique, PLAIN, syncs=True),
}
