"""TopK and NonZero."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from sardonyx.errors import InvalidArgument
from sardonyx.ops.arrays import Array, one_int
from sardonyx.providers.torch.kernel import PLAIN, REALS, WHOLE, TorchKernel, TorchKernels


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


KERNELS: Final[TorchKernels] = {
    ("", "TopK"): TorchKernel(_top_k, REALS | WHOLE, host=(1,)),
    ("", "NonZero"): TorchKernel(lambda x: torch.nonzero(x).T, PLAIN, syncs=True),
}
