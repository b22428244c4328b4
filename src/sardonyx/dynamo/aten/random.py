"""Draws from torch's generators: made by torch at the start of a run, in the order of the graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from sardonyx.dynamo.aten_builder import AtenBuilder, Unsupported
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
    target, dtype, device = b.call_node.target, b.out_type, b.device
    _refuse_generator(kwargs.get("generator"))
    fixed = args if target is torch.ops.aten.randperm.default else args[:-1]

    def draw(sizes: Sequence[int]) -> torch.Tensor:
        given = (sizes[0],) if target is torch.ops.aten.randperm.default else (*fixed, sizes)
        return target(*given, dtype=dtype, device=device)  # type: ignore[no-any-return]

    return b.drawn(draw, b.out.shape, dtype)


@lowers(*_LIKE)
def _(b: AtenBuilder, x: Value, *args: Any, **kwargs: Any) -> Value:
    """Draw by the same call on an empty tensor with the sizes and the memory order of x."""
    target, dtype, like = b.call_node.target, b.out_type, b.fake(0).dtype
    _refuse_generator(kwargs.pop("generator", None))
    order, device = b.memory_order(0), b.device

    def draw(sizes: Sequence[int]) -> torch.Tensor:
        empty = torch.empty([sizes[i] for i in order], dtype=like, device=device)
        return target(_permuted_back(empty, order), *args, **kwargs)  # type: ignore[no-any-return]

    return b.drawn(draw, b.out.shape, dtype)


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
    uniform = b.drawn(lambda sizes: torch.rand(sizes, dtype=dtype), b.out.shape, dtype)
    return b.rounded(b.Less(uniform, b.to(p, dtype)))


@lowers("normal.Tensor_Tensor", "normal.Tensor_float", "normal.float_Tensor")
def _(b: AtenBuilder, mean: Any, std: Any = 1.0, *, generator: Any = None) -> Value:
    _refuse_generator(generator)
    dtype, device = b.out_type, b.device
    scale = std if isinstance(std, float) else 1.0
    normal = b.drawn(
        lambda sizes: torch.empty(sizes, dtype=dtype, device=device).normal_(0, scale),
        b.out.shape,
        dtype,
    )
    if isinstance(std, Value):
        normal = b.rounded(b.Mul(*b.in_compute_type(normal, std)))
    return b.rounded(b.Add(*b.in_compute_type(normal, mean)))


def _refuse_generator(generator: Any) -> None:
    if generator is not None:
        raise Unsupported("an explicit generator")
