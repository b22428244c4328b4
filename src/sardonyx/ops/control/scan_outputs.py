"""What the iterations of a loop give, put together: what is known of it, and the array."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sardonyx.errors import InvalidArgument, ShapeError
from sardonyx.graph.dim import Size
from sardonyx.graph.fact import AnyFact, Fact
from sardonyx.graph.guard import Scope
from sardonyx.ops.arrays import Array
from sardonyx.ops.inference import axis_of


def stacked(fact: AnyFact, count: Size, axis: int = 0) -> Fact:
    """What so many values of a kind are along a new axis."""
    if not isinstance(fact, Fact):
        raise ShapeError(f"values are collected over iterations, and {fact} is no tensor")
    if fact.shape is None:
        return Fact(fact.dtype, None)
    axis = axis_of(axis, fact.rank + 1)
    return Fact(fact.dtype, (*fact.dims[:axis], count, *fact.dims[axis:]))


def perhaps_none(g: Scope, parts: Sequence[AnyFact], turns: Size) -> list[AnyFact]:
    """Facts of what each of so many iterations adds, which hold for an empty result, too.

    That has not the sizes that an iteration gives: those that are no numbers become new names.
    """
    if all(isinstance(d, int) for f in parts if isinstance(f, Fact) for d in f.shape or ()):
        return list(parts)
    if turns > 0 if isinstance(turns, int) else g.assume_at_least(turns, 1):
        return list(parts)

    def opened(fact: AnyFact) -> AnyFact:
        if not isinstance(fact, Fact) or fact.shape is None:
            return fact
        return fact.shaped(tuple(d if isinstance(d, int) else g.fresh("inner") for d in fact.shape))

    return [opened(f) for f in parts]


def collected(rows: Sequence[Array], fact: AnyFact, axis: int = 0) -> Array:
    """Rows of all iterations as one array; of none, an empty one of the right type and rank."""
    if rows:
        shapes = list(dict.fromkeys(r.shape for r in rows))
        if len(shapes) > 1:
            raise InvalidArgument(f"values collected over iterations have shapes {shapes[:4]}")
        return np.stack(rows, axis_of(axis, rows[0].ndim + 1))
    assert isinstance(fact, Fact)
    dims = [d if isinstance(d, int) else 0 for d in fact.shape or ()]
    dims.insert(axis_of(axis, len(dims) + 1), 0)
    return np.empty(dims, fact.dtype.np)
