"""Reductions, ArgMax and ArgMin, CumSum and CumProd."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, ShapeError
from sardonyx.graph.dim import Shape, Size, maximum, minimum
from sardonyx.graph.dtype import BOOL, FLOATS, I8, I32, I64, INDEX, NUMBERS, U8, U32, U64, DType
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op
from sardonyx.ops.arrays import Array, as_ints, in_wide, one_int, wide
from sardonyx.ops.inference import axes_of, axis_of
from sardonyx.ops.sizes import SIZES

Axes = tuple[int, ...]
Reduce = Callable[[Array, Axes, bool], Any]  # (numbers, axes, keepdims) -> numbers

_INTEGERS: Final = frozenset((I32, I64, U32, U64))
_SUMMED: Final = FLOATS | _INTEGERS
_COMPARED: Final = _SUMMED | {I8, U8, BOOL}


def _normalized_axes(axes: Sequence[int] | None, rank: int, noop: int) -> Axes:
    """Return non-negative axes; without any, all of them, or none for noop_with_empty_axes."""
    if axes:
        return axes_of(axes, rank)
    return () if noop else tuple(range(rank))


def _reduced(shape: Shape, axes: Axes, keepdims: int) -> Shape:
    if keepdims:
        return tuple(1 if i in axes else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in axes)


def _infer(
    g: Scope, x: Fact, axes: Fact | None, *, keepdims: int, noop_with_empty_axes: int
) -> Fact:
    count = 0 if axes is None else _count(axes)
    if count == 0 and x.shape is None:
        return x.shaped(None if keepdims or noop_with_empty_axes else ())
    if x.shape is None or count is None:
        return x.shaped(None)
    # Axes that are known only at run time: the rank is known, the sizes are not.
    if count and axes is not None and axes.ints is None:
        if count > x.rank:
            raise ShapeError(f"{count} axes cannot be reduced: {x} has rank {x.rank}")
        left = x.rank if keepdims else x.rank - count
        return x.shaped(tuple(g.new_dim("reduced") for _ in range(left)))
    static_axes = None if axes is None else axes.ints
    chosen = _normalized_axes(static_axes, x.rank, noop_with_empty_axes)
    return x.shaped(_reduced(x.shape, chosen, keepdims))


def _count(axes: Fact) -> int | None:
    """Return the number of axes, or None if unknown."""
    if axes.sym is not None:
        return len(axes.sym)
    return None if axes.static is None else math.prod(axes.static)


def _reduction(name: str, since: int, reduce: Reduce, types: frozenset[DType] = _SUMMED) -> Op:
    attrs = {"keepdims": 1, "noop_with_empty_axes": 0}
    slots = {"T": types, "I": SIZES}
    op = Op(name, since, "x:T axes:I?", "y:T", attrs=attrs, types=slots, unranked=True)

    def run(x: Array, axes: Array | None, *, keepdims: int, noop_with_empty_axes: int) -> Any:
        chosen = _normalized_axes(
            None if axes is None else as_ints(axes), x.ndim, noop_with_empty_axes
        )
        return np.asarray(reduce(x, chosen, bool(keepdims)))

    op.infer(_infer)
    op.reference(in_wide(run))
    return op


def _accumulator_type(x: Array) -> Any:
    """Return the accumulator type: float64 for float32.

    numpy's pairwise summation applies only along the innermost axis.
    """
    return np.float64 if x.dtype == np.float32 else x.dtype


def _accumulated(function: Callable[..., Any]) -> Reduce:
    return lambda x, axes, keep: function(x, axes, _accumulator_type(x), keepdims=keep).astype(
        x.dtype
    )


_sum: Final = _accumulated(np.sum)


def _extreme(function: Callable[..., Any], bound: int) -> Reduce:
    """Return max or min, whose result over no elements is the type's lower or upper bound."""
    return lambda x, axes, keep: function(x, axes, keepdims=keep, initial=_bounds(x)[bound])


def _mean(x: Array, axes: Axes, keep: bool) -> Any:
    count = math.prod(x.shape[a] for a in axes)
    if x.dtype.kind == "f":
        total = np.sum(x, axes, np.float64, keepdims=keep)
        return (total / count if count else total * np.nan).astype(x.dtype)
    if not count:
        raise InvalidArgument("the mean of no integers is undefined")
    whole = np.sum(x, axes, np.uint64 if x.dtype.kind == "u" else np.int64, keepdims=keep)
    # Truncated, like the integer Div.
    return (np.sign(whole) * (np.abs(whole) // whole.dtype.type(count))).astype(x.dtype)


def _bounds(x: Array) -> tuple[Any, Any]:
    """Return the lower and upper bound of a type: the identities of max and min."""
    if x.dtype.kind == "f":
        return -np.inf, np.inf
    if x.dtype.kind == "b":
        return False, True
    return np.iinfo(x.dtype).min, np.iinfo(x.dtype).max


def _l2(x: Array, axes: Axes, keep: bool) -> Any:
    squares = np.sum(np.square(x.astype(np.float64)), axes, keepdims=keep)
    return np.sqrt(squares).astype(x.dtype)


def _log_sum(x: Array, axes: Axes, keep: bool) -> Any:
    return np.log(np.sum(x, axes, np.float64, keepdims=keep)).astype(x.dtype)


def _log_sum_exp(x: Array, axes: Axes, keep: bool) -> Any:
    numbers = x.astype(np.float64)
    top = np.max(numbers, axes, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(top), top, 0)  # inf - inf would be NaN
    total = np.sum(np.exp(numbers - shift), axes, keepdims=keep)
    return (np.log(total) + np.reshape(shift, np.shape(total))).astype(x.dtype)


REDUCTIONS: Final = (
    _reduction("ReduceSum", 13, _sum),
    _reduction("ReduceMean", 18, _mean),
    _reduction("ReduceMax", 20, _extreme(np.max, 0), _COMPARED),
    _reduction("ReduceMin", 20, _extreme(np.min, 1), _COMPARED),
    _reduction("ReduceProd", 18, _accumulated(np.prod)),
    _reduction("ReduceL1", 18, lambda x, axes, keep: _sum(np.abs(x), axes, keep)),
    _reduction("ReduceL2", 18, _l2),
    _reduction("ReduceSumSquare", 18, lambda x, axes, keep: _sum(np.square(x), axes, keep)),
    # Integers, which opsets below 28 allow, give truncated results.
    _reduction("ReduceLogSum", 28, _log_sum),
    _reduction("ReduceLogSumExp", 28, _log_sum_exp),
)


def _symbolic(step: Callable[[Any, Any], Size], start: int | None) -> Callable[..., Any]:
    """Return a reduction of symbolic sizes; `start` is its identity, None if it has none."""
    fold = np.frompyfunc(step, 2, 1)

    def run(x: Any, axes: Any, *, keepdims: int, noop_with_empty_axes: int) -> Any:
        static_axes = None if axes is None else [int(a) for a in axes.flat]
        chosen = sorted(_normalized_axes(static_axes, x.ndim, noop_with_empty_axes), reverse=True)
        if x.size == 0 and start is None:
            return None
        for axis in chosen:
            x = np.asarray(fold.reduce(x, axis, keepdims=bool(keepdims), initial=start), object)
        return x

    return run


_SYMBOLIC: Final = {
    "ReduceSum": _symbolic(lambda a, b: a + b, 0),
    "ReduceProd": _symbolic(lambda a, b: a * b, 1),
    "ReduceMax": _symbolic(maximum, None),
    "ReduceMin": _symbolic(minimum, None),
}
for _op in REDUCTIONS:
    if _op.name in _SYMBOLIC:
        _op.symbolic(_SYMBOLIC[_op.name])


def _arg_reduction(name: str, best: Callable[..., Any]) -> Op:
    attrs = {"axis": 0, "keepdims": 1, "select_last_index": 0}
    op = Op(name, 13, "x:T", "y:I", attrs=attrs, types={"T": NUMBERS, "I": SIZES})

    @op.infer
    def _(g: Scope, x: Fact, *, axis: int, keepdims: int, select_last_index: int) -> Fact:
        chosen = axis_of(axis, x.rank)
        g.at_least(x.dims[chosen], 1, f"{name} has nothing to choose from along axis {axis}")
        return Fact(I64, _reduced(x.dims, (chosen,), keepdims))

    @op.reference
    def _(x: Array, *, axis: int, keepdims: int, select_last_index: int) -> Any:
        x = wide(x)
        if not select_last_index:
            return np.asarray(best(x, axis, keepdims=bool(keepdims)), np.int64)
        # The last of equal elements is the first of the reversed axis.
        index = best(np.flip(x, axis), axis, keepdims=bool(keepdims))
        return np.asarray(x.shape[axis] - 1 - index, np.int64)

    return op


def _cumulative(name: str, since: int, function: Callable[..., Any], start: int) -> Op:
    attrs, types = {"exclusive": 0, "reverse": 0}, {"T": _SUMMED, "I": INDEX}
    op = Op(name, since, "x:T axis:I", "y:T", attrs=attrs, types=types)

    @op.infer
    def _(g: Scope, x: Fact, axis: Fact, *, exclusive: int, reverse: int) -> Fact:
        if axis.ints is not None and len(axis.ints) == 1:
            axis_of(axis.ints[0], x.rank)
        return x.without_contents()

    def run(x: Array, axis: Array, *, exclusive: int, reverse: int) -> Any:
        along = one_int(axis, "axis")
        if not -x.ndim <= along < x.ndim:
            raise InvalidArgument(f"axis {along} is outside [{-x.ndim}, {x.ndim})")
        slices = np.moveaxis(np.flip(x, along) if reverse else x, along, 0)
        if exclusive:  # the sum before each element: shifted by one, from the identity
            slices = np.concatenate((np.full_like(slices[:1], start), slices[:-1]))
        total = function(slices, 0, _accumulator_type(x)).astype(x.dtype)
        total = np.moveaxis(total, 0, along)
        return np.ascontiguousarray(np.flip(total, along) if reverse else total)

    op.reference(in_wide(run))
    return op


OPS: Final = (
    *REDUCTIONS,
    _arg_reduction("ArgMax", np.argmax),
    _arg_reduction("ArgMin", np.argmin),
    _cumulative("CumSum", 14, np.cumsum, 0),
    _cumulative("CumProd", 26, np.cumprod, 1),
)
