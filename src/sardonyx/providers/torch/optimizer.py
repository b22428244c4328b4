"""Optimizers: one step of Adagrad, Adam or momentum over any number of tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from sardonyx.graph.dtype import F32, F64
from sardonyx.graph.op import TRAINING
from sardonyx.ops.arrays import Array, one_int
from sardonyx.providers.torch.kernel import TorchKernel, TorchKernels

# (rate, count, x, gradient, state...; attrs) -> new x, new state...
Update = Callable[..., tuple[Tensor, ...]]


def _over_tensors(groups: int, update: Update) -> Callable[..., tuple[Tensor, ...]]:
    """A function of so many groups of tensors: values, gradients, then each state."""

    def run(rate: Tensor, count: Array, *xs: Tensor, **attrs: Any) -> tuple[Tensor, ...]:
        n, step = len(xs) // groups, one_int(count, "the update count T")
        made = []
        for i in range(n):
            own = xs[i::n]
            made.append(update(rate.reshape(()).to(own[0].dtype), step, own, **attrs))
        return tuple(m[k] for k in range(groups - 1) for m in made)

    return run


def _adagrad(
    rate: Tensor, count: int, xs: tuple[Tensor, ...], **attrs: float
) -> tuple[Tensor, ...]:
    x, gradient, squares = xs
    r = rate / (1 + count * attrs["decay_factor"])
    gradient = attrs["norm_coefficient"] * x + gradient
    squares = squares + gradient * gradient
    return x - r * gradient / (torch.sqrt(squares) + attrs["epsilon"]), squares


def _adam(rate: Tensor, count: int, xs: tuple[Tensor, ...], **attrs: float) -> tuple[Tensor, ...]:
    x, gradient, mean, squares = xs
    alpha, beta = attrs["alpha"], attrs["beta"]
    gradient = attrs["norm_coefficient"] * x + gradient
    mean = alpha * mean + (1 - alpha) * gradient
    squares = beta * squares + (1 - beta) * gradient * gradient
    if count > 0:
        rate = rate * (math.sqrt(1 - beta**count) / (1 - alpha**count))
    x = x - rate * mean / (torch.sqrt(squares) + attrs["epsilon"])
    return (1 - attrs["norm_coefficient_post"]) * x, mean, squares


def _momentum(rate: Tensor, count: int, xs: tuple[Tensor, ...], **attrs: Any) -> tuple[Tensor, ...]:
    x, gradient, velocity = xs
    alpha = attrs["alpha"]
    gradient = attrs["norm_coefficient"] * x + gradient
    velocity = alpha * velocity + (attrs["beta"] if count > 0 else 1) * gradient
    direction = gradient + alpha * velocity if attrs["mode"] == b"nesterov" else velocity
    return x - rate * direction, velocity


_UPDATES: Final = (("Adagrad", 3, _adagrad), ("Adam", 4, _adam), ("Momentum", 3, _momentum))
KERNELS: Final[TorchKernels] = {
    (TRAINING, name): TorchKernel(_over_tensors(groups, update), frozenset((F32, F64)), host=(1,))
    for name, groups, update in _UPDATES
}
