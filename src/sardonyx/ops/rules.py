"""What many ops' rules and references share: axes, broadcasting, arithmetic in a wider type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from sardonyx.errors import InvalidArgument, ShapeError
from sardonyx.graph.dim import Shape, Size
from sardonyx.graph.dtype import BF16, by_numpy
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope

_T = TypeVar("_T")
Array = np.ndarray[Any, np.dtype[Any]]


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


def is_half(dtype: Any) -> bool:
    """Whether arithmetic in this type is done in float32: every float type under 32 bits."""
    known = by_numpy(np.dtype(dtype))
    return known is not None and known.is_float and known.bits < 32


def wide(x: Array) -> Array:
    """The array in the type that arithmetic on it is done in: float32 for narrower floats."""
    return x.astype(np.float32) if is_half(x.dtype) else x


def as_bf16(x: Array) -> Array:
    """The numbers of float32 that are nearest to x and have the eight bits of a bfloat16."""
    return x.astype(BF16.np).astype(np.float32)


def in_wide(function: Callable[..., Any]) -> Callable[..., Any]:
    """A reference with narrow floats in float32, rounded once to its first input's type."""

    def run(*arrays: Any, **attrs: Any) -> Any:
        first = next(a for a in arrays if a is not None)
        with np.errstate(all="ignore"):
            if not is_half(first.dtype):
                return function(*arrays, **attrs)
            widened = (wide(a) if isinstance(a, np.ndarray) else a for a in arrays)
            return narrow(function(*widened, **attrs), first.dtype)

    return run


def narrow(result: Any, dtype: Any) -> Any:
    """float32 results rounded into a narrower type; whatever else they are stays."""
    if isinstance(result, tuple):
        return tuple(narrow(r, dtype) for r in result)
    if isinstance(result, (np.ndarray, np.generic)) and result.dtype == np.float32:
        with np.errstate(all="ignore"):
            return np.asarray(result).astype(dtype)
    return result


def one_int(x: Array | None, what: str) -> int:
    """The single integer in a run-time scalar."""
    if x is None or x.size != 1:
        raise InvalidArgument(f"{what} is one number, not an array of {0 if x is None else x.size}")
    return int(x.reshape(-1)[0])


def distinct(x: Array) -> Array:
    """The different integers in an array, in their order: np.unique imports numpy.ma for it."""
    ordered = np.sort(x, axis=None)
    return ordered[np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))]


def filled(inputs: tuple[_T | None, ...], count: int) -> tuple[_T | None, ...]:
    """Inputs with None for those left out at the end."""
    return inputs + (None,) * (count - len(inputs))


def as_ints(x: Array | Sequence[int] | None) -> tuple[int, ...] | None:
    """Run-time axes, sizes and the like as Python numbers."""
    return None if x is None else tuple(int(i) for i in np.asarray(x).reshape(-1))
