"""Ops that move elements: slice, concatenate, split, pad, flip, roll, diagonals, windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from sardonyx.dynamo.aten.shape import axis_of, has_zero, positions
from sardonyx.dynamo.aten_builder import AtenBuilder, Dimension, Unsupported, expression_of, static
from sardonyx.dynamo.table import lowers
from sardonyx.graph.dtype import I64
from sardonyx.graph.graph import Node, Value

_TO_THE_END: Final = 2**63 - 1
_TO_THE_FRONT: Final = -(2**63) + 1


# Slices


@lowers("select.int", "select_copy.int")
def _(b: AtenBuilder, x: Value, dim: int, index: Dimension) -> Value:
    return b.Gather(x, b.size(index), axis=axis_of(x, dim))


@lowers("slice.Tensor", "slice_copy.Tensor")
def _(
    b: AtenBuilder, x: Value, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> Value:
    start = 0 if start is None else start
    end = _TO_THE_END if end is None else end
    return _slice(b, x, axis_of(x, dim), b.sizes([start]), b.sizes([end]), step)


@lowers("narrow_copy.default")
def _(b: AtenBuilder, x: Value, dim: int, start: Dimension, length: Dimension) -> Value:
    axis = axis_of(x, dim)
    begin = _begin(b, start, b.fake(0).shape[axis])
    return _slice(b, x, axis, begin, b.Add(begin, b.sizes([length])))


def _slice(
    b: AtenBuilder, x: Value, axis: int, start: Value, end: Value, step: Dimension = 1
) -> Value:
    return b.Slice(x, start, end, b.ints(axis), b.sizes([step]))


def _begin(b: AtenBuilder, start: Any, size: Dimension) -> Value:
    """Return a start as torch reads it, counted from the front and clamped, as a vector of 1."""
    start = 0 if start is None else start
    first, n = expression_of(start), expression_of(size)
    if isinstance(first, int) and isinstance(n, int):
        return b.ints(min(max(first + n if first < 0 else first, 0), n))
    if first == 0:
        return b.ints(0)
    begin, length = b.sizes([start]), b.sizes([size])
    if not isinstance(first, int):
        begin = b.Where(b.Less(begin, 0), b.Add(begin, length), begin)
    elif first < 0:
        begin = b.Add(begin, length)
    return b.Min(b.Max(begin, b.ints(0)), length)


@lowers("select_scatter.default")
def _(b: AtenBuilder, x: Value, source: Value, dim: int, index: Dimension) -> Value:
    axis = axis_of(x, dim)
    (source,) = b.like_out(source)
    begin = _begin(b, index, b.fake(0).shape[axis])
    return _replaced(b, x, b.Unsqueeze(source, b.ints(axis)), axis, begin, 1)


@lowers("slice_scatter.default")
def _(
    b: AtenBuilder,
    x: Value,
    source: Value,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> Value:
    axis = axis_of(x, dim)
    size, length = b.fake(0).shape[axis], b.fake(1).shape[axis]
    if expression_of(length) == 0:
        return x
    (source,) = b.like_out(b.Expand(source, b.sizes(_with(b.fake(0).shape, axis, length))))
    begin = _begin(b, start, size)
    if step == 1:
        return _replaced(b, x, source, axis, begin, length)
    # Position p of x is written where p = begin + i * step for a row i of the source.
    offset = b.Sub(positions(b, size), begin)
    row = b.Div(offset, step)
    in_slice = b.And(b.GreaterOrEqual(offset, 0), b.Less(row, b.size(length)))
    is_written = b.And(in_slice, b.Equal(b.Mod(offset, step), 0))
    rows = b.Min(b.Max(row, b.const(0, I64)), b.size(length - 1))
    tail = b.ints(-1, *(1,) * (x.tensor.rank - 1 - axis))
    return b.Where(b.Reshape(is_written, tail), b.Gather(source, rows, axis=axis), x)


def _with(shape: Sequence[Dimension], axis: int, size: Dimension) -> list[Dimension]:
    return [*shape[:axis], size, *shape[axis + 1 :]]


def _replaced(
    b: AtenBuilder, x: Value, new: Value, axis: int, begin: Value, length: Dimension
) -> Value:
    """Return x with the slices [begin, begin + length) of an axis replaced."""
    before = _slice(b, x, axis, b.ints(0), begin)
    after = _slice(b, x, axis, b.Add(begin, b.sizes([length])), b.ints(_TO_THE_END))
    return b.Concat(before, new, after, axis=axis)


@lowers("select_backward.default")
def _(b: AtenBuilder, dy: Value, sizes: Sequence[Dimension], dim: int, index: Dimension) -> Value:
    axis = dim + len(sizes) if dim < 0 else dim
    begin = _begin(b, index, sizes[axis])
    return _padded_back(b, b.Unsqueeze(dy, b.ints(axis)), axis, begin, 1, sizes[axis])


@lowers("slice_backward.default")
def _(
    b: AtenBuilder, dy: Value, sizes: Sequence[Dimension], dim: int, start: Any, end: Any, step: int
) -> Value:
    axis = dim + len(sizes) if dim < 0 else dim
    length = b.fake(0).shape[axis]
    begin = _begin(b, start, sizes[axis])
    if step != 1:  # step - 1 zeros follow every slice; those after the end are cut off
        rank = len(sizes)
        pads = [0] * (2 * rank + 2)
        pads[-rank + axis] = step - 1
        spread = b.Pad(b.Unsqueeze(dy, b.ints(axis + 1)), b.ints(*pads))
        length = length * step
        dy = b.Reshape(spread, b.sizes(_with(b.fake(0).shape, axis, length)), allowzero=1)
    return _padded_back(b, dy, axis, begin, length, sizes[axis])


def _padded_back(
    b: AtenBuilder, dy: Value, axis: int, begin: Value, length: Dimension, size: Dimension
) -> Value:
    """Return zeros of `size` along an axis, with dy from `begin` on."""
    after = b.Sub(b.sizes([size - length]), begin)
    return b.Pad(dy, b.Concat(begin, after, axis=0), None, b.ints(axis))


# Concatenation, splits and repetition


@lowers("cat.default")
def _(b: AtenBuilder, tensors: Sequence[Value], dim: int = 0) -> Value:
    # torch ignores empty vectors in a concatenation of tensors of other ranks.
    rank = b.out.dim()
    tensors = [t for t in b.like_out(*tensors) if t.tensor.rank == rank]
    return b.Concat(*tensors, axis=axis_of(tensors[0], dim)) if len(tensors) > 1 else tensors[0]


@lowers("stack.default")
def _(b: AtenBuilder, tensors: Sequence[Value], dim: int = 0) -> Value:
    axis = dim + b.out.dim() if dim < 0 else dim
    return b.Concat(*(b.Unsqueeze(t, b.ints(axis)) for t in b.like_out(*tensors)), axis=axis)


@lowers("split_with_sizes.default", "split_with_sizes_copy.default", "split.Tensor")
def _(b: AtenBuilder, x: Value, size: Any, dim: int = 0) -> tuple[Value, ...]:
    axis = axis_of(x, dim)
    sizes = [result.shape[axis] for result in b.out]
    return b.node("Split", x, b.sizes(sizes), axis=axis, outputs=len(sizes)).outputs


@lowers("unbind.int", "unbind_copy.int")
def _(b: AtenBuilder, x: Value, dim: int = 0) -> tuple[Value, ...]:
    axis, count = axis_of(x, dim), len(b.out)
    if not count:
        return ()
    slices = b.node("Split", x, b.ints(*(1,) * count), axis=axis, outputs=count).outputs
    return tuple(b.Squeeze(s, b.ints(axis)) for s in slices)


@lowers("repeat.default")
def _(b: AtenBuilder, x: Value, repeats: Sequence[Dimension]) -> Value:
    if not repeats:
        return x
    lead = len(repeats) - x.tensor.rank
    if lead:
        x = b.Unsqueeze(x, b.ints(*range(lead)))
    return b.Tile(x, b.sizes(repeats))


# Reversal, rotation and triangles


@lowers("flip.default")
def _(b: AtenBuilder, x: Value, dims: Sequence[int]) -> Value:
    if not dims or not x.tensor.rank:
        return x
    n = len(dims)
    axes = b.ints(*(axis_of(x, d) for d in dims))
    ends = b.ints(*(_TO_THE_FRONT,) * n)
    return b.Slice(x, b.ints(*(-1,) * n), ends, axes, b.ints(*(-1,) * n))


@lowers("roll.default")
def _(b: AtenBuilder, x: Value, shifts: Sequence[Dimension], dims: Sequence[int] = ()) -> Value:
    shape = b.out.shape
    if not x.tensor.rank or has_zero(shape):
        return x
    if not dims:
        flat = _rolled(b, b.Reshape(x, b.ints(-1)), shifts[0], 0, b.out.numel())
        return b.Reshape(flat, b.shape_for_reshape(shape))
    for shift, dim in zip(shifts, dims, strict=True):
        axis = axis_of(x, dim)
        x = _rolled(b, x, shift, axis, shape[axis])
    return x


def _rolled(b: AtenBuilder, x: Value, shift: Dimension, axis: int, size: Dimension) -> Value:
    """Return x with the last `shift` slices of an axis moved to its front."""
    # Mod has the sign of the divisor, so the cut is in [0, size).
    cut = b.Mod(b.sizes([-shift]), b.sizes([size]))
    tail = _slice(b, x, axis, cut, b.ints(_TO_THE_END))
    return b.Concat(tail, _slice(b, x, axis, b.ints(0), cut), axis=axis)


def _register_triangle(name: str, upper: int) -> None:
    @lowers(f"{name}.default")
    def _(b: AtenBuilder, x: Value, diagonal: Dimension = 0) -> Value:
        return b.Trilu(x, b.size(diagonal), upper=upper)


_register_triangle("triu", 1)
_register_triangle("tril", 0)


# Diagonals


def _matrix_axes_last(x: Value, dim1: int, dim2: int) -> tuple[int, ...]:
    """Return the permutation that moves two axes to the end."""
    rank = x.tensor.rank
    first, second = dim1 % rank, dim2 % rank
    return (*(i for i in range(rank) if i not in (first, second)), first, second)


@lowers("diagonal.default", "diagonal_copy.default")
def _(b: AtenBuilder, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    perm = _matrix_axes_last(x, dim1, dim2)
    shape = [b.fake(0).shape[i] for i in perm]
    columns, length = shape[-1], b.out.shape[-1]
    if expression_of(length) == 0 or has_zero(shape):
        return b.Expand(b.const(0, x.tensor.dtype), b.sizes(b.out.shape))
    flat_shape = b.sizes([*shape[:-2], shape[-2] * columns])
    flat = b.Reshape(b.Transpose(x, perm=perm), flat_shape)
    # Elements of a diagonal are columns + 1 apart in a row-major matrix.
    start = offset if offset >= 0 else -offset * columns
    end = start + length * (columns + 1)
    return _slice(b, flat, len(shape) - 2, b.sizes([start]), b.sizes([end]), columns + 1)


@lowers("diagonal_scatter.default")
def _(
    b: AtenBuilder, x: Value, source: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Value:
    perm = _matrix_axes_last(x, dim1, dim2)
    shape = b.fake(0).shape
    rows, columns = (shape[i] for i in perm[-2:])
    length = b.fake(1).shape[-1]
    if expression_of(length) == 0:
        return x
    (source,) = b.like_out(source)
    row = b.Unsqueeze(positions(b, rows), b.ints(-1))
    is_diagonal = b.Equal(b.Sub(positions(b, columns), row), offset)
    # Row i (column i below the main diagonal) has element i of the source.
    extent, column = (rows, -1) if offset >= 0 else (columns, -2)
    pads = b.sizes([0, extent - length])
    source = b.Unsqueeze(b.Pad(source, pads, None, b.ints(-1)), b.ints(column))
    y = b.Where(is_diagonal, source, b.Transpose(x, perm=perm))
    return b.Transpose(y, perm=tuple(perm.index(i) for i in range(len(perm))))


# Padding


def _pads(pad: Sequence[Dimension], rank: int) -> list[tuple[Dimension, Dimension, int]]:
    """Return (before, after, axis); torch lists the pairs from the last axis."""
    return [(pad[2 * i], pad[2 * i + 1], rank - 1 - i) for i in range(len(pad) // 2)]


@lowers("constant_pad_nd.default")
def _(b: AtenBuilder, x: Value, pad: Sequence[Dimension], value: Any = 0) -> Value:
    if not pad:
        return x
    befores, afters, axes = zip(*_pads(pad, x.tensor.rank), strict=True)
    return b.Pad(x, b.sizes([*befores, *afters]), *b.like_out(value), b.ints(*axes))


def _padded(b: AtenBuilder, x: Value, pad: Sequence[Dimension], mode: bytes) -> list[Node]:
    """Return a Pad by the positive amounts and, where some are negative, one that cuts."""
    amounts = [static(p, "a padding") for p in pad]
    nodes: list[Node] = []
    added, cut = [max(p, 0) for p in amounts], [min(p, 0) for p in amounts]
    for part, how in ((added, mode), (cut, b"constant")):
        chosen = [p for p in _pads(part, x.tensor.rank) if p[0] or p[1]]
        if not chosen:
            continue
        befores, afters, axes = zip(*chosen, strict=True)
        node = b.node("Pad", x, b.ints(*befores, *afters), None, b.ints(*axes), mode=how)
        nodes.append(node)
        x = node.outputs[0]
    return nodes


def _register_padding(name: str, mode: bytes) -> None:
    @lowers(f"{name}.default")
    def _(b: AtenBuilder, x: Value, pad: Sequence[Dimension]) -> Value:
        nodes = _padded(b, x, pad, mode)
        return nodes[-1].outputs[0] if nodes else x

    @lowers(f"{name}_backward.default")
    def _(b: AtenBuilder, dy: Value, x: Value, pad: Sequence[Dimension]) -> Value:
        grad: Value | None = dy
        for node in reversed(_padded(b, x, pad, mode)):
            assert grad is not None
            (grad, *_) = b.gradients(node, grad, [True])
        assert grad is not None
        return grad


for _n in (1, 2, 3):
    _register_padding(f"reflection_pad{_n}d", b"reflect")
    _register_padding(f"replication_pad{_n}d", b"edge")


# Sliding windows and strided views


@lowers("unfold.default", "unfold_copy.default")
def _(b: AtenBuilder, x: Value, dim: int, size: int, step: int) -> Value:
    axis, rank = axis_of(x, dim), x.tensor.rank
    if not rank:
        return b.Reshape(x, b.sizes(b.out.shape))
    slices = b.Gather(x, _window_positions(b, b.out.shape[axis], size, step), axis=axis)
    order = [i for i in range(rank + 1) if i != axis + 1]
    return b.Transpose(slices, perm=(*order, axis + 1))


def _window_positions(b: AtenBuilder, count: Dimension, size: int, step: int) -> Value:
    """Return the positions of each window: [count, size]."""
    starts = b.Mul(positions(b, count), step)
    return b.Add(b.Unsqueeze(starts, b.ints(1)), positions(b, size))


@lowers("unfold_backward.default")
def _(
    b: AtenBuilder, dy: Value, sizes: Sequence[Dimension], dim: int, size: int, step: int
) -> Value:
    rank = len(sizes)
    if not rank:
        return b.Reshape(dy, b.ints())
    axis = dim + rank if dim < 0 else dim
    # ScatterND adds the windows, [count, size, others], to rows of zeros, [axis, others].
    others = [i for i in range(rank) if i != axis]
    windows = b.Transpose(dy, perm=(axis, rank, *others))
    empty = b.Expand(
        b.const(0, dy.tensor.dtype), b.sizes([sizes[axis], *(sizes[i] for i in others)])
    )
    rows = b.Unsqueeze(_window_positions(b, b.fake(0).shape[axis], size, step), b.ints(-1))
    summed = b.ScatterND(empty, rows, windows, reduction=b"add")
    perm = (axis, *others)
    return b.Transpose(summed, perm=tuple(perm.index(i) for i in range(rank)))


def _start_of_view(b: AtenBuilder, size: Any, stride: Any, offset: Any) -> Dimension:
    """Return where a strided view starts in its flat input; it must stay inside."""
    fake = b.fake(0)
    start: Any = 0 if offset is None else offset - fake.storage_offset()
    last = start + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    bounds = expression_of(start), expression_of(fake.numel() - 1 - last)
    if any(isinstance(v, int) and v < 0 for v in bounds) and not has_zero(size):
        raise Unsupported("the view leaves its input")
    return start  # type: ignore[no-any-return]


def _in_memory_order(b: AtenBuilder, x: Value) -> Value:
    """Return the elements of a tensor in the order of torch's memory, to which strides refer."""
    if not torch.ops.aten.is_non_overlapping_and_dense(b.fake(0)):
        raise Unsupported("the strides refer to a tensor with gaps, or with elements that overlap")
    if not b.fake(0).is_contiguous():
        x = b.Transpose(x, perm=tuple(b.memory_order(0)))
    return b.Reshape(x, b.ints(-1))


def _strided_positions(b: AtenBuilder, start: Dimension, size: Any, stride: Any) -> Value:
    """Return the position in the flat input of each element of a strided view."""
    index = b.size(start)
    for n, s in zip(size, stride, strict=True):
        index = b.Add(b.Unsqueeze(index, b.ints(-1)), b.Mul(positions(b, n), b.size(s)))
    return index


def _is_dense(size: Sequence[Dimension], stride: Sequence[Dimension]) -> bool:
    """Whether the elements of a view are neighbours in memory, in row-major order."""
    expected: Any = 1
    for n, s in zip(reversed(size), reversed(stride), strict=True):
        if expression_of(s) != expression_of(expected) and expression_of(n) != 1:
            return False
        expected = expected * n
    return True


@lowers("as_strided.default", "as_strided_copy.default")
def _(b: AtenBuilder, x: Value, size: Any, stride: Any, storage_offset: Any = None) -> Value:
    start = _start_of_view(b, size, stride, storage_offset)
    flat = _in_memory_order(b, x)
    if _is_dense(size, stride):
        end = start + b.out.numel()
        dense = _slice(b, flat, 0, b.sizes([start]), b.sizes([end]))
        return b.Reshape(dense, b.sizes(size), allowzero=1)
    return b.Gather(flat, _strided_positions(b, start, size, stride), axis=0)


@lowers("as_strided_scatter.default")
def _(
    b: AtenBuilder, x: Value, source: Value, size: Any, stride: Any, storage_offset: Any = None
) -> Value:
    if not b.fake(0).is_contiguous():
        raise Unsupported("the strides refer to a tensor that is not contiguous")
    start = _start_of_view(b, size, stride, storage_offset)
    index = b.Reshape(_strided_positions(b, start, size, stride), b.ints(-1))
    (source,) = b.like_out(source)
    flat, source = b.Reshape(x, b.ints(-1)), b.Reshape(source, b.ints(-1))
    written = b.ScatterElements(flat, index, source, axis=0)
    return b.Reshape(written, b.sizes(b.out.shape), allowzero=1)
