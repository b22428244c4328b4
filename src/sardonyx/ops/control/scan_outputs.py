"""Scan outputs: the facts and arrays of values collected over the iterations of a loop."""

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
    """Return the fact of `count` values stacked along a new axis."""
    if not isinstance(fact, Fact):
        raise ShapeError(f"values collected over iterations must be tensors, got {fact}")
    if fact.shape is None:
        return Fact(fact.dtype, None)
    axis = axis_of(axis, fact.rank + 1)
    return Fact(fact.dtype, (*fact.dims[:axis], count, *fact.dims[axis:]))


def facts_for_empty(g: Scope, facts: Sequence[AnyFact], n_iterations: Size) -> list[AnyFact]:
    """Return facts of scan outputs that also hold for zero iterations.

    An empty result does not have the symbolic sizes that an iteration computes, so those become
    new dims unless at least one iteration is certain.
    """
    if all(isinstance(d, int) for f in facts if isinstance(f, Fact) for d in f.shape or ()):
        return list(facts)
    if n_iterations > 0 if isinstance(n_iterations, int) else g.assume_at_least(n_iterations, 1):
        return list(facts)

    def with_new_dims(fact: AnyFact) -> AnyFact:
        if not isinstance(fact, Fact) or fact.shape is None:
            return fact
        return fact.shaped(
            tuple(d if isinstance(d, int) else g.new_dim("inner") for d in fact.shape)
        )

    return [with_new_dims(f) for f in facts]


def collected(rows: Sequence[Array], fact: AnyFact, axis: int = 0) -> Array:
    """Stack the values of all iterations; without any, an empty array of its type and rank."""
    if rows:
        return np.stack(rows, stack_axis([r.shape for r in rows], axis))
    assert isinstance(fact, Fact)
    return np.empty(empty_shape(fact, axis), fact.dtype.np)


def stack_axis(shapes: Sequence[tuple[int, ...]], axis: int) -> int:
    """Return the new axis of the stack, from 0, of values that must have equal shapes."""
    found = list(dict.fromkeys(shapes))
    if len(found) > 1:
        raise InvalidArgument(f"a scan output has shapes {found[:4]} in different iterations")
    return axis_of(axis, len(found[0]) + 1)


def empty_shape(fact: Fact, axis: int) -> list[int]:
    """Return the shape of the stack of no values; sizes that are unknown then are 0."""
    dims = [d if isinstance(d, int) else 0 for d in fact.shape or ()]
    dims.insert(axis_of(axis, len(dims) + 1), 0)
    return dims
