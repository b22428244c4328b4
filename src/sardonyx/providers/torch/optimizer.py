"""Optimizers: one update of Adagrad, Adam or Momentum over any number of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from torch import Tensor

from sardonyx.graph.dtype import F32, F64
from sardonyx.graph.op import TRAINING
from sardonyx.ops.arrays import Array, one_int
from sardonyx.ops.optimizer.preview import UPDATES, Update
from sardonyx.providers.torch.kernel import TorchKernel, TorchKernels


def _over_tensors(groups: int, update: Update) -> Callable[..., tuple[Tensor, ...]]:
    """Return a function of `groups` lists of tensors: values, gradients, then each state."""

    def run(rate: Tensor, count: Array, *xs: Tensor, **attrs: Any) -> tuple[Tensor, ...]:
        n, step = len(xs) // groups, one_int(count, "the update count T")
        updated: list[Any] = []
        for i in range(n):
            # The lists are concatenated: tensor i, its gradient and its states are n apart.
            own = xs[i::n]
            updated.append(update(rate.reshape(()).to(own[0].dtype), step, own, **attrs))
        return tuple(u[k] for k in range(groups - 1) for u in updated)

    return run


# The updates of the numpy references: operators only, so that they accept tensors as well.
KERNELS: Final[TorchKernels] = {
    (TRAINING, name): TorchKernel(_over_tensors(groups, update), frozenset((F32, F64)), host=(1,))
    for name, (groups, update) in UPDATES.items()
}
