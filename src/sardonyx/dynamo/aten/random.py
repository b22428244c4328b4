"""Draws from torch's generators: made by torch at the start of a run, in the order of the graph."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final

import torch

from sardonyx.dynamo.aten_builder import AtenBuilder, Unsupported
from sardonyx.dynamo.draws import bernoulli
from sardonyx.dynamo.table import lowers
from sardonyx.graph.graph import Value

# Draws whose distribution does not depend on data: torch fills a tensor of the result's sizes.
_SIZED: Final = (
    "rand.default",
    "randn.default",
    "randint.default",
    "randint.low",
    "randperm.default",
    "normal.float_float",
)
_LIKE: Final = (
    "rand_like.default", "randn_like.default", "randint_like.default", "randint_like.low_dtype",
    "bernoulli.p", "uniform.default", "normal_functional.default", "exponential.default",
    "geometric.default", "log_normal.default", "cauchy.default", "random.default", "random.from",
    "random.to",
)  # fmt: skip


@lowers(*_SIZED)
def _(b: AtenBuilder, *args: Any, **kwargs: Any) -> Value:
    """Draw by the same call; its sizes are replaced by those of the run."""
    _refuse_generator(kwargs.get("generator"))
    _refuse_open_numbers(args[:-1])
    target, dtype = str(b.call_node.target), b.out_type
    fixed = None if target == "aten.randperm.default" else args[:-1]
    return b.drawn(partial(_sized, target, fixed, dtype, b.device), b.out.shape, dtype)


def _sized(
    target: str,
    fixed: tuple[Any, ...] | None,
    dtype: torch.dtype,
    device: torch.device,
    sizes: Sequence[int],
) -> torch.Tensor:
    """Call an op that draws a tensor of given sizes; without other arguments its size is one."""
    given = (sizes[0],) if fixed is None else (*fixed, sizes)
    return _op(target)(*given, dtype=dtype, device=device)  # type: ignore[no-any-return]


def _op(target: str) -> Any:
    """Return an overload of torch by its name: draws are stored, and overloads cannot be."""
    return attrgetter(target)(torch.ops)


@lowers(*_LIKE)
def _(b: AtenBuilder, x: Value, *args: Any, **kwargs: Any) -> Value:
    """Draw by the same call on an empty tensor with the sizes and the memory order of x."""
    _refuse_generator(kwargs.pop("generator", None))
    _refuse_open_numbers((*args, *kwargs.values()))
    target, like, order = str(b.call_node.target), b.fake(0).dtype, b.memory_order(0)
    draw = partial(_like, target, args, kwargs, like, b.device, order)
    return b.drawn(draw, b.out.shape, b.out_type)


def _like(
    target: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dtype: torch.dtype,
    device: torch.device,
    order: list[int],
    sizes: Sequence[int],
) -> torch.Tensor:
    """Call an op that draws a tensor like another one, whose axes have a given memory order."""
    empty = torch.empty([sizes[i] for i in order], dtype=dtype, device=device)
    function = bernoulli if target == "aten.bernoulli.p" else _op(target)
    return function(_permuted_back(empty, order), *args, **kwargs)


def _permuted_back(x: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """Return a tensor, whose axes are in memory order, with its axes in their own order."""
    return x.permute([order.index(i) for i in range(len(order))])


@lowers("bernoulli.default")
def _(b: AtenBuilder, p: Value, *, generator: Any = None) -> Value:
    # Eager compares one uniform number per element, of float64 only where p is, with p.
    _refuse_generator(generator)
    if b.device.type != "cpu":
        raise Unsupported(f"on {b.device} it draws otherwise than uniform numbers do")
    dtype = torch.float64 if b.out_type is torch.float64 else torch.float32
    uniform = b.drawn(partial(torch.rand, dtype=dtype), b.out.shape, dtype)
    return b.rounded(b.Less(uniform, b.to(p, dtype)))


@lowers("normal.Tensor_Tensor", "normal.Tensor_float", "normal.float_Tensor")
def _(b: AtenBuilder, mean: Any, std: Any = 1.0, *, generator: Any = None) -> Value:
    _refuse_generator(generator)
    scale = std if isinstance(std, float) else 1.0
    normal = b.drawn(partial(_normal, scale, b.out_type, b.device), b.out.shape, b.out_type)
    if isinstance(std, Value):
        normal = b.rounded(b.Mul(*b.in_compute_type(normal, std)))
    return b.rounded(b.Add(*b.in_compute_type(normal, mean)))


def _normal(
    scale: float, dtype: torch.dtype, device: torch.device, sizes: Sequence[int]
) -> torch.Tensor:
    return torch.empty(sizes, dtype=dtype, device=device).normal_(0, scale)


def _refuse_generator(generator: Any) -> None:
    if generator is not None:
        raise Unsupported("an explicit generator")


def _refuse_open_numbers(args: tuple[Any, ...]) -> None:
    if any(isinstance(x, (torch.SymInt, torch.SymFloat)) for x in args):
        raise Unsupported("its distribution depends on open sizes")
