"""Reading at indices from a table of 2, 4 or 8 bits: only what is read becomes real numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.errors import InvalidArgument, ShapeError
from sardonyx.graph.const import unpack
from sardonyx.graph.dtype import BF16, F16, F32, I8, INDEX, U8, by_name, by_numpy, by_onnx
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import INTERNAL, Op, required
from sardonyx.ops.arrays import Array

REALS: Final = frozenset((F32, F16, BF16))
STEPS: Final = frozenset((U8, I8, *(by_name(n) for n in ("u4", "i4", "u2", "i2"))))


@frozen
class Table:
    """How a table is stored, and where the scale of an element lies.

    The element at `c` has the scale number sum(c[i] // blocks[i] * strides[i]).
    """

    dims: tuple[int, ...]
    bits: int
    is_signed: bool
    axis: int  # that indices are for
    blocks: tuple[int, ...]
    strides: tuple[int, ...]
    zero_strides: tuple[int, ...]  # of zero points, which may have padded rows


def table_of(data: Fact, scale: Fact, attrs: Mapping[str, Any]) -> Table:
    """The table of a node whose sizes are numbers; a ShapeError if they do not go together."""
    shape, scales, bits = data.static, scale.static, attrs["bits"]
    assert shape is not None
    assert scales is not None
    is_packed = data.dtype is U8 and bits < 8
    dims = (*shape[:-1], shape[-1] * 8 // bits) if is_packed else shape
    rank, at, block = len(dims), attrs["quantize_axis"], attrs["block_size"]
    blocks, wanted = [1] * rank, [1] * rank
    if block:
        blocks[at] = block
        wanted = [-(-d // b) for d, b in zip(dims, blocks, strict=True)]
    elif scale.rank == 1 and scales != (1,):
        wanted[at] = dims[at]
    if int(np.prod(scales, dtype=np.int64)) == 1:
        wanted = [1] * rank
    if int(np.prod(scales, dtype=np.int64)) != int(np.prod(wanted, dtype=np.int64)):
        raise ShapeError(f"scales {scale} do not go with {data} along axis {at}")
    padded = list(wanted)
    if is_packed:
        padded[-1] = -(-wanted[-1] * bits // 8) * 8 // bits
    return Table(
        dims,
        bits,
        data.dtype.kind == "int",
        attrs["axis"],
        tuple(blocks),
        _strides(wanted, wanted),
        _strides(wanted, padded),
    )


def _strides(sizes: list[int], padded: list[int]) -> tuple[int, ...]:
    strides, step = [0] * len(sizes), 1
    for i in reversed(range(len(sizes))):
        strides[i] = step if sizes[i] > 1 else 0
        step *= padded[i]
    return tuple(strides)


gather = Op(
    "GatherDequantized",
    1,
    "data:Q indices:I scale:S zero:Q?",
    "y",
    attrs={
        "axis": 0,
        "quantize_axis": 1,
        "block_size": 0,  # 0: one scale for all, or one for each place of the axis
        "bits": required("int"),
        "dtype": F32.onnx,
        "zero_default": 0,
        "fills": 0,  # 1: an index that is outside reads zeros, 0: it is an error
    },
    types={"Q": STEPS, "I": INDEX, "S": REALS},
    domain=INTERNAL,
)


@gather.infer
def _(g: Scope, data: Fact, indices: Fact, scale: Fact, zero: Fact | None, **attrs: Any) -> Fact:
    dims = table_of(data, scale, attrs).dims
    axis, dtype = attrs["axis"], by_onnx(attrs["dtype"])
    assert dtype is not None
    return Fact(dtype, (*dims[:axis], *indices.dims, *dims[axis + 1 :]))


@gather.reference
def _(data: Array, indices: Array, scale: Array, zero: Array | None, **attrs: Any) -> Array:
    dtype = by_onnx(attrs["dtype"])
    assert dtype is not None
    return gathered((data, scale, zero), indices, attrs).astype(dtype.np, copy=False)


def _fact(x: Array) -> Fact:
    dtype = by_numpy(x.dtype)
    assert dtype is not None
    return Fact(dtype, x.shape)


def gathered(
    table: tuple[Array, Array, Array | None], indices: Array, attrs: Mapping[str, Any]
) -> Array:
    """The float32 numbers at indices along an axis."""
    data, scale, zero = table
    form = table_of(_fact(data), _fact(scale), attrs)
    axis = form.axis
    at, is_outside = _places(indices, form.dims[axis], axis, attrs["fills"])
    steps = np.take(data, at, axis)
    if steps.dtype == np.uint8 and form.bits < 8:
        steps = unpacked(steps, form.bits)
    places = [np.arange(d) for d in form.dims]
    places[axis] = at.reshape(-1)
    number = _numbers(places, form.blocks, form.strides)
    shape = (*form.dims[:axis], at.size, *form.dims[axis + 1 :])
    with np.errstate(all="ignore"):
        y = steps.astype(np.float32).reshape(shape)
        if zero is None:
            y -= np.float32(attrs["zero_default"])
        else:
            packed = zero.dtype == np.uint8 and form.bits < 8
            whole = unpacked(zero, form.bits) if packed else zero
            z_number = _numbers(places, form.blocks, form.zero_strides)
            y -= whole.reshape(-1)[z_number].astype(np.float32)
        y *= scale.reshape(-1)[number].astype(np.float32)
    if is_outside.any():
        y[(slice(None),) * axis + (is_outside.reshape(-1),)] = 0
    return y.reshape(*form.dims[:axis], *indices.shape, *form.dims[axis + 1 :])


def unpacked(packed: Array, bits: int) -> Array:
    """Rows of bytes as rows of numbers without a sign, low bits first."""
    count = packed.size * 8 // bits
    flat = unpack(np.ascontiguousarray(packed).reshape(-1), by_name(f"u{bits}"), count)
    return flat.astype(np.uint8).reshape(*packed.shape[:-1], packed.shape[-1] * 8 // bits)


def _numbers(
    places: list[Any], blocks: tuple[int, ...], strides: tuple[int, ...]
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The number of the scale of each element; axes that all scales are for have one place."""
    total: Any = np.zeros((1,) * len(places), np.int64)
    for i, (place, block, stride) in enumerate(zip(places, blocks, strides, strict=True)):
        if stride:
            along = np.asarray(place // block * stride)
            total = total + along.reshape(-1, *(1,) * (len(places) - 1 - i))
    return np.asarray(total)


def _places(indices: Array, size: int, axis: int, fills: int) -> tuple[Array, Array]:
    """Indices counted from the front, and which of them are outside; those become 0."""
    at = np.where(indices < 0, indices + size, indices)
    is_outside = (at < 0) | (at >= size)
    if is_outside.any() and not fills:
        where = int(np.flatnonzero(is_outside)[0])
        raise InvalidArgument(
            f"index {indices.reshape(-1)[where]} at position {where} is outside "
            f"[-{size}, {size}) of axis {axis}"
        )
    return np.where(is_outside, 0, at), is_outside


OPS: Final = (gather,)
