"""GatherDequantized: Gather from a 2-, 4- or 8-bit table that dequantizes only what is gathered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.errors import InvalidArgument, ShapeError
from sardonyx.graph.const import unpack
from sardonyx.graph.dtype import F32, INDEX, U8, by_name, by_onnx
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import internal_op, required
from sardonyx.ops.arrays import Array, dtype_of
from sardonyx.ops.nbits.internal import QUANTIZED, REALS


@frozen
class TableLayout:
    """The storage of a quantized table, and the index of each element's scale.

    The element at coordinates `c` has the scale sum(c[i] // blocks[i] * strides[i]).
    """

    dims: tuple[int, ...]
    bits: int
    is_signed: bool
    axis: int  # of the gather
    blocks: tuple[int, ...]
    strides: tuple[int, ...]
    zero_strides: tuple[
        int, ...
    ]  # strides of zero points, whose rows are padded to bytes when packed


def table_layout(data: Fact, scale: Fact, attrs: Mapping[str, Any]) -> TableLayout:
    """Return the layout of a table with static sizes; raise a ShapeError if they do not match."""
    shape, scales, bits = data.static, scale.static, attrs["bits"]
    assert shape is not None
    assert scales is not None
    is_packed = data.dtype is U8 and bits < 8
    dims = (*shape[:-1], shape[-1] * 8 // bits) if is_packed else shape
    rank, at, block = len(dims), attrs["quantize_axis"], attrs["block_size"]
    blocks, n_scales = [1] * rank, [1] * rank
    if block:
        blocks[at] = block
        n_scales = [-(-d // b) for d, b in zip(dims, blocks, strict=True)]
    # Per axis: a vector of one scale for each index along it.
    elif scale.rank == 1 and scales != (1,):
        n_scales[at] = dims[at]
    if int(np.prod(scales, dtype=np.int64)) == 1:
        n_scales = [1] * rank
    if int(np.prod(scales, dtype=np.int64)) != int(np.prod(n_scales, dtype=np.int64)):
        raise ShapeError(f"scales {scale} do not match {data} along axis {at}")
    padded = list(n_scales)
    if is_packed:
        # Each row of packed zero points starts at a byte.
        padded[-1] = -(-n_scales[-1] * bits // 8) * 8 // bits
    strides, zero_strides = _strides(n_scales, n_scales), _strides(n_scales, padded)
    is_signed = data.dtype.kind == "int"
    return TableLayout(dims, bits, is_signed, attrs["axis"], tuple(blocks), strides, zero_strides)


def _strides(sizes: list[int], padded: list[int]) -> tuple[int, ...]:
    strides, step = [0] * len(sizes), 1
    for i in reversed(range(len(sizes))):
        strides[i] = step if sizes[i] > 1 else 0
        step *= padded[i]
    return tuple(strides)


gather = internal_op(
    "GatherDequantized",
    "data:Q indices:I scale:S zero:Q?",
    "y",
    attrs={
        "axis": 0,
        "quantize_axis": 1,
        "block_size": 0,  # 0: one scale per tensor, or per element of the axis
        "bits": required("int"),
        "dtype": F32.onnx,
        "zero_default": 0,
        "fills": 0,  # an index out of range reads zeros (1), or is an error (0)
    },
    types={"Q": QUANTIZED, "I": INDEX, "S": REALS},
)


@gather.infer
def _(g: Scope, data: Fact, indices: Fact, scale: Fact, zero: Fact | None, **attrs: Any) -> Fact:
    dims = table_layout(data, scale, attrs).dims
    axis, dtype = attrs["axis"], by_onnx(attrs["dtype"])
    assert dtype is not None
    return Fact(dtype, (*dims[:axis], *indices.dims, *dims[axis + 1 :]))


@gather.reference
def _(data: Array, indices: Array, scale: Array, zero: Array | None, **attrs: Any) -> Array:
    dtype = by_onnx(attrs["dtype"])
    assert dtype is not None
    return gather_dequantized((data, scale, zero), indices, attrs).astype(dtype.np, copy=False)


def gather_dequantized(
    table: tuple[Array, Array, Array | None], indices: Array, attrs: Mapping[str, Any]
) -> Array:
    """Gather along an axis and dequantize to float32."""
    data, scale, zero = table
    layout = table_layout(
        Fact(dtype_of(data), data.shape), Fact(dtype_of(scale), scale.shape), attrs
    )
    axis = layout.axis
    at, is_outside = normalized_indices(indices, layout.dims[axis], axis, attrs["fills"])
    codes = np.take(data, at, axis)
    if codes.dtype == np.uint8 and layout.bits < 8:
        codes = unpack_codes(codes, layout.bits)
    coordinates = [np.arange(d) for d in layout.dims]
    coordinates[axis] = at.reshape(-1)
    number = _scale_numbers(coordinates, layout.blocks, layout.strides)
    shape = (*layout.dims[:axis], at.size, *layout.dims[axis + 1 :])
    with np.errstate(all="ignore"):
        y = codes.astype(np.float32).reshape(shape)
        if zero is None:
            y -= np.float32(attrs["zero_default"])
        else:
            packed = zero.dtype == np.uint8 and layout.bits < 8
            whole = unpack_codes(zero, layout.bits) if packed else zero
            z_number = _scale_numbers(coordinates, layout.blocks, layout.zero_strides)
            y -= whole.reshape(-1)[z_number].astype(np.float32)
        y *= scale.reshape(-1)[number].astype(np.float32)
    if is_outside.any():
        y[(slice(None),) * axis + (is_outside.reshape(-1),)] = 0
    return y.reshape(*layout.dims[:axis], *indices.shape, *layout.dims[axis + 1 :])


def unpack_codes(packed: Array, bits: int) -> Array:
    """Unpack rows of bytes to rows of unsigned codes, low bits first."""
    count = packed.size * 8 // bits
    flat = unpack(np.ascontiguousarray(packed).reshape(-1), by_name(f"u{bits}"), count)
    return flat.astype(np.uint8).reshape(*packed.shape[:-1], packed.shape[-1] * 8 // bits)


def _scale_numbers(
    coordinates: list[Any], blocks: tuple[int, ...], strides: tuple[int, ...]
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the index of each element's scale; axes with stride 0 broadcast."""
    total: Any = np.zeros((1,) * len(coordinates), np.int64)
    for i, (coordinate, block, stride) in enumerate(zip(coordinates, blocks, strides, strict=True)):
        if stride:
            along = np.asarray(coordinate // block * stride)
            total = total + along.reshape(-1, *(1,) * (len(coordinates) - 1 - i))
    return np.asarray(total)


def normalized_indices(indices: Array, size: int, axis: int, fills: int) -> tuple[Array, Array]:
    """Return non-negative indices, and which are out of range; those become 0."""
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
