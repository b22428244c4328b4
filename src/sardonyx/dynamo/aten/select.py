"""Order statistics and search: sort, topk, kthvalue, median, searchsorted."""

from __future__ import annotations

from typing import Any

import torch

from sardonyx.dynamo.aten.shape import at_least_1d, axis_of, ranked_as
from sardonyx.dynamo.aten_builder import AtenBuilder, Dimension, static
from sardonyx.dynamo.table import lowers
from sardonyx.graph.dtype import BOOL, I64, U8
from sardonyx.graph.graph import Value


def _top(b: AtenBuilder, x: Value, k: Dimension, dim: int, largest: bool) -> tuple[Value, Value]:
    """Return the k first elements of an axis in sorted order, and their positions.

    Among equals the lower position is first (a stable sort), and NaN is the largest value.
    """
    data = at_least_1d(b, x)
    if data.tensor.dtype is BOOL:
        data = b.cast(data, U8)
    axis = axis_of(x, dim)
    y, index = b.node(
        "TopK", data, b.sizes([k]), axis=axis, largest=int(largest), outputs=2
    ).outputs
    return ranked_as(b, b.cast(y, x.tensor.dtype), x), ranked_as(b, index, x)


def _size(b: AtenBuilder, x: Value, dim: int) -> Dimension:
    shape = b.fake(0).shape
    return shape[axis_of(x, dim)] if len(shape) else 1


@lowers("sort.default")
def _(b: AtenBuilder, x: Value, dim: int = -1, descending: bool = False) -> tuple[Value, ...]:
    return _top(b, x, _size(b, x, dim), dim, descending)


@lowers("sort.stable")
def _(
    b: AtenBuilder, x: Value, stable: Any = None, dim: int = -1, descending: bool = False
) -> tuple[Value, ...]:
    return _top(b, x, _size(b, x, dim), dim, descending)


@lowers("topk.default")
def _(
    b: AtenBuilder,
    x: Value,
    k: Dimension,
    dim: int = -1,
    largest: bool = True,
    is_sorted: bool = True,
    **_: Any,
) -> tuple[Value, ...]:
    return _top(b, x, k, dim, largest)


@lowers("kthvalue.default")
def _(
    b: AtenBuilder, x: Value, k: Dimension, dim: int = -1, keepdim: bool = False
) -> tuple[Value, ...]:
    values, index = _top(b, x, k, dim, largest=False)
    return _picked(b, x, (values, index), b.sizes([k - 1]), dim, keepdim)


def _picked(
    b: AtenBuilder,
    x: Value,
    values_and_index: tuple[Value, Value],
    position: Value,
    dim: int,
    keepdim: bool,
) -> tuple[Value, ...]:
    """Return one element of a sorted axis: its position is one number, or one for each row."""
    axis = axis_of(x, dim)
    if not x.tensor.rank:
        return values_and_index
    results = []
    for v in values_and_index:
        if position.tensor.rank == 1 and v.tensor.rank != 1:
            y = b.Gather(v, position, axis=axis)
        else:
            y = b.GatherElements(v, position, axis=axis)
        results.append(y if keepdim else b.Squeeze(y, b.ints(axis)))
    return tuple(results)


def _median(b: AtenBuilder, x: Value, dim: int, keepdim: bool, skip_nan: bool) -> tuple[Value, ...]:
    """Return the lower median and its position; a NaN is the median unless NaNs are skipped."""
    n = _size(b, x, dim)
    found = _top(b, x, n, dim, largest=False)
    middle = b.size((n - 1) // 2)
    if not x.tensor.rank or x.tensor.dtype.is_integer or x.tensor.dtype is BOOL:
        return _picked(b, x, found, b.Reshape(middle, b.ints(1)), dim, keepdim)
    # NaNs are at the end of the sorted axis.
    is_nan = b.cast(b.IsNaN(x), I64)
    count = b.ReduceSum(is_nan, b.ints(axis_of(x, dim)), keepdims=1)
    n_numbers = b.Sub(b.size(n), count)
    if skip_nan:
        position = b.Div(b.Max(b.Sub(n_numbers, 1), b.const(0, I64)), 2)
    else:
        position = b.Where(b.Greater(count, 0), n_numbers, middle)
    return _picked(b, x, found, position, dim, keepdim)


def _register_median(name: str, skip_nan: bool) -> None:
    @lowers(f"{name}.dim")
    def _(b: AtenBuilder, x: Value, dim: int = -1, keepdim: bool = False) -> tuple[Value, ...]:
        return _median(b, x, dim, keepdim, skip_nan)

    @lowers(f"{name}.default")
    def _(b: AtenBuilder, x: Value) -> Value:
        flat = b.Reshape(x, b.ints(-1))
        n = b.fake(0).numel()
        y, _ = b.node("TopK", flat, b.sizes([n]), axis=0, largest=0, outputs=2).outputs
        if x.tensor.dtype.is_integer:
            return b.Gather(y, b.size((n - 1) // 2), axis=0)
        count = b.ReduceSum(b.cast(b.IsNaN(flat), I64), keepdims=0)
        n_numbers = b.Sub(b.size(n), count)
        middle = b.Div(b.Max(b.Sub(n_numbers, 1), b.const(0, I64)), 2)
        if not skip_nan:
            middle = b.Where(b.Greater(count, 0), n_numbers, middle)
        return b.Gather(y, middle, axis=0)


_register_median("median", skip_nan=False)
_register_median("nanmedian", skip_nan=True)


# Search in sorted sequences


def _search(b: AtenBuilder, sequence: Value, values: Value, n: int, right: bool) -> Value:
    """Return where values belong in sorted sequences, by one binary search for all values."""
    is_shared = sequence.tensor.rank == 1
    low = b.Expand(b.const(0, I64), b.Shape(values))
    high = b.Expand(b.const(n, I64), b.Shape(values))
    last = b.const(n - 1, I64)
    for _ in range(n.bit_length()):
        middle = b.Div(b.Add(low, high), 2)
        index = b.Min(middle, last)  # once low and high have met, the middle may be n
        if is_shared:
            element = b.Gather(sequence, index, axis=0)
        else:
            element = b.GatherElements(sequence, index, axis=-1)
        # NaN is the largest value: a comparison with it is false, so the search goes right.
        stays = b.node("Greater" if right else "GreaterOrEqual", element, values).outputs[0]
        stays = b.Or(stays, b.Equal(low, high))
        low = b.Where(stays, low, b.Add(middle, 1))
        high = b.Where(stays, b.Min(high, middle), high)
    return low


@lowers("searchsorted.Tensor", "searchsorted.Scalar")
def _(
    b: AtenBuilder,
    sequence: Value,
    values: Any,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Value | None = None,
) -> Value:
    n = static(b.fake(0).shape[-1], "the length of the sorted sequence")
    if sorter is not None:
        sequence = b.GatherElements(sequence, sorter, axis=-1)
    return _found(b, sequence, values, n, right or side == "right")


@lowers("bucketize.Tensor", "bucketize.Scalar")
def _(
    b: AtenBuilder, values: Any, boundaries: Value, out_int32: bool = False, right: bool = False
) -> Value:
    n = static(b.fake(1).shape[-1], "the number of boundaries")
    return _found(b, boundaries, values, n, right)


def _found(b: AtenBuilder, sequence: Value, values: Any, n: int, right: bool) -> Value:
    if n == 0 or 0 in b.out.shape:
        return b.Expand(b.operand(0, b.out_type), b.sizes(b.out.shape))
    sequence, values = b.promoted(sequence, values)
    if sequence.tensor.dtype is BOOL:
        sequence, values = b.to(sequence, torch.uint8), b.to(values, torch.uint8)
    flat = at_least_1d(b, values) if sequence.tensor.rank > 1 else values
    return b.to(ranked_as(b, _search(b, sequence, flat, n, right), values), b.out_type)
