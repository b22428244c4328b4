"""Transpose, Concat, Split, Slice, Tile, Pad and other ops that only move elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, InvalidGraph, ShapeError
from sardonyx.graph.dim import Shape, Size, floor_div, product
from sardonyx.graph.dtype import INDEX
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import INTERNAL, Op, optional, required
from sardonyx.ops.arrays import Array, as_ints
from sardonyx.ops.inference import axes_of, axis_of, check_choice, like_first
from sardonyx.ops.sizes import (
    CLASSIC,
    DATA_INDEX,
    DATA_SIZES,
    SIZES,
    STORED,
    allocatable,
    checked_shape,
    new_dims,
    owned,
    slice_length,
    slice_range,
    symbolic_move,
    vector_length,
)

copy = Op("Copy", 1, "x:T", "y:T", attrs={"to": required("bytes")}, domain=INTERNAL)
copy.infer(lambda g, x, *, to: x)
copy.reference(lambda x, *, to: x)  # references run on the host only

transpose = Op(
    "Transpose", 25, "data:T", "transposed:T", attrs={"perm": optional("ints")}, types={"T": STORED}
)


def _permutation(perm: Sequence[int] | None, rank: int) -> tuple[int, ...]:
    if perm is None:
        return tuple(reversed(range(rank)))
    if len(perm) != rank:
        raise ShapeError(f"perm {tuple(perm)} has {len(perm)} axes, and the input has {rank}")
    return axes_of(perm, rank, "perm")


@transpose.infer
def _(g: Scope, x: Fact, *, perm: Sequence[int] | None) -> Fact:
    return x.shaped(tuple(x.dims[i] for i in _permutation(perm, x.rank)))


@transpose.symbolic
@transpose.reference
def _(x: Array, *, perm: Sequence[int] | None) -> Array:
    return owned(np.transpose(x, _permutation(perm, x.ndim)))


concat = Op(
    "Concat",
    13,
    "inputs:T*",
    "concat_result:T",
    attrs={"axis": required("int")},
    types={"T": CLASSIC},
    unranked=True,
)


@concat.infer
def _(g: Scope, *xs: Fact, axis: int) -> Fact:
    if not xs:
        raise InvalidGraph("Concat has no inputs")
    if odd := next((x for x in xs if x.dtype is not xs[0].dtype), None):
        raise ShapeError(f"Concat needs inputs of one type, got {xs[0].dtype} and {odd.dtype}")
    ranked = [x.dims for x in xs if x.shape is not None]
    if not ranked:
        return xs[0].shaped(None)
    axis = axis_of(axis, len(ranked[0]))
    dims = list(ranked[0])
    for position, other in enumerate(ranked[1:], 1):
        if len(other) != len(dims):
            raise ShapeError(f"input {position} has rank {len(other)}, and input 0 has {len(dims)}")
        what = f"of input {position} and of the first differ"
        for i, d in enumerate(other):
            dims[i] = dims[i] + d if i == axis else g.equal(dims[i], d, f"dim {i} {what}")
    if len(ranked) < len(xs):
        dims[axis] = g.new_dim("joined")
    return xs[0].shaped(tuple(dims))


@concat.symbolic
@concat.reference
def _(*xs: Array, axis: int) -> Array:
    return np.concatenate(xs, axis_of(axis, xs[0].ndim))


split = Op(
    "Split",
    18,
    "input:T split:I?",
    "outputs:T*",
    attrs={"axis": 0, "num_outputs": optional("int")},
    types=DATA_SIZES,
)


def _check_outputs(g: Scope, count: int, what: str) -> None:
    if g.node is not None and count != g.n_outputs:
        raise InvalidGraph(f"{what} is {count}, and the node has {g.n_outputs} outputs")


def _part_sizes(g: Scope, size: Size, count: int) -> list[Size]:
    """Return the sizes of `count` parts, all equal but the last, which may be smaller."""
    if count < 1:
        raise ShapeError(f"num_outputs must be at least 1, got {count}")
    part = floor_div(size + (count - 1), count)
    last = size - part * (count - 1)
    if count > 2:  # of two, the second is never more than 1 smaller
        g.at_least(last, 0, f"the last of {count} parts of {size}")
    return [part] * (count - 1) + [last]


@split.infer
def _(g: Scope, x: Fact, sizes: Fact | None, *, axis: int, num_outputs: int | None) -> Any:
    axis = axis_of(axis, x.rank)
    parts: Sequence[Size]
    if sizes is None:
        if num_outputs is None:
            raise InvalidGraph("Split has neither sizes nor num_outputs")
        _check_outputs(g, num_outputs, "num_outputs")
        parts = _part_sizes(g, x.dims[axis], num_outputs)
    else:
        length = vector_length(sizes, "split")
        _check_outputs(g, g.n_outputs if length is None else length, "the number of sizes")
        parts = new_dims(g, g.n_outputs, "part") if sizes.sym is None else sizes.sym
        for p in parts:
            g.at_least(p, 0, "a size of Split")
        if sizes.sym is not None:
            what = f"the sizes of the parts do not add up to dim {axis}"
            g.equal(sum(parts), x.dims[axis], what)
    return tuple(x.shaped((*x.dims[:axis], p, *x.dims[axis + 1 :])) for p in parts)


@split.symbolic
@symbolic_move
@split.reference
def _(x: Array, sizes: Array | None, *, axis: int, num_outputs: int | None) -> tuple[Array, ...]:
    axis = axis_of(axis, x.ndim)
    length = x.shape[axis]
    if sizes is not None:
        parts: Sequence[Any] = as_ints(sizes)
    else:
        parts = _part_sizes(Scope(), length, num_outputs or 1)
    if sum(parts) != length or min(parts, default=0) < 0:
        raise InvalidArgument(f"the parts {tuple(parts)} do not add up to {length} of axis {axis}")
    return tuple(owned(p) for p in np.split(x, np.cumsum(parts[:-1], dtype=np.int64), axis))


slice_ = Op("Slice", 13, "data:T starts:I ends:I axes:I? steps:I?", "output:T", types=DATA_INDEX)


@slice_.infer
def _(g: Scope, x: Fact, starts: Fact, ends: Fact, axes: Fact | None, steps: Fact | None) -> Fact:
    count = vector_length(starts, "starts")
    static_axes = axes.ints if axes is not None else None if count is None else range(count)
    if static_axes is None:
        return x.shaped(new_dims(g, x.rank, "cut"))
    where = axes_of(static_axes, x.rank)
    for fact, name in ((starts, "starts"), (ends, "ends"), (steps, "steps")):
        length = None if fact is None else vector_length(fact, name)
        if length is not None and length != len(where):
            raise ShapeError(f"{name} has {length} numbers for {len(where)} axes")
    dims = list(x.dims)
    by = (1,) * len(where) if steps is None else steps.ints
    for i, axis in enumerate(where):
        if starts.sym is None or ends.sym is None or by is None:
            dims[axis] = g.new_dim("cut")
        else:
            dims[axis] = slice_length(g, dims[axis], starts.sym[i], ends.sym[i], by[i])
    return x.shaped(tuple(dims))


@slice_.symbolic
@symbolic_move
@slice_.reference
def _(x: Array, starts: Array, ends: Array, axes: Array | None, steps: Array | None) -> Array:
    first, last = as_ints(starts), as_ints(ends)
    where = axes_of(range(len(first)) if axes is None else as_ints(axes), x.ndim)
    by = (1,) * len(first) if steps is None else as_ints(steps)
    if not len(first) == len(last) == len(where) == len(by):
        counts = f"{len(first)} starts, {len(last)} ends, {len(where)} axes, {len(by)} steps"
        raise InvalidArgument(f"Slice has {counts}")
    if 0 in by:
        raise InvalidArgument(f"Slice steps by 0 in {by}")
    cut = [slice(None)] * x.ndim
    for axis, start, end, step in zip(where, first, last, by, strict=True):
        positions = slice_range(x.shape[axis], start, end, step)
        stop = positions.start + len(positions) * step
        cut[axis] = slice(positions.start, None if stop < 0 else stop, step)
    return owned(x[tuple(cut)])


tile = Op("Tile", 13, "input:T repeats:I", "output:T", types=DATA_SIZES)


@tile.infer
def _(g: Scope, x: Fact, repeats: Fact) -> Fact:
    length = vector_length(repeats, "repeats")
    if length is not None and length != x.rank:
        raise ShapeError(f"repeats has {length} numbers, and the input has rank {x.rank}")
    if repeats.sym is None:
        return x.shaped(new_dims(g, x.rank, "tiled"))
    for r in repeats.sym:
        g.at_least(r, 0, "a number of repeats")
    dims = [d * r for d, r in zip(x.dims, repeats.sym, strict=True)]
    return x.shaped(checked_shape(g, dims, "the output"))


@tile.symbolic
@symbolic_move
@tile.reference
def _(x: Array, repeats: Array) -> Array:
    times = as_ints(repeats)
    if len(times) != x.ndim or min(times, default=0) < 0:
        raise InvalidArgument(f"repeats {times} do not fit an input of shape {x.shape}")
    allocatable([d * t for d, t in zip(x.shape, times, strict=True)], x.dtype, "the tiled shape")
    return np.tile(x, times) if times else owned(x)


pad = Op(
    "Pad",
    25,
    "data:T pads:I constant_value:T? axes:A?",
    "output:T",
    attrs={"mode": b"constant"},
    types={"T": STORED, "I": SIZES, "A": INDEX},
    singles="constant_value",
)


@pad.infer
def _(g: Scope, x: Fact, pads: Fact, value: Fact | None, axes: Fact | None, *, mode: bytes) -> Fact:
    check_choice("mode", mode, (b"constant", b"reflect", b"edge", b"wrap"))
    length = vector_length(pads, "pads")
    if axes is not None and axes.ints is None:
        return x.shaped(new_dims(g, x.rank, "padded"))
    where = axes_of(range(x.rank) if axes is None else axes.ints or (), x.rank)
    if length is not None and length != 2 * len(where):
        raise ShapeError(f"pads has {length} numbers for {len(where)} axes, two each")
    dims = list(x.dims)
    for i, axis in enumerate(where):
        if pads.sym is None:
            dims[axis] = g.new_dim("padded")
            continue
        before, after = pads.sym[i], pads.sym[i + len(where)]
        if mode != b"constant" and (before != 0 or after != 0):
            g.at_least(dims[axis], 1, f"dim {axis} has nothing to pad from")
        dims[axis] = dims[axis] + before + after
    return x.shaped(checked_shape(g, dims, "the padded shape"))


def _pad(x: Array, pads: Array, value: Array | None, axes: Array | None, *, mode: bytes) -> Array:
    amounts = as_ints(pads)
    where = axes_of(range(x.ndim) if axes is None else as_ints(axes), x.ndim)
    if len(amounts) != 2 * len(where):
        raise InvalidArgument(f"pads has {len(amounts)} numbers for {len(where)} axes, two each")
    widths = [(0, 0)] * x.ndim
    for i, axis in enumerate(where):
        widths[axis] = (amounts[i], amounts[i + len(where)])
    shape = [d + before + after for d, (before, after) in zip(x.shape, widths, strict=True)]
    allocatable(shape, x.dtype, "the padded shape")
    cut = tuple(
        slice(max(-before, 0), max(d + min(after, 0), 0))
        for d, (before, after) in zip(x.shape, widths, strict=True)
    )
    x = x[cut]
    widths_added = [(max(before, 0), max(after, 0)) for before, after in widths]
    if mode == b"constant":
        filler = _zero(x.dtype) if value is None else value.reshape(-1)[0]
        out = np.full(shape, filler, x.dtype)
        out[tuple(slice(b, b + d) for d, (b, _) in zip(x.shape, widths_added, strict=True))] = x
        return out
    if any(d == 0 and (b or a) for d, (b, a) in zip(x.shape, widths_added, strict=True)):
        raise InvalidArgument(f"shape {x.shape} has nothing to pad from by {amounts}")
    # numpy's stubs list the modes as literals.
    return np.pad(x, widths_added, mode.decode())  # type: ignore[call-overload, no-any-return]


pad.reference(_pad)


@pad.symbolic
@symbolic_move
def _(x: Array, pads: Array, value: Array | None, axes: Array | None, *, mode: bytes) -> Array:
    return _pad(x, pads, np.zeros(1, np.int64) if value is None else value, axes, mode=mode)


_BLOCK: Final = {"blocksize": required("int"), "mode": b"DCR"}


def _check_block(x_rank: int, blocksize: int, mode: bytes) -> None:
    check_choice("mode", mode, (b"DCR", b"CRD"))
    if x_rank != 4 or blocksize < 1:
        raise ShapeError(
            f"x must have rank 4 and blocksize must be at least 1, got {x_rank} and {blocksize}"
        )


depth_to_space = Op("DepthToSpace", 28, "input:T", "output:T", attrs=_BLOCK, types={"T": CLASSIC})


@depth_to_space.infer
def _(g: Scope, x: Fact, *, blocksize: int, mode: bytes) -> Fact:
    _check_block(x.rank, blocksize, mode)
    n, c, h, w = x.dims
    g.divides(blocksize**2, c, "channels do not fill blocks")
    out = (n, floor_div(c, blocksize**2), h * blocksize, w * blocksize)
    return x.shaped(checked_shape(g, out, "the output"))


@depth_to_space.reference
def _(x: Array, *, blocksize: int, mode: bytes) -> Array:
    n, c, h, w = x.shape
    depth, b = c // blocksize**2, blocksize
    if mode == b"DCR":
        blocks = x.reshape(n, b, b, depth, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        blocks = x.reshape(n, depth, b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
    return owned(blocks).reshape(n, depth, h * b, w * b)


space_to_depth = Op("SpaceToDepth", 28, "input:T", "output:T", attrs=_BLOCK, types={"T": CLASSIC})


@space_to_depth.infer
def _(g: Scope, x: Fact, *, blocksize: int, mode: bytes) -> Fact:
    _check_block(x.rank, blocksize, mode)
    n, c, h, w = x.dims
    g.divides(blocksize, h, "the height is not whole blocks")
    g.divides(blocksize, w, "the width is not whole blocks")
    out = (n, c * blocksize**2, floor_div(h, blocksize), floor_div(w, blocksize))
    return x.shaped(checked_shape(g, out, "the output"))


@space_to_depth.reference
def _(x: Array, *, blocksize: int, mode: bytes) -> Array:
    n, c, h, w = x.shape
    b = blocksize
    blocks = x.reshape(n, c, h // b, b, w // b, b)
    permutation = (0, 3, 5, 1, 2, 4) if mode == b"DCR" else (0, 1, 3, 5, 2, 4)
    return owned(blocks.transpose(permutation)).reshape(n, c * b * b, h // b, w // b)


reverse_sequence = Op(
    "ReverseSequence",
    28,
    "input:T sequence_lens:I",
    "Y:T",
    attrs={"batch_axis": 1, "time_axis": 0},
    types=DATA_SIZES,
)


@reverse_sequence.infer
def _(g: Scope, x: Fact, lens: Fact, *, batch_axis: int, time_axis: int) -> Fact:
    if x.rank < 2 or {batch_axis, time_axis} != {0, 1}:
        axes = f"batch_axis {batch_axis} and time_axis {time_axis}"
        raise ShapeError(f"{axes} are 0 and 1 of rank 2 or more, and the input has rank {x.rank}")
    g.equal(product(lens.dims), x.dims[batch_axis], "sequence_lens has one length per batch entry")
    return x.without_contents()


@reverse_sequence.reference
def _(x: Array, lens: Array, *, batch_axis: int, time_axis: int) -> Array:
    steps = x.shape[time_axis]
    if wrong := [n for n in as_ints(lens) if not 0 <= n <= steps]:
        raise InvalidArgument(f"the sequence length {wrong[0]} is outside [0, {steps}]")
    time = np.arange(steps)[None, :]
    ends = lens.reshape(-1, 1)
    source_slices = np.where(time < ends, ends - 1 - time, time)  # [batch, time]
    batch = np.arange(x.shape[batch_axis])[:, None]
    if batch_axis == 0:
        return x[batch, source_slices]
    return x[source_slices.T, batch.T]


trilu = Op(
    "Trilu", 14, "input:T k:I?", "output:T", attrs={"upper": 1}, types=DATA_SIZES, singles="k"
)


@trilu.infer
def _(g: Scope, x: Fact, k: Fact | None, *, upper: int) -> Fact:
    if x.rank < 2:
        raise ShapeError(f"Trilu needs matrices, and the input has rank {x.rank}")
    return like_first(g, x)


@trilu.reference
def _(x: Array, k: Array | None, *, upper: int) -> Array:
    shift = 0 if k is None else int(k.reshape(-1)[0])
    over = np.arange(x.shape[-1]) - np.arange(x.shape[-2])[:, None]
    common = over >= shift if upper else over <= shift
    return np.where(common, x, _zero(x.dtype))


def _zero(dtype: Any) -> Array:
    return np.array("" if np.dtype(dtype).kind == "O" else 0, dtype)


center_crop_pad = Op(
    "CenterCropPad",
    18,
    "input_data:T shape:I",
    "output_data:T",
    attrs={"axes": optional("ints")},
    types=DATA_INDEX,
)


@center_crop_pad.infer
def _(g: Scope, x: Fact, target: Fact, *, axes: Sequence[int] | None) -> Fact:
    where = axes_of(range(x.rank) if axes is None else axes, x.rank)
    length = vector_length(target, "the shape")
    if length is not None and length != len(where):
        raise ShapeError(f"the shape has {length} numbers for {len(where)} axes")
    sizes: Shape = target.sym or new_dims(g, len(where), "centered")
    dims = list(x.dims)
    for axis, d in zip(where, sizes, strict=True):
        dims[axis] = d
    return x.shaped(checked_shape(g, dims, "the output"))


@center_crop_pad.reference
def _(x: Array, target: Array, *, axes: Sequence[int] | None) -> Array:
    where = axes_of(range(x.ndim) if axes is None else axes, x.ndim)
    sizes = as_ints(target)
    if len(sizes) != len(where):
        raise InvalidArgument(f"the shape has {len(sizes)} numbers for {len(where)} axes")
    dims = list(x.shape)
    for axis, d in zip(where, sizes, strict=True):
        dims[axis] = d
    out = np.full(allocatable(dims, x.dtype, "the output"), _zero(x.dtype), x.dtype)
    common = [min(sizes) for sizes in zip(x.shape, dims, strict=True)]
    out[_centered(dims, common)] = x[_centered(x.shape, common)]
    return out


def _centered(sizes: Sequence[int], lengths: Sequence[int]) -> tuple[slice, ...]:
    """Return the slices of some lengths in the middle of each axis."""
    starts = [(size - length) // 2 for size, length in zip(sizes, lengths, strict=True)]
    return tuple(slice(s, s + length) for s, length in zip(starts, lengths, strict=True))


OPS: Final = (
    copy, transpose, concat, split, slice_, tile, pad, depth_to_space, space_to_depth,
    reverse_sequence, trilu, center_crop_pad,
)  # fmt: skip
