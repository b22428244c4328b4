"""What ops on shapes share: checked sizes, vectors of sizes, and results of their own."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, SardonyxError, ShapeError
from sardonyx.graph.dim import Dim, Shape, Size, TooLong, floor_div, least, maximum, minimum
from sardonyx.graph.dtype import ALL, BOOL, COMPLEX, I64, NUMBERS, STRING, by_name
from sardonyx.graph.fact import AnyFact, Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.infer import MAX_ELEMENTS
from sardonyx.graph.op import Reference
from sardonyx.ops.arrays import Array

MAX_RANK: Final = 64  # what numpy can hold
CLASSIC: Final = NUMBERS | COMPLEX | {BOOL, STRING}  # the types of ops that only move elements
STORED: Final = ALL - {by_name("f6e2m3"), by_name("f6e3m2")}
SIZES: Final = frozenset((I64,))  # the type of shapes and axes
FAR: Final = 2**31 - 1  # exporters write this and more for "to the end"


def owned(x: Any) -> Array:
    """A copy: a result must outlive the input that it would otherwise be a view of."""
    return np.array(x, order="C")


def kept(value: Any) -> Any:
    """A value handed on: arrays are copied, and lists are shared, since nobody changes them."""
    return owned(value) if isinstance(value, np.ndarray) else value


def same_value(fact: AnyFact) -> AnyFact:
    """The fact of a value handed on: known elements stay, but where its bytes lie is not said."""
    return fact.plain().known(fact.sym) if isinstance(fact, Fact) else fact


def allocatable(shape: Sequence[int], dtype: Any, what: str) -> tuple[int, ...]:
    """The run-time shape of a new array; one that no memory here could hold is an error."""
    if any(d < 0 for d in shape):
        raise InvalidArgument(f"{what} {tuple(shape)} has a negative size")
    needed = math.prod(max(d, 1) for d in shape) * np.dtype(dtype).itemsize  # numpy counts so
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory or len(shape) > MAX_RANK:
        raise InvalidArgument(
            f"{what} {tuple(shape)} needs {needed} bytes in rank {len(shape)}, "
            f"and this machine has {memory} bytes and at most rank {MAX_RANK}"
        )
    return tuple(shape)


def checked(g: Scope, shape: Sequence[Size], what: str) -> Shape:
    """A shape from sizes that the model gives: none is negative, all can be addressed."""
    if len(shape) > MAX_RANK:
        raise ShapeError(f"{what} has rank {len(shape)}, and {MAX_RANK} is the most")
    for d in shape:
        if isinstance(d, int) and d < 0:
            raise ShapeError(f"{what} ({', '.join(map(str, shape))}) has the negative size {d}")
        if isinstance(d, Dim):
            g.at_least(d, 0, f"a size of {what}")
    if math.prod(d for d in shape if isinstance(d, int)) > MAX_ELEMENTS:
        raise ShapeError(f"{what} ({', '.join(map(str, shape))}) has more than 2**62 elements")
    return tuple(shape)


def fresh_shape(g: Scope, rank: int, hint: str) -> Shape:
    """A shape of which nothing but the rank is known."""
    if rank > MAX_RANK:
        raise ShapeError(f"the rank is {rank}, and {MAX_RANK} is the most")
    return tuple(g.fresh(hint) for _ in range(rank))


def vector_length(x: Fact, what: str) -> int | None:
    """How many numbers a vector of sizes or axes holds; a scalar counts as one."""
    if x.shape is None:
        return None
    if x.rank > 1:
        raise ShapeError(f"{what} is a vector, not {x}")
    length = x.shape[0] if x.shape else 1
    return length if isinstance(length, int) else None


def number_in(x: Fact) -> Any:
    """The number that a scalar holds: known, symbolic, or None."""
    if x.sym is not None:
        return x.sym[0] if len(x.sym) == 1 else None
    if x.const is not None and x.const.count == 1:
        return float(x.const.read().reshape(-1)[0])
    return None


def moving(reference: Reference, data: int = 1) -> Reference:
    """The symbolic rule of a reference that moves its first `data` inputs as the rest say."""

    def run(*arrays: Any, **attrs: Any) -> Any:
        given: list[Any] = list(arrays[:data])
        for a in arrays[data:]:
            if a is not None and not all(isinstance(v, int) for v in a.flat):
                return None
            given.append(None if a is None else a.astype(np.int64))
        try:
            return reference(*given, **attrs)
        except SardonyxError:
            return None  # the node may never run; if it does, it says so then

    return run


def cut_length(g: Scope, d: Size, start: Size, end: Size, step: int) -> Size:
    """How many of d elements a slice takes; negative bounds count from the end, all are clamped."""
    if step == 0:
        raise ShapeError(f"a slice from {start} to {end} steps by 0")
    if isinstance(d, int) and isinstance(start, int) and isinstance(end, int):
        return len(taken(d, start, end, step))
    try:
        span = _ahead(g, d, start, end) if step > 0 else _back(g, d, start, end)
        return floor_div(span + (abs(step) - 1), abs(step))
    except (TooLong, _Open):
        return g.fresh("cut")


def taken(d: int, start: int, end: int, step: int) -> range:
    """The places that a slice takes of d elements."""
    if step < 0:
        start = max(start, -d)  # walking back from before the front starts at the first element
    return range(*slice(start, end, step).indices(d))


def _ahead(g: Scope, d: Size, start: Size, end: Size) -> Size:
    stop, is_inside = (d, True) if _is_far(end) else _from_front(g, end, d)
    stop = minimum(stop, d)
    if stop == d and start != 0 and least(-start) >= 0:
        _assume(g, -start, 1)
        return minimum(-start, d)
    begin, is_behind = (0, True) if _is_far(-start) else _from_front(g, start, d)
    if begin == 0 and is_inside:
        return stop
    return maximum(stop - (begin if is_behind else maximum(begin, 0)), 0)


def _back(g: Scope, d: Size, start: Size, end: Size) -> Size:
    begin = d - 1 if _is_far(start) else _from_front(g, start, d)[0]
    if begin != d - 1:
        begin = minimum(maximum(begin, 0), d - 1)
    stop = -1 if _is_far(-end) else maximum(minimum(_from_front(g, end, d)[0], d - 1), -1)
    return maximum(begin - stop, 0)


def _is_far(bound: Size) -> bool:
    return isinstance(bound, int) and bound >= FAR


class _Open(Exception):
    """The length of a slice depends on whether a bound is 0."""


def _assume(g: Scope, a: Size, b: Size) -> None:
    if not g.assume_at_least(a, b):
        raise _Open


def _from_front(g: Scope, bound: Size, d: Size) -> tuple[Size, bool]:
    """A bound counted from the front, not clamped yet, and whether it is known to be 0 or more."""
    if least(bound) >= 0:
        return bound, True
    if least(-bound) > 0:
        return d + bound, False
    # n - 1 means the place before n, and -n the last n: they mean something else only if n is 0.
    if least(bound) >= -1:
        _assume(g, bound, 0)
        return bound, True
    if least(-bound) >= 0:
        _assume(g, -bound, 1)
        return d + bound, False
    is_counted_from_front = minimum(maximum(bound + 1, 0), 1)
    return bound + d * (1 - is_counted_from_front), False
