"""Shape inference shared by ops: axes and broadcasting."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sardonyx.errors import ShapeError
from sardonyx.graph.dim import Shape, Size
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope


def axis_of(axis: int, rank: int, what: str = "axis") -> int:
    """The axis counted from the front; an axis outside the rank is an error."""
    if not -rank <= axis < rank:
        raise ShapeError(f"{what} {axis} is outside [{-rank}, {rank})")
    return axis % rank if rank else 0


def axes_of(axes: Iterable[int], rank: int, what: str = "axis") -> tuple[int, ...]:
    """Several axes counted from the front; one given twice is an error."""
    found = tuple(axis_of(int(a), rank, what) for a in axes)
    if len(set(found)) != len(found):
        raise ShapeError(f"{what} {tuple(axes)} names one dimension twice")
    return found


def broadcast_shapes(g: Scope, *shapes: Shape) -> Shape:
    """The shape of values broadcast against each other from the right, as numpy does."""
    if len(shapes) == 2 and shapes[0] == shapes[1]:
        return shapes[0]
    rank = max(map(len, shapes))
    result: list[Size] = [1] * rank
    for shape in shapes:
        for i, d in enumerate(shape, rank - len(shape)):
            result[i] = g.broadcast(result[i], d)
    return tuple(result)


def like_first(g: Scope, x: Fact, *_: Any, **attrs: Any) -> Fact:
    """Inference of an op whose output looks like its first input."""
    return x.plain()
