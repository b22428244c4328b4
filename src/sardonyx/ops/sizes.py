"""Shared by ops on shapes: checked shapes, vectors of sizes, and lengths of slices."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, SardonyxError, ShapeError
from sardonyx.graph.dim import Dim, FormulaTooLong, Shape, Size, floor_div, least, maximum, minimum
from sardonyx.graph.dtype import ALL, BOOL, COMPLEX, I64, INDEX, NUMBERS, STRING, by_name
from sardonyx.graph.fact import AnyFact, Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.infer import MAX_ELEMENTS
from sardonyx.graph.op import Reference
from sardonyx.ops.arrays import Array

MAX_RANK: Final = 64  # the maximum rank of numpy arrays
CLASSIC: Final = NUMBERS | COMPLEX | {BOOL, STRING}  # the types of ops that only move elements
STORED: Final = ALL - {by_name("f6e2m3"), by_name("f6e3m2")}
SIZES: Final = frozenset((I64,))  # the type of shapes and axes
# Type constraints that many ops share: T is the data, I are sizes, axes or indices.
DATA_SIZES: Final = {"T": CLASSIC, "I": SIZES}
DATA_INDEX: Final = {"T": CLASSIC, "I": INDEX}
STORED_SIZES: Final = {"T": STORED, "I": SIZES}
SLICE_END: Final = 2**31 - 1  # exporters write this or more for "to the end"


def owned(x: Any) -> Array:
    """Return a contiguous copy: a result must not be a view of an input."""
    return np.array(x, order="C")


def copy_value(value: Any) -> Any:
    """Copy an array; lists (sequences) are immutable here and returned as they are."""
    return owned(value) if isinstance(value, np.ndarray) else value


def same_value(fact: AnyFact) -> AnyFact:
    """Return the fact of a copied value: known elements stay, constant storage does not."""
    return fact.without_contents().with_elements(fact.sym) if isinstance(fact, Fact) else fact


def allocatable(shape: Sequence[int], dtype: Any, what: str) -> tuple[int, ...]:
    """Return the run-time shape of a new array; raise if it exceeds this machine's memory."""
    if any(d < 0 for d in shape):
        raise InvalidArgument(f"{what} {tuple(shape)} has a negative size")
    # numpy counts sizes of 0 as 1 in its own limit.
    needed = math.prod(max(d, 1) for d in shape) * np.dtype(dtype).itemsize
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory or len(shape) > MAX_RANK:
        raise InvalidArgument(
            f"{what} {tuple(shape)} needs {needed} bytes in rank {len(shape)}, "
            f"and this machine has {memory} bytes and at most rank {MAX_RANK}"
        )
    return tuple(shape)


def checked_shape(g: Scope, shape: Sequence[Size], what: str) -> Shape:
    """Return a shape of computed sizes, checked: none negative, at most 2**62 elements."""
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


def new_dims(g: Scope, rank: int, hint: str) -> Shape:
    """Return a shape of new dims: only the rank is known."""
    if rank > MAX_RANK:
        raise ShapeError(f"the rank is {rank}, and {MAX_RANK} is the most")
    return tuple(g.new_dim(hint) for _ in range(rank))


def vector_length(x: Fact, what: str) -> int | None:
    """Return the length of a vector of sizes or axes (1 for a scalar); None if unknown."""
    if x.shape is None:
        return None
    if x.rank > 1:
        raise ShapeError(f"{what} must be a vector, got {x}")
    length = x.shape[0] if x.shape else 1
    return length if isinstance(length, int) else None


def scalar_value(x: Fact) -> Any:
    """Return a scalar's value: a number, a symbolic size, or None if unknown."""
    if x.sym is not None:
        return x.sym[0] if len(x.sym) == 1 else None
    if x.const is not None and x.const.count == 1:
        return float(x.const.read().reshape(-1)[0])
    return None


def symbolic_move(reference: Reference, data: int = 1) -> Reference:
    """Return the symbolic rule of a reference that moves elements of its first `data` inputs.

    The other inputs (axes, indices, sizes) must be static.
    """

    def run(*arrays: Any, **attrs: Any) -> Any:
        operands: list[Any] = list(arrays[:data])
        for a in arrays[data:]:
            if a is not None and not all(isinstance(v, int) for v in a.flat):
                return None
            operands.append(None if a is None else a.astype(np.int64))
        try:
            return reference(*operands, **attrs)
        except SardonyxError:
            return None  # the node may never run; if it does, it raises then

    return run


def slice_length(g: Scope, d: Size, start: Size, end: Size, step: int) -> Size:
    """Return the length of a slice of d elements; bounds wrap and clamp as in ONNX's Slice."""
    if step == 0:
        raise ShapeError(f"a slice from {start} to {end} steps by 0")
    if isinstance(d, int) and isinstance(start, int) and isinstance(end, int):
        return len(slice_range(d, start, end, step))
    try:
        # Rounded up: a last step that is not complete still selects its first element.
        span = _forward_span(g, d, start, end) if step > 0 else _backward_span(g, d, start, end)
        return floor_div(span + (abs(step) - 1), abs(step))
    except (FormulaTooLong, _Undetermined):
        return g.new_dim("cut")


def slice_range(d: int, start: int, end: int, step: int) -> range:
    """Return the indices that a slice selects of d elements."""
    if step < 0:
        start = max(start, -d)  # ONNX clamps to the first element, where Python would select none
    return range(*slice(start, end, step).indices(d))


def _forward_span(g: Scope, d: Size, start: Size, end: Size) -> Size:
    # The length before division by the step is max(min(stop, d) - max(begin, 0), 0). The cases
    # below avoid min and max where a bound is known, which keeps later shape arithmetic simple.
    stop, is_inside = (d, True) if _is_end(end) else _from_front(g, end, d)
    stop = minimum(stop, d)
    if stop == d and start != 0 and least(-start) >= 0:  # the last -start elements
        _assume(g, -start, 1)
        return minimum(-start, d)
    begin, is_non_negative = (0, True) if _is_end(-start) else _from_front(g, start, d)
    if begin == 0 and is_inside:
        return stop
    return maximum(stop - (begin if is_non_negative else maximum(begin, 0)), 0)


def _backward_span(g: Scope, d: Size, start: Size, end: Size) -> Size:
    # The first element is clamped to [0, d - 1], and the exclusive end to [-1, d - 1].
    begin = d - 1 if _is_end(start) else _from_front(g, start, d)[0]
    if begin != d - 1:
        begin = minimum(maximum(begin, 0), d - 1)
    stop = -1 if _is_end(-end) else maximum(minimum(_from_front(g, end, d)[0], d - 1), -1)
    return maximum(begin - stop, 0)


def _is_end(bound: Size) -> bool:
    return isinstance(bound, int) and bound >= SLICE_END


class _Undetermined(Exception):
    """The length of a slice depends on whether a symbolic bound is 0."""


def _assume(g: Scope, a: Size, b: Size) -> None:
    if not g.assume_at_least(a, b):
        raise _Undetermined


def _from_front(g: Scope, bound: Size, d: Size) -> tuple[Size, bool]:
    """Return a bound counted from the front, unclamped, and whether it is known to be >= 0."""
    if least(bound) >= 0:
        return bound, True
    if least(-bound) > 0:
        return d + bound, False
    # n - 1 is usually an index from the front, and -n one from the end; only n = 0 differs, and a
    # guard excludes it.
    if least(bound) >= -1:
        _assume(g, bound, 0)
        return bound, True
    if least(-bound) >= 0:
        _assume(g, -bound, 1)
        return d + bound, False
    # The sign is unknown: add d only where bound < 0, by an arithmetic 0/1 indicator.
    is_counted_from_front = minimum(maximum(bound + 1, 0), 1)
    return bound + d * (1 - is_counted_from_front), False
