"""Draws for the generators of nodes: types of an op, broadcast shapes, axes, spatial sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np

from tests.random_graphs import schema
from tests.random_graphs.builder import Builder, Unfit
from tests.random_graphs.value import Value

IN_FLOAT32 = ("GroupNormalization", "Shrink", "HardSwish")  # by onnxruntime, whatever the type
Generator = Callable[[Builder, str], Any]


def types(b: Builder, op: str, letter: str = "T", domain: str = "") -> tuple[str, ...]:
    """The types of an op's type variable in this graph's opset, of which there must be some."""
    found = schema.types(domain, op, b.opsets[domain], letter, b.traits.by_onnxruntime)
    if b.traits.by_onnxruntime and op in IN_FLOAT32:
        found = tuple(t for t in found if t != "double")
    if not found:
        raise Unfit(f"{op} has no types")
    return found


def broadcastable(rng: Random, shape: Sequence[int]) -> tuple[int, ...]:
    """A shape that broadcasts with another: dims left out in front, dims of 1, more in front."""
    dims = [1 if rng.random() < 0.25 else d for d in shape]
    kind = rng.random()
    if kind < 0.3:
        dims = dims[rng.randrange(len(dims) + 1) :]
    elif kind < 0.35 and len(dims) < 5:
        dims = [rng.choice((1, 2)), *dims]
    elif kind < 0.6:
        dims = list(shape)
    return tuple(dims)


def fits_with(shape: Sequence[int]) -> Callable[[Value], bool]:
    """Whether a value broadcasts with a shape."""

    def fits(v: Value) -> bool:
        pairs = zip(v.shape[::-1], tuple(shape)[::-1], strict=False)
        return all(a == b or 1 in (a, b) for a, b in pairs)

    return fits


def partner(b: Builder, x: Value, p_new: float = 0.4, **limits: Any) -> Value:
    """A value of x's type that broadcasts with it."""
    if not limits and b.rng.random() > p_new:
        found = b.among([x.dtype], fits_with(x.shape))
        if found is not None:
            return found
    return b.new(x.dtype, broadcastable(b.rng, x.shape), **limits)


def axis(b: Builder, x: Value) -> int:
    """One axis, counted from either end."""
    if not x.rank:
        raise Unfit("no axis")
    return b.rng.randrange(-x.rank, x.rank)


def axes(b: Builder, x: Value, least: int = 0) -> list[int]:
    """Some axes, in any order, counted from either end."""
    n = b.rng.randint(min(least, x.rank), x.rank)
    found = b.rng.sample(range(x.rank), n)
    return [a - x.rank if b.rng.random() < 0.3 else a for a in found]


def ranked(least: int, most: int = 6) -> Callable[[Value], bool]:
    return lambda v: least <= v.rank <= most


def image(
    b: Builder, kinds: Sequence[str], spatial: Sequence[int] = (1, 2, 2, 2, 3), least: int = 3
) -> Value:
    """A batch of images: N, C and one to three spatial dims that are not too small.

    They are finite: a convolution by Winograd's way mixes a pixel with its neighbours.
    """

    def fits(v: Value) -> bool:
        fits = v.rank - 2 in spatial and all(d >= least for d in v.shape[2:]) and v.shape[1] > 0
        return fits and (not b.traits.is_wild or bool(np.all(np.abs(v.data.astype(float)) < 1e4)))

    def shape() -> tuple[int, ...]:
        n = b.rng.choice(spatial)
        tops = {1: 40, 2: 17, 3: 7}
        edges = [b.rng.randint(least, max(least, tops[n])) for _ in range(n)]
        return (b.rng.choice((1, 1, 2, 3)), b.rng.choice((1, 2, 3, 4, 6, 8, 16, 17)), *edges)

    return b.pick(kinds, fits, shape)
