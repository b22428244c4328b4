"""Reductions over axes, indices of extremes, and running sums and products."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from sardonyx.errors import InvalidArgument
from sardonyx.graph.dtype import BOOL, DType
from sardonyx.ops.arrays import Array, one_int
from sardonyx.providers.torch.dtypes import in_wide, wide_type
from sardonyx.providers.torch.kernel import PLAIN, REALS, WHOLE, TorchKernel, TorchKernels

Axes = tuple[int, ...]
Reduce = Callable[[Tensor, Axes, bool], Tensor]  # (numbers, axes, keepdims) -> numbers


def _over_axes(reduce: Reduce) -> Callable[..., Tensor]:
    def run(x: Tensor, axes: Array | None, *, keepdims: int, noop_with_empty_axes: int) -> Tensor:
        reduced = () if axes is None else tuple(axes.reshape(-1).tolist())
        if reduced:
            return reduce(x, reduced, bool(keepdims))
        if x.ndim and not noop_with_empty_axes:
            return reduce(x, tuple(range(x.ndim)), bool(keepdims))
        # torch reduces all axes if there are none: a new axis of one element stands for them.
        return reduce(x.unsqueeze(-1), (-1,), False)

    return run


def _count(x: Tensor, axes: Axes) -> int:
    return math.prod(x.shape[a] for a in axes)


def _sum(x: Tensor, axes: Axes, keep: bool) -> Tensor:
    return torch.sum(x, axes, keep, dtype=x.dtype)


def _mean(x: Tensor, axes: Axes, keep: bool) -> Tensor:
    if x.is_floating_point():
        return torch.mean(x, axes, keep)
    count = _count(x, axes)
    if not count:
        raise InvalidArgument("the mean of no integers is undefined")
    return torch.div(torch.sum(x, axes, keep), count, rounding_mode="trunc").to(x.dtype)


def _extreme(function: Callable[..., Tensor], is_max: bool) -> Reduce:
    def run(x: Tensor, axes: Axes, keep: bool) -> Tensor:
        if _count(x, axes):
            return function(x, axes, keep)
        like = torch.sum(x, axes, keep)
        return torch.full_like(like, _bounds(x.dtype)[0 if is_max else 1], dtype=x.dtype)

    return run


def _bounds(dtype: torch.dtype) -> tuple[Any, Any]:
    """Return the lowest and the highest number of a type: the extremes of no elements."""
    if dtype.is_floating_point:
        return -math.inf, math.inf
    if dtype is torch.bool:
        return False, True
    return torch.iinfo(dtype).min, torch.iinfo(dtype).max


def _prod(x: Tensor, axes: Axes, keep: bool) -> Tensor:
    # torch.prod reduces one axis; from the last one on, so that the others keep their numbers.
    for axis in sorted((a % x.ndim for a in axes), reverse=True):
        x = torch.prod(x, axis, keep, dtype=x.dtype)
    return x


def _norm(
    x: Tensor, order: int, axes: Axes, keep: bool, dtype: torch.dtype | None = None
) -> Tensor:
    # Axes are dropped afterwards: torch 2.11 keeps those of one element on the meta device.
    kept: Tensor = torch.linalg.vector_norm(x, order, axes, True, dtype=dtype)
    return kept if keep else kept.squeeze(axes)


def _l1(x: Tensor, axes: Axes, keep: bool) -> Tensor:
    return _norm(x, 1, axes, keep) if x.is_floating_point() else _sum(x.abs(), axes, keep)


def _l2(x: Tensor, axes: Axes, keep: bool) -> Tensor:
    if x.dtype is torch.float32:  # whose squares may overflow where their root does not
        return _norm(x, 2, axes, keep, torch.float64).float()
    return _norm(x, 2, axes, keep)


def _in_float64(reduce: Reduce) -> Reduce:
    """Wrap a reduction to compute integers in float64, truncated to integers."""

    def run(x: Tensor, axes: Axes, keep: bool) -> Tensor:
        if x.is_floating_point():
            return reduce(x, axes, keep)
        return reduce(x.double(), axes, keep).to(x.dtype)

    return run


def _index(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(x: Tensor, *, axis: int, keepdims: int, select_last_index: int) -> Tensor:
        # The first of equal extremes; for the last one, the axis is flipped.
        if not select_last_index:
            return function(x, axis, bool(keepdims))
        return x.shape[axis] - 1 - function(x.flip(axis), axis, bool(keepdims))

    return run


def _running(function: Callable[..., Tensor], start: int) -> Callable[..., Tensor]:
    def run(x: Tensor, axis: Array, *, exclusive: int, reverse: int) -> Tensor:
        along = one_int(axis, "axis")
        if not -x.ndim <= along < x.ndim:
            raise InvalidArgument(f"axis {along} is outside [{-x.ndim}, {x.ndim})")
        steps = x.flip(along) if reverse else x
        # Exclusive: shifted by one, with the neutral element in front.
        if exclusive:
            first = torch.full_like(steps.narrow(along, 0, min(1, x.shape[along])), start)
            steps = torch.cat((first, steps.narrow(along, 0, max(0, x.shape[along] - 1))), along)
        total = function(steps, along, dtype=wide_type(x.dtype)).to(x.dtype)
        return total.flip(along) if reverse else total

    return run


_ORDERED: Final = REALS | WHOLE
# By name: the reduction, its types, and whether 16-bit floats are widened for several rounding ops.
_REDUCTIONS: Final[dict[str, tuple[Reduce, frozenset[DType], bool]]] = {
    "ReduceSum": (_sum, _ORDERED, False),
    "ReduceMean": (_mean, _ORDERED, False),
    "ReduceMax": (_extreme(torch.amax, is_max=True), PLAIN, False),
    "ReduceMin": (_extreme(torch.amin, is_max=False), PLAIN, False),
    "ReduceProd": (_prod, _ORDERED, True),
    "ReduceL1": (_l1, _ORDERED, False),
    "ReduceL2": (_in_float64(_l2), _ORDERED, False),
    "ReduceSumSquare": (lambda x, axes, keep: _sum(x * x, axes, keep), _ORDERED, True),
    "ReduceLogSum": (
        _in_float64(lambda x, axes, keep: torch.log(torch.sum(x, axes, keep))), _ORDERED, True,
    ),
    "ReduceLogSumExp": (_in_float64(torch.logsumexp), _ORDERED, True),
}  # fmt: skip
KERNELS: Final[TorchKernels] = {
    **{
        ("", name): TorchKernel(
            in_wide(_over_axes(reduce)) if is_widened else _over_axes(reduce), types, host=(1,)
        )
        for name, (reduce, types, is_widened) in _REDUCTIONS.items()
    },
    ("", "ArgMax"): TorchKernel(_index(torch.argmax), PLAIN - {BOOL}),
    ("", "ArgMin"): TorchKernel(_index(torch.argmin), PLAIN - {BOOL}),
    ("", "CumSum"): TorchKernel(_running(torch.cumsum, 0), _ORDERED, host=(1,)),
    ("", "CumProd"): TorchKernel(_running(torch.cumprod, 1), _ORDERED, host=(1,)),
}
