"""Views of all elements (reshape, permute, expand), and tensors made of sizes (full, arange)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from sardonyx.dynamo.aten_builder import AtenBuilder, Dimension, expression_of, static
from sardonyx.dynamo.table import lowers
from sardonyx.graph.dtype import F64, I64
from sardonyx.graph.graph import Value, input_of


def axis_of(x: Value, dim: int) -> int:
    """Return a torch dim counted from the front; a 0-d tensor has the dims 0 and -1."""
    return dim + max(x.tensor.rank, 1) if dim < 0 else dim


def at_least_1d(b: AtenBuilder, x: Value) -> Value:
    """Return a 0-d tensor as a vector of one element, and others unchanged."""
    return x if x.tensor.rank else b.Reshape(x, b.ints(1))


def non_negative(b: AtenBuilder, index: Value, x: Value, dim: int) -> Value:
    """Return an index along a dim for ops of torch that reject negative numbers.

    ONNX counts these from the end; minus the size they are out of range there, too.
    """
    size = b.Shape(at_least_1d(b, x), start=dim, end=dim + 1)
    index = at_least_1d(b, b.cast(index, I64))
    return b.Where(b.Less(index, b.const(0, I64)), b.Sub(index, size), index)


def ranked_as(b: AtenBuilder, x: Value, like: Value) -> Value:
    """Return a vector of one element as a scalar where `like` is 0-d, and others unchanged."""
    return x if like.tensor.rank else b.Reshape(x, b.ints())


def has_zero(sizes: Sequence[Dimension]) -> bool:
    """Whether a size is known to be 0; unlike `0 in sizes`, this adds no guard to open sizes."""
    return any(expression_of(d) == 0 for d in sizes)


def zeros(b: AtenBuilder, sizes: Sequence[Dimension], x: Value) -> Value:
    """Return zeros of the type of x."""
    return b.Expand(b.const(0, x.tensor.dtype), b.sizes(sizes))


def is_zeros(x: Value) -> bool:
    """Return whether a value is the result of `zeros`."""
    if x.node is None or x.node.op.name != "Expand":
        return False
    const = input_of(x.node, 0).const
    return const is not None and not const.read().any()


def positions(b: AtenBuilder, size: Dimension) -> Value:
    """Return the positions 0, 1, ... of an axis."""
    return b.arange(b.size(size))


@lowers(
    "view.default",
    "reshape.default",
    "_unsafe_view.default",
    "_reshape_copy.default",
    "view_copy.default",
)
def _(b: AtenBuilder, x: Value, size: Sequence[Dimension]) -> Value:
    return b.Reshape(x, b.shape_for_reshape(b.out.shape), allowzero=int(has_zero(b.out.shape)))


@lowers("t.default")
def _(b: AtenBuilder, x: Value) -> Value:
    return x if x.tensor.rank < 2 else b.Transpose(x, perm=(1, 0))


# torch decomposes `transpose` to this, which its partitioner knows as a view and does not save.
@lowers("permute.default", "permute_copy.default")
def _(b: AtenBuilder, x: Value, dims: Sequence[int]) -> Value:
    return b.Transpose(x, perm=tuple(axis_of(x, d) for d in dims)) if len(dims) else x


@lowers("unsqueeze.default")
def _(b: AtenBuilder, x: Value, dim: int) -> Value:
    return b.Unsqueeze(x, b.ints(dim))


@lowers("squeeze.dim", "squeeze.dims", "squeeze.default")
def _(b: AtenBuilder, x: Value, dims: Any = None) -> Value:
    return b.Reshape(x, b.shape_for_reshape(b.out.shape), allowzero=int(has_zero(b.out.shape)))


@lowers("expand.default")
def _(b: AtenBuilder, x: Value, size: Sequence[Dimension], implicit: bool = False) -> Value:
    return b.Expand(x, b.sizes(b.out.shape))


@lowers(
    "zeros.default",
    "empty.memory_format",
    "empty_strided.default",
    "empty_permuted.default",
    "new_empty.default",
    "new_empty_strided.default",
    "new_zeros.default",
    "zeros_like.default",
    "empty_like.default",
)
def _(b: AtenBuilder, *_: Any, **__: Any) -> Value:
    return b.Expand(b.operand(0, b.out_type), b.sizes(b.out.shape))


@lowers("ones.default", "ones_like.default", "new_ones.default")
def _(b: AtenBuilder, *_: Any, **__: Any) -> Value:
    return b.Expand(b.operand(1, b.out_type), b.sizes(b.out.shape))


@lowers("full.default")
def _(b: AtenBuilder, size: Sequence[Dimension], value: Any, **_: Any) -> Value:
    return b.Expand(b.operand(value, b.out_type), b.sizes(size))


@lowers("new_full.default")
def _(b: AtenBuilder, x: Value, size: Sequence[Dimension], value: Any, **_: Any) -> Value:
    return b.Expand(b.operand(value, b.out_type), b.sizes(size))


@lowers("scalar_tensor.default")
def _(b: AtenBuilder, value: Any, **_: Any) -> Value:
    return b.operand(value, b.out_type)


@lowers("arange.start_step", "arange.start", "arange.default")
def _(b: AtenBuilder, *bounds: Any, **_: Any) -> Value:
    start, _, step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    result = positions(b, b.out.shape[0])
    if not b.out_type.is_floating_point:  # torch truncates the bounds before it counts
        start, step = (int(v) if isinstance(v, float) else v for v in (start, step))
    elif any(isinstance(v, float) for v in (start, step)):
        result = b.cast(result, F64)  # start + i * step is rounded once
    is_default = isinstance(start, int) and isinstance(step, int) and (start, step) == (0, 1)
    if not is_default:
        kind = result.tensor.dtype
        result = b.Add(b.Mul(result, _number(b, step, kind)), _number(b, start, kind))
    return b.to(result, b.out_type)


def _number(b: AtenBuilder, value: Any, dtype: Any) -> Value:
    return b.const(value, dtype) if isinstance(value, (int, float)) else b.cast(b.size(value), I64)


@lowers("linspace.default")
def _(b: AtenBuilder, start: Any, end: Any, steps: Dimension, **_: Any) -> Value:
    """Count from both ends, as torch does, so that both are exact."""
    if not b.out_type.is_floating_point:  # torch truncates the ends first, then each result
        start, end = (int(v) if isinstance(v, float) else v for v in (start, end))
    first, last = (b.operand(v, torch.float64) for v in (start, end))
    count = b.cast(b.size(steps), F64)
    index = b.cast(positions(b, steps), F64)
    step = b.Div(b.Sub(last, first), b.Max(b.Sub(count, 1.0), b.const(1, F64)))
    from_end = b.Sub(last, b.Mul(step, b.Sub(b.Sub(count, 1.0), index)))
    is_first_half = b.Less(positions(b, steps), b.Div(b.size(steps), 2))
    is_first_half = b.Or(is_first_half, b.Equal(count, 1.0))
    result = b.Where(is_first_half, b.Add(first, b.Mul(step, index)), from_end)
    return b.to(result, b.out_type)


def _register_indices(name: str, function: Any) -> None:
    @lowers(f"{name}.default")
    def _(b: AtenBuilder, rows: Dimension, columns: Dimension, offset: int = 0, **_: Any) -> Value:
        sizes = static(rows, "the number of rows"), static(columns, "the number of columns")
        indices = np.stack(function(sizes[0], offset, sizes[1]))
        return b.to(b.const(indices, I64), b.out_type)


_register_indices("tril_indices", np.tril_indices)
_register_indices("triu_indices", np.triu_indices)
