"""Indexing: gather, scatter, index_put and their relatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from sardonyx.dynamo.aten.shape import (
    at_least_1d,
    axis_of,
    has_zero,
    non_negative,
    ranked_as,
    zeros,
)
from sardonyx.dynamo.aten_builder import AtenBuilder, Dimension, Unsupported
from sardonyx.dynamo.table import lowers
from sardonyx.graph.dtype import BF16, F16, F32, I64, DType
from sardonyx.graph.graph import Value

# Gathers along one axis


@lowers("index_select.default")
def _(b: AtenBuilder, x: Value, dim: int, index: Value) -> Value:
    axis = axis_of(x, dim)
    return ranked_as(b, b.Gather(at_least_1d(b, x), non_negative(b, index, x, axis), axis=axis), x)


@lowers("gather.default")
def _(b: AtenBuilder, x: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    if has_zero(b.out.shape):
        return zeros(b, b.out.shape, x)
    axis = axis_of(x, dim)
    data, where = at_least_1d(b, x), non_negative(b, index, x, axis)
    return ranked_as(b, b.GatherElements(data, where, axis=axis), index)


@lowers("take.default")
def _(b: AtenBuilder, x: Value, index: Value) -> Value:
    return b.Gather(b.Reshape(x, b.ints(-1)), index, axis=0)


@lowers("repeat_interleave.Tensor")
def _(b: AtenBuilder, repeats: Value, output_size: Dimension | None = None) -> Value:
    n = b.out.shape[0]
    repeats = b.cast(repeats, I64)
    # Element i of the result is the number of runs that start at or before it, minus 1.
    starts = b.CumSum(repeats, b.const(0, I64), exclusive=1)
    empty = b.Expand(b.const(0, I64), b.sizes([n + 1]))
    ones = b.Expand(b.const(1, I64), b.Shape(repeats))
    marks = b.ScatterElements(empty, starts, ones, axis=0, reduction=b"add")
    within = b.Slice(marks, b.ints(0), b.sizes([n]))
    return b.to(b.Sub(b.CumSum(within, b.const(0, I64)), 1), b.out_type)


# Scatters along one axis

# torch's name of a reduction -> ONNX's
_REDUCTIONS: Final = {
    "add": b"add", "sum": b"add", "mean": b"add", "prod": b"mul", "multiply": b"mul",
    "amax": b"max", "amin": b"min", None: b"none",
}  # fmt: skip


def _scattered(
    b: AtenBuilder, x: Value, dim: int, index: Value, source: Value, reduction: bytes
) -> Value:
    """Write or reduce elements into x; the source may be larger than the index."""
    axis = axis_of(x, dim)
    data, where = at_least_1d(b, x), non_negative(b, index, x, axis)
    source = at_least_1d(b, source)
    rank = source.tensor.rank
    if source.tensor.dims != where.tensor.dims:
        axes = b.ints(*range(rank))
        source = b.Slice(source, b.ints(*(0,) * rank), b.Shape(where), axes)
    dtype = x.tensor.dtype
    if reduction != b"none" and dtype.kind == "bool":
        raise Unsupported("scatter reductions of bool are not supported")
    y = b.ScatterElements(data, where, source, axis=axis, reduction=reduction)
    return ranked_as(b, y, x)


@lowers("scatter_add.default")
def _(b: AtenBuilder, x: Value, dim: int, index: Value, source: Value) -> Value:
    if has_zero(b.fake(2).shape):
        return x
    return _scattered(b, x, dim, index, source, b"add")


@lowers("scatter.src", "scatter.value", "scatter.reduce", "scatter.value_reduce")
def _(
    b: AtenBuilder, x: Value, dim: int, index: Value, source: Any, reduce: str | None = None
) -> Value:
    if has_zero(b.fake(2).shape):
        return x
    if not isinstance(source, Value):
        source = b.Expand(*b.like_out(source), b.Shape(at_least_1d(b, index)))
    return _scattered(b, x, dim, index, source, _REDUCTIONS[reduce])


@lowers("scatter_reduce.two")
def _(
    b: AtenBuilder,
    x: Value,
    dim: int,
    index: Value,
    source: Value,
    reduce: str,
    include_self: bool = True,
) -> Value:
    if has_zero(b.fake(2).shape):
        return x
    return _reduced(b, x, dim, index, source, (reduce, include_self))


@lowers("index_reduce.default")
def _(
    b: AtenBuilder,
    x: Value,
    dim: int,
    index: Value,
    source: Value,
    reduce: str,
    include_self: bool = True,
) -> Value:
    if has_zero(b.fake(3).shape):
        return x
    axis = axis_of(x, dim)
    along = b.Reshape(index, b.ints(-1, *(1,) * (max(x.tensor.rank, 1) - 1 - axis)))
    indices = b.Expand(along, b.Shape(at_least_1d(b, source)))
    return _reduced(b, x, dim, indices, source, (reduce, include_self))


def _reduced(
    b: AtenBuilder, x: Value, dim: int, index: Value, source: Value, how: tuple[str, bool]
) -> Value:
    """Reduce elements of the source into x, in float32 for 16-bit types."""
    reduce, include_self = how
    dtype = x.tensor.dtype
    if dtype in (F16, BF16):
        x, source = b.cast(x, F32), b.cast(source, F32)
    wide = x.tensor.dtype
    start = x
    if not include_self:  # reduced elements start at the identity element
        neutral = b.Expand(b.const(_neutral(reduce, wide), wide), b.Shape(at_least_1d(b, index)))
        start = _scattered(b, x, dim, index, neutral, b"none")
    y = _scattered(b, start, dim, index, source, _REDUCTIONS[reduce])
    if reduce == "mean":
        ones = b.Expand(b.const(1, wide), b.Shape(at_least_1d(b, index)))
        first = b.Expand(b.const(int(include_self), wide), b.Shape(x))
        counts = b.Max(_scattered(b, first, dim, index, ones, b"add"), b.const(1, wide))
        y = b.Div(y, counts) if not wide.is_integer else _floor_div(b, y, counts)
    return b.cast(y, dtype)


def _neutral(reduce: str, dtype: DType) -> Any:
    if reduce not in ("amax", "amin"):
        return int(reduce in ("prod", "multiply"))
    if dtype.is_integer:
        limits = np.iinfo(dtype.np)
        return limits.min if reduce == "amax" else limits.max
    return -np.inf if reduce == "amax" else np.inf


def _floor_div(b: AtenBuilder, x: Value, y: Value) -> Value:
    """Return x // y for a positive y; Div truncates."""
    quotient = b.Div(x, y)
    is_less = b.Less(x, b.Mul(quotient, y))
    return b.Sub(quotient, b.cast(is_less, x.tensor.dtype))


@lowers("put.default")
def _(b: AtenBuilder, x: Value, index: Value, source: Value, accumulate: bool = False) -> Value:
    flat = [b.Reshape(v, b.ints(-1)) for v in (x, index, source)]
    y = b.ScatterElements(*flat, axis=0, reduction=b"add" if accumulate else b"none")
    return b.Reshape(y, b.sizes(b.out.shape), allowzero=1)


# Advanced indexing


@lowers("index.Tensor", "_unsafe_index.Tensor")
def _(b: AtenBuilder, x: Value, indices: Sequence[Value | None]) -> Value:
    axes = _indexed_axes(indices)
    indexed = [v for v in indices if v is not None]
    if len(axes) == 1:
        return b.Gather(x, b.cast(indexed[0], I64), axis=axes[0])
    rank = x.tensor.rank
    others = [i for i in range(rank) if i not in axes]
    if axes != list(range(len(axes))):
        x = b.Transpose(x, perm=(*axes, *others))
    tuples = _tuples(b, indexed)
    y = b.GatherND(x, tuples)
    n_index = tuples.tensor.rank - 1
    return _permuted(b, y, _index_layout(axes, n_index, y.tensor.rank))


def _indexed_axes(indices: Sequence[Value | None]) -> list[int]:
    if any(v.tensor.dtype.kind == "bool" for v in indices if v is not None):
        raise Unsupported("boolean mask: output shape is data-dependent")
    return [i for i, v in enumerate(indices) if v is not None]


def _index_layout(axes: Sequence[int], n_index: int, rank: int) -> tuple[int, ...]:
    """Return the permutation from (index axes, others) to torch's layout of a result.

    The index axes replace the indexed axes if these are adjacent, else they come first.
    """
    first = axes[0] if list(axes) == list(range(axes[0], axes[-1] + 1)) else 0
    before = range(n_index, n_index + first)
    return (*before, *range(n_index), *range(n_index + first, rank))


def _permuted(b: AtenBuilder, x: Value, perm: tuple[int, ...]) -> Value:
    """Permute axes; an expanded scalar is expanded to the permuted shape instead."""
    if perm == tuple(range(len(perm))):
        return x
    if x.node is not None and x.node.op.name == "Expand":
        number, shape = x.node.inputs
        if number is not None and shape is not None and number.tensor.rank == 0:
            return b.Expand(number, b.Gather(shape, b.ints(*perm)))
    return b.Transpose(x, perm=perm)


def _inverse(perm: Sequence[int]) -> tuple[int, ...]:
    return tuple(perm.index(i) for i in range(len(perm)))


@lowers("index_put.default", "_unsafe_index_put.default")
def _(
    b: AtenBuilder,
    x: Value,
    indices: Sequence[Value | None],
    values: Value,
    accumulate: bool = False,
) -> Value:
    values = b.cast(values, x.tensor.dtype)
    if _is_mask(indices):
        return _mask_put(b, x, indices, values, accumulate)
    axes, rank = _indexed_axes(indices), x.tensor.rank
    tuples = _tuples(b, [v for v in indices if v is not None])
    n_index = tuples.tensor.rank - 1
    perm = (*axes, *(i for i in range(rank) if i not in axes))
    layout = _index_layout(axes, n_index, n_index + rank - len(axes))
    # The shape of x[indices] in torch's layout, to which the values are broadcast.
    sizes = b.Concat(
        b.Slice(b.Shape(tuples), b.ints(0), b.ints(-1)),
        b.Gather(b.Shape(x), b.ints(*perm[len(axes) :])),
        axis=0,
    )
    values = b.Expand(values, b.Gather(sizes, b.ints(*layout)))
    values = _permuted(b, values, _inverse(layout))
    reduction = b"add" if accumulate else b"none"
    if accumulate and x.tensor.dtype.kind == "bool":
        raise Unsupported("scatter reductions of bool are not supported")
    y = b.ScatterND(_permuted(b, x, perm), tuples, values, reduction=reduction)
    return _permuted(b, y, _inverse(perm))


def _is_mask(indices: Sequence[Value | None]) -> bool:
    tensors = [v for v in indices if v is not None]
    return len(tensors) == 1 and tensors[0].tensor.dtype.kind == "bool"


def _mask_put(
    b: AtenBuilder, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool
) -> Value:
    """Write values where a mask is true, the k-th one at its k-th true element."""
    axis = next(i for i, v in enumerate(indices) if v is not None)
    mask = indices[axis]
    assert mask is not None
    n_after = x.tensor.rank - axis - mask.tensor.rank
    # The values are broadcast to [axes before the mask, true elements, axes after it].
    own_axis = values.tensor.rank - 1 - n_after
    if has_zero(b.fake(2).shape) or has_zero(b.out.shape):
        return x
    if own_axis >= 0:
        index = _prefix_counts(b, b.Reshape(mask, b.ints(-1)))
        last = b.size(b.fake(2).shape[own_axis] - 1)
        index = b.Reshape(b.Min(index, last), b.Shape(mask))
        values = b.Gather(values, index, axis=own_axis)
    mask = b.Unsqueeze(mask, b.ints(*range(-n_after, 0))) if n_after else mask
    return b.Where(mask, b.Add(x, values) if accumulate else values, x)


def _tuples(b: AtenBuilder, indices: list[Value]) -> Value:
    """Return index tensors, broadcast to one shape, as index tuples along a new last axis."""
    indices = [b.cast(i, I64) for i in indices]
    if len(indices) > 1:
        total = indices[0]
        for other in indices[1:]:
            total = b.Add(total, other)
        shape = b.Shape(total)
        indices = [b.Expand(i, shape) for i in indices]
    lifted = [b.Unsqueeze(i, b.ints(-1)) for i in indices]
    return b.Concat(*lifted, axis=-1) if len(lifted) > 1 else lifted[0]


# Masked scatter


def _prefix_counts(b: AtenBuilder, mask: Value) -> Value:
    """Return max(cumsum - 1, 0) of a flat mask.

    For a true element this is the number of true elements before it.
    """
    counts = b.CumSum(b.cast(mask, I64), b.const(0, I64))
    return b.Max(b.Sub(counts, 1), b.const(0, I64))


@lowers("masked_scatter.default")
def _(b: AtenBuilder, x: Value, mask: Value, source: Value) -> Value:
    shape = b.sizes(b.out.shape)
    if has_zero(b.fake(2).shape) or has_zero(b.out.shape):
        return b.Expand(x, shape)
    mask = b.Expand(mask, shape)
    index = _prefix_counts(b, b.Reshape(mask, b.ints(-1)))
    # The index of an element that is not masked may be outside a short source.
    index = b.Min(index, b.size(b.fake(2).numel() - 1))
    chosen = b.Gather(b.Reshape(source, b.ints(-1)), index, axis=0)
    return b.Where(mask, b.Reshape(chosen, shape), x)


@lowers("masked_scatter_backward.default")
def _(b: AtenBuilder, dy: Value, mask: Value, sizes: Sequence[Dimension]) -> Value:
    flat = b.Reshape(b.Expand(mask, b.Shape(dy)), b.ints(-1))
    count = b.size(b.out.numel())
    # Elements that are not masked go to one more row, which is cut off.
    index = b.Where(flat, _prefix_counts(b, flat), count)
    empty = zeros(b, [b.out.numel() + 1], dy)
    rows = b.ScatterElements(empty, index, b.Reshape(dy, b.ints(-1)), axis=0)
    cut = b.Slice(rows, b.ints(0), b.Reshape(count, b.ints(1)))
    return b.Reshape(cut, b.sizes(sizes), allowzero=1)


@lowers("nonzero_static.default")
def _(b: AtenBuilder, x: Value, size: Dimension, fill_value: int = -1) -> Value:
    if not x.tensor.rank:
        raise Unsupported("nonzero of a 0-d tensor")
    found = b.Transpose(b.NonZero(x), perm=(1, 0))
    kept = b.Slice(found, b.ints(0), b.sizes([size]), b.ints(0))
    missing = b.Sub(b.sizes([size]), b.Slice(b.Shape(kept), b.ints(0), b.ints(1)))
    pads = b.Concat(b.ints(0), missing, axis=0)
    return b.Pad(kept, pads, b.const(fill_value, I64), b.ints(0))
