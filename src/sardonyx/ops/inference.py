"""Shape inference shared by ops: axes, broadcasting, and the channel axis of images."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sardonyx.errors import SardonyxError, ShapeError
from sardonyx.graph.dim import Shape, Size
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope


def axis_of(axis: int, rank: int, what: str = "axis") -> int:
    """Return the axis as a non-negative number; raise if it is outside the rank."""
    if not -rank <= axis < rank:
        raise ShapeError(f"{what} {axis} is outside [{-rank}, {rank})")
    return axis % rank if rank else 0


def axes_of(axes: Iterable[int], rank: int, what: str = "axis") -> tuple[int, ...]:
    """Return axes as non-negative numbers; raise for duplicates."""
    normalized = tuple(axis_of(int(a), rank, what) for a in axes)
    if len(set(normalized)) != len(normalized):
        raise ShapeError(f"{what} {tuple(axes)} names one dimension twice")
    return normalized


def broadcast_shapes(g: Scope, *shapes: Shape) -> Shape:
    """Return the shape of values that are broadcast together (numpy's rules)."""
    if len(shapes) == 2 and shapes[0] == shapes[1]:
        return shapes[0]
    rank = max(map(len, shapes))
    result: list[Size] = [1] * rank
    for shape in shapes:
        for i, d in enumerate(shape, rank - len(shape)):
            result[i] = g.broadcast(result[i], d)
    return tuple(result)


def check_choice(
    name: str, value: bytes, choices: Iterable[bytes], error: type[SardonyxError] = ShapeError
) -> None:
    """Raise unless an attribute has one of the values that the spec allows."""
    if value not in choices:
        allowed = ", ".join(c.decode() for c in choices)
        raise error(f"{name} must be one of {allowed}, got {value.decode(errors='replace')}")


def like_first(g: Scope, x: Fact, *_: Any, **attrs: Any) -> Fact:
    """Infer an output with the type and shape of the first input."""
    return x.without_contents()


def to_channels_first(rank: int) -> tuple[int, ...]:
    """The permutation of axes from NHWC to NCHW."""
    return (0, rank - 1, *range(1, rank - 1))


def to_channels_last(rank: int) -> tuple[int, ...]:
    """The permutation of axes from NCHW to NHWC."""
    return (0, *range(2, rank), 1)


def channels_first(x: Fact) -> Fact:
    """Return the fact of an NHWC image as NCHW."""
    if x.rank < 2:
        raise ShapeError(f"x has rank {x.rank}, and needs batch and channels")
    return x.shaped(tuple(x.dims[i] for i in to_channels_first(x.rank)))


def channels_last(x: Fact) -> Fact:
    """Return the fact of an NCHW image as NHWC."""
    return x.shaped(tuple(x.dims[i] for i in to_channels_last(x.rank)))
