"""Shape, Size, Reshape and other shape changes, and tensors computed from sizes alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, ShapeError
from sardonyx.graph.const import Const
from sardonyx.graph.dim import Dim, Shape, Size, evaluate, floor_div, maximum, modulo, product, same
from sardonyx.graph.dtype import BOOL, COMPLEX, F32, FLOATS, I16, I64, INDEX, STRING, DType, by_onnx
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.infer import MAX_SYMBOLIC
from sardonyx.graph.op import INTERNAL, Op, optional, required
from sardonyx.ops.arrays import Array, as_ints, is_half, narrow
from sardonyx.ops.inference import axes_of, broadcast_shapes
from sardonyx.ops.sizes import (
    CLASSIC,
    DATA_SIZES,
    SIZES,
    STORED,
    STORED_SIZES,
    allocatable,
    checked_shape,
    copy_value,
    new_dims,
    owned,
    same_value,
    scalar_value,
    symbolic_move,
    vector_length,
)

shape = Op(
    "Shape",
    25,
    "data:T",
    "shape:I",
    attrs={"start": 0, "end": optional("int")},
    types=STORED_SIZES,
    unranked=True,
)


@shape.infer
def _(g: Scope, x: Fact, *, start: int, end: int | None) -> Fact:
    if x.shape is None:
        return Fact(I64, (g.new_dim("rank"),))
    dims = x.shape[start:end]
    return Fact(I64, (len(dims),), None, dims)


@shape.reference
def _(x: Array, *, start: int, end: int | None) -> Array:
    return np.array(x.shape[start:end], np.int64)


size = Op("Size", 25, "data:T", "size:I", types=STORED_SIZES, unranked=True)


@size.infer
def _(g: Scope, x: Fact) -> Fact:
    return Fact(I64, (), None, None if x.shape is None else (product(x.shape),))


size.reference(lambda x: np.array(x.size, np.int64))

reshape = Op(
    "Reshape",
    25,
    "data:T shape:I",
    "reshaped:T",
    attrs={"allowzero": 0},
    types=STORED_SIZES,
    unranked=True,
)


@reshape.infer
def _(g: Scope, x: Fact, target: Fact, *, allowzero: int) -> Fact:
    length = vector_length(target, "the shape of Reshape")
    if target.sym is not None:
        return x.shaped(reshaped(g, x.shape, target.sym, allowzero))
    if length is None:
        return x.shaped(None)
    if length == 1 and x.shape is not None:
        return x.shaped((product(x.shape),))
    return x.shaped(new_dims(g, length, "reshaped"))


def reshaped(g: Scope, dims: Shape | None, target: Shape, allowzero: int) -> Shape:
    """Return the shape of Reshape(`dims`, `target`), with 0 and -1 resolved."""
    shown = f"({', '.join(map(str, target))})"
    _check_target(target, shown, allowzero)
    sizes = [_copied_size(g, dims, i, allowzero) if t == 0 else t for i, t in enumerate(target)]
    checked_shape(g, [s for s in sizes if s != -1], "the target")
    if dims is None:
        return tuple(g.new_dim("reshaped") if s == -1 else s for s in sizes)
    what = f"cannot reshape ({', '.join(map(str, dims))}) into {shown}"
    have, want = _cancelled(dims, [s for s in sizes if s != -1])
    if -1 in sizes:
        g.divides(product(want), product(have), what)
        sizes[sizes.index(-1)] = floor_div(product(have), product(want))
    else:
        g.equal(product(dims), product(sizes), f"{what}, elements")
        _infer_single_dim(sizes, have, want)
    return tuple(sizes)


def _check_target(target: Shape, shown: str, allowzero: int) -> None:
    n_inferred = sum(t == -1 for t in target)
    if n_inferred > 1:
        raise ShapeError(f"the target {shown} leaves more than one size open")
    if wrong := [t for t in target if isinstance(t, int) and t < -1]:
        raise ShapeError(f"the target {shown} has the negative size {wrong[0]}")
    if n_inferred and allowzero and 0 in target:
        raise ShapeError(f"the target {shown} has both -1 and 0, which allowzero forbids")


def _cancelled(dims: Shape, target: Sequence[Size]) -> tuple[list[Size], list[Size]]:
    """Return the sizes of both shapes without the common ones.

    Then -1 is inferred correctly even where a common symbolic size is 0 at run time.
    """
    have, want = list(dims), []
    for size in target:
        if size in have:
            have.remove(size)
        else:
            want.append(size)
    return have, want


def _copied_size(g: Scope, dims: Shape | None, axis: int, allowzero: int) -> Size:
    if allowzero:
        return 0
    if dims is None:
        return g.new_dim("reshaped")
    if axis >= len(dims):
        raise ShapeError(f"the 0 at {axis} copies a size of the input, which has rank {len(dims)}")
    return dims[axis]


def _infer_single_dim(sizes: list[Size], have: Sequence[Size], want: Sequence[Size]) -> None:
    """Replace a single symbolic size of the target by the quotient, where that is a number."""
    unknown = [s for s in want if isinstance(s, Dim)]
    known = product(s for s in want if isinstance(s, int))
    total = product(have)
    if len(unknown) != 1 or known == 0 or modulo(total, known) != 0:
        return
    value = floor_div(total, known)
    if isinstance(value, int):
        sizes[sizes.index(unknown[0])] = value


@reshape.reference
def _(x: Array, target: Array, *, allowzero: int) -> Array:
    target_shape = as_ints(target)
    try:
        return owned(x).reshape(reshaped(Scope(), x.shape, target_shape, allowzero))
    except ShapeError as error:
        raise InvalidArgument(error.what) from None


@reshape.symbolic
def _(x: Array, target: Array, *, allowzero: int) -> Array | None:
    if not all(isinstance(t, int) for t in target.flat):
        return None
    try:
        return x.reshape(reshaped(Scope(), x.shape, tuple(target.flat), allowzero))
    except ShapeError:
        return None


flatten = Op("Flatten", 25, "input:T", "output:T", attrs={"axis": 1}, types={"T": STORED})


def _flat_axis(axis: int, rank: int) -> int:
    if not -rank <= axis <= rank:
        raise ShapeError(f"axis {axis} is outside [{-rank}, {rank}]")
    return axis + rank if axis < 0 else axis


@flatten.infer
def _(g: Scope, x: Fact, *, axis: int) -> Fact:
    axis = _flat_axis(axis, x.rank)
    return x.shaped((product(x.dims[:axis]), product(x.dims[axis:])))


@flatten.symbolic
@flatten.reference
def _(x: Array, *, axis: int) -> Array:
    axis = _flat_axis(axis, x.ndim)
    return owned(x).reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


squeeze = Op("Squeeze", 25, "data:T axes:I?", "squeezed:T", types=STORED_SIZES)


@squeeze.infer
def _(g: Scope, x: Fact, axes: Fact | None) -> Fact:
    if axes is None:
        if any(same(d, 1) is None for d in x.dims):
            return x.shaped(None)  # the rank depends on which dims are 1
        return x.shaped(tuple(d for d in x.dims if d != 1))
    if axes.ints is None:
        length = vector_length(axes, "axes")
        if length is None:
            return x.shaped(None)
        if length > x.rank:
            raise ShapeError(f"{length} axes are squeezed out of rank {x.rank}")
        return x.shaped(new_dims(g, x.rank - length, "squeezed"))
    squeezed = axes_of(axes.ints, x.rank)
    for a in squeezed:
        g.equal(x.dims[a], 1, f"dim {a} is squeezed and is not 1")
    return x.shaped(tuple(d for i, d in enumerate(x.dims) if i not in squeezed))


@squeeze.symbolic
@symbolic_move
@squeeze.reference
def _(x: Array, axes: Array | None) -> Array:
    if axes is None:
        return owned(x).reshape([d for d in x.shape if d != 1])
    squeezed = axes_of(as_ints(axes), x.ndim)
    for a in squeezed:
        if x.shape[a] != 1:
            raise InvalidArgument(f"dim {a} is squeezed and is {x.shape[a]}, not 1")
    return owned(x).reshape([d for i, d in enumerate(x.shape) if i not in squeezed])


unsqueeze = Op("Unsqueeze", 25, "data:T axes:I", "expanded:T", types=STORED_SIZES)


def _with_ones(dims: Sequence[Any], axes: Sequence[int]) -> list[Any]:
    rank = len(dims) + len(axes)
    new = axes_of(axes, rank)
    rest = iter(dims)
    return [1 if i in new else next(rest) for i in range(rank)]


@unsqueeze.infer
def _(g: Scope, x: Fact, axes: Fact) -> Fact:
    length = vector_length(axes, "axes")
    if axes.ints is not None:
        return x.shaped(checked_shape(g, _with_ones(x.dims, axes.ints), "the output"))
    return x.shaped(None if length is None else new_dims(g, x.rank + length, "unsqueezed"))


@unsqueeze.symbolic
@symbolic_move
@unsqueeze.reference
def _(x: Array, axes: Array) -> Array:
    return owned(x).reshape(_with_ones(x.shape, as_ints(axes)))


sizes = Op("Sizes", 1, "", "y:T", attrs={"fact": required("type")}, domain=INTERNAL)
sizes.infer(lambda g, *, fact: fact)


@sizes.reference
def _(dims: Mapping[str, int], *, fact: Fact) -> Array:
    """Return a small integer tensor of symbolic sizes, evaluated for this run's dims."""
    shape, elements = fact.static, fact.sym
    assert shape is not None
    assert elements is not None
    numbers = [evaluate(e, dims) for e in elements]
    try:
        return np.array(numbers, fact.dtype.np).reshape(shape)
    except OverflowError:
        raise InvalidArgument(
            f"a computed size does not fit {fact.dtype}: {numbers!r:.200}", sizes=list(elements)
        ) from None


identity = Op("Identity", 25, "input", "output", unranked=True)
identity.infer(lambda g, x: same_value(x))
identity.reference(copy_value)

expand = Op("Expand", 13, "input:T shape:I", "output:T", types=DATA_SIZES)


@expand.infer
def _(g: Scope, x: Fact, target: Fact) -> Fact:
    length = vector_length(target, "the shape of Expand")
    if target.sym is not None:
        target_shape = checked_shape(g, target.sym, "the target")
        return x.shaped(checked_shape(g, broadcast_shapes(g, x.dims, target_shape), "the output"))
    if length is None:
        return x.shaped(None)
    return x.shaped(new_dims(g, max(length, x.rank), "expanded"))


@expand.symbolic
@symbolic_move
@expand.reference
def _(x: Array, target: Array) -> Array:
    target_shape = allocatable(as_ints(target), x.dtype, "the expanded shape")
    try:
        full = np.broadcast_shapes(x.shape, target_shape)
    except ValueError:
        raise InvalidArgument(f"{x.shape} does not expand to {target_shape}") from None
    return owned(np.broadcast_to(x, allocatable(full, x.dtype, "the expanded shape")))


_FILLERS: Final = STORED - COMPLEX - {STRING}
constant_of_shape = Op(
    "ConstantOfShape",
    25,
    "input:I",
    "output:T",
    attrs={"value": optional("tensor")},
    types={"I": SIZES, "T": _FILLERS},
    unranked=True,
)


def _filler(value: Const | None) -> tuple[DType, Any]:
    if value is None:
        return F32, np.float32(0)
    if value.count != 1 or value.dtype not in _FILLERS:
        raise ShapeError(f"the value must be one number, got {value.dtype} of shape {value.shape}")
    return value.dtype, value.read().reshape(-1)[0]


@constant_of_shape.infer
def _(g: Scope, target: Fact, *, value: Const | None) -> Fact:
    dtype, _number = _filler(value)
    length = vector_length(target, "the shape")
    if target.sym is not None:
        return Fact(dtype, checked_shape(g, target.sym, "the shape"))
    return Fact(dtype, None if length is None else new_dims(g, length, "constant"))


@constant_of_shape.reference
def _(target: Array, *, value: Const | None) -> Array:
    dtype, number = _filler(value)
    target_shape = allocatable(as_ints(target), dtype.np, "the shape")
    return np.full(target_shape, number, dtype.np)


@constant_of_shape.symbolic
def _(target: Array, *, value: Const | None) -> Array | None:
    dtype, number = _filler(value)
    sizes = tuple(target.flat)
    if not dtype.is_integer and dtype is not BOOL:
        return None
    if not all(isinstance(s, int) and s >= 0 for s in sizes) or math.prod(sizes) > MAX_SYMBOLIC:
        return None
    return np.full(sizes, int(number), object)


_EYES: Final = CLASSIC - COMPLEX - {STRING}
eye_like = Op(
    "EyeLike",
    22,
    "input:T",
    "output:U",
    attrs={"dtype": optional("int"), "k": 0},
    types={"T": _EYES, "U": _EYES},
    unranked=True,
)


@eye_like.infer
def _(g: Scope, x: Fact, *, dtype: int | None, k: int) -> Fact:
    result_type = x.dtype if dtype is None else by_onnx(dtype)
    if result_type is None or result_type not in _EYES:
        raise ShapeError(f"EyeLike does not support the type {result_type or dtype}")
    if x.shape is not None and x.rank != 2:
        raise ShapeError(f"EyeLike needs a matrix, got rank {x.rank}")
    return Fact(result_type, new_dims(g, 2, "eye") if x.shape is None else x.shape)


@eye_like.reference
def _(x: Array, *, dtype: int | None, k: int) -> Array:
    result_type = None if dtype is None else by_onnx(dtype)
    rows, columns = x.shape
    diagonal: Array = np.arange(columns) - np.arange(rows)[:, None] == k
    return diagonal.astype(x.dtype if result_type is None else result_type.np)


range_ = Op(
    "Range",
    27,
    "start:T limit:T delta:T",
    "output:T",
    attrs={"stash_type": 1},
    types={"T": FLOATS | INDEX | {I16}},
    unranked=True,
)


def range_length(start: Any, limit: Any, delta: Any) -> Any:
    """Return the length of Range: max(ceil((limit - start) / delta), 0)."""
    if isinstance(delta, float):
        count = math.ceil((limit - start) / delta) if math.isfinite(limit - start) else -1
        return max(count, 0)
    gap = limit - start if delta > 0 else start - limit
    return maximum(floor_div(gap + abs(delta) - 1, abs(delta)), 0)


@range_.infer
def _(g: Scope, start: Fact, limit: Fact, delta: Fact, *, stash_type: int) -> Fact:
    for fact, name in ((start, "start"), (limit, "limit"), (delta, "delta")):
        if fact.shape is not None and product(fact.shape) != 1:
            g.equal(product(fact.shape), 1, f"{name} of Range is one number")
    first, last, step = scalar_value(start), scalar_value(limit), scalar_value(delta)
    if step == 0:
        raise ShapeError("Range steps by 0")
    if first is None or last is None or step is None or isinstance(step, Dim):
        return Fact(start.dtype, (g.new_dim("range"),))
    return Fact(start.dtype, checked_shape(g, (range_length(first, last, step),), "the range"))


@range_.reference
def _(start: Array, limit: Array, delta: Array, *, stash_type: int) -> Array:
    dtype = start.dtype
    if is_half(dtype) and stash_type == 1:
        start, limit, delta = (a.astype(np.float32) for a in (start, limit, delta))
    kind = int if start.dtype.kind == "i" else float
    first, last, step = (kind(a.reshape(-1)[0]) for a in (start, limit, delta))
    if step == 0 or not (math.isfinite(last - first) and math.isfinite(step)):
        raise InvalidArgument(f"Range has no end from {first} to {last} by {step}")
    (count,) = allocatable((range_length(first, last, step),), dtype, "the range")
    result = np.arange(count).astype(start.dtype) * delta.reshape(()) + start.reshape(())
    return np.asarray(narrow(result, dtype))


@range_.symbolic
def _(start: Array, limit: Array, delta: Array, *, stash_type: int) -> Array | None:
    first, last, step = (a.reshape(-1)[0] for a in (start, limit, delta))
    if not isinstance(step, int) or step == 0:
        return None
    count = range_length(first, last, step)
    if not isinstance(count, int) or count > MAX_SYMBOLIC:
        return None
    cells = np.empty(count, object)
    cells[:] = [first + i * step for i in range(count)]
    return cells


OPS: Final = (
    shape, size, sizes, reshape, flatten, squeeze, unsqueeze, identity, expand, constant_of_shape,
    eye_like, range_,
)  # fmt: skip
