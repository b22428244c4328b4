"""MatMulNBits and GatherBlockQuantized of com.microsoft: 2-, 4- and 8-bit blockwise weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, NotImplemented, ShapeError
from sardonyx.graph.dim import Size
from sardonyx.graph.dtype import I32, INDEX, U8, by_name
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import contrib_op, required
from sardonyx.ops.arrays import Array, dtype_of, wide
from sardonyx.ops.attention.heads import expect_dims
from sardonyx.ops.inference import axis_of
from sardonyx.ops.matmul.standard import matmul
from sardonyx.ops.nbits.gather import gather_dequantized, normalized_indices, unpack_codes
from sardonyx.ops.nbits.internal import (
    REALS,
    check_block_size,
    check_weight_sizes,
    dequantized_weights,
)

TINY_FLOATS: Final = frozenset(
    by_name(n) for n in ("f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f4e2m1")
)
ACCURACY_LEVELS: Final = range(5)  # unset, float32, float16, bfloat16, int8
COLUMN_BLOCK: Final = 512  # columns that the reference dequantizes at a time, to bound memory

matmul_nbits: Final = contrib_op(
    "MatMulNBits",
    "A:T1 B:T2 scales:T1 zero_points:T3? g_idx:T4? bias:T1?",
    "Y:T1",
    attrs={
        "K": required("int"),
        "N": required("int"),
        "bits": 4,
        "block_size": required("int"),
        "accuracy_level": 0,
        "weight_prepacked": 0,
    },
    types={"T1": REALS, "T2": frozenset((U8,)), "T3": REALS | {U8}, "T4": frozenset((I32,))},
)


def _check_bits(bits: int) -> None:
    if bits not in (2, 4, 8):
        raise ShapeError(f"bits must be 2, 4 or 8, got {bits}")


def _check_attrs(attrs: Mapping[str, Any]) -> None:
    if attrs["accuracy_level"] not in ACCURACY_LEVELS:
        raise ShapeError(f"accuracy_level must be 0 to 4, got {attrs['accuracy_level']}")
    if attrs["weight_prepacked"]:
        raise NotImplemented(
            f"weight_prepacked is {attrs['weight_prepacked']}, a CUDA weight layout",
            hint="export the model with weight_prepacked=0",
        )


def _expect_rows(g: Scope, n: int, columns: int, **facts: Fact | None) -> None:
    """Require matrices [n, columns], which may also be flat."""
    for name, fact in facts.items():
        is_flat = fact is not None and fact.rank == 1
        expect_dims(g, (n * columns,) if is_flat else (n, columns), **{name: fact})


def check_weights(
    g: Scope, b: Fact, scales: Fact, zero: Fact | None, attrs: Mapping[str, Any]
) -> None:
    """Require the attributes and shapes of weights [N, K] as MatMulNBits stores them."""
    k, n, bits, block = (attrs[name] for name in ("K", "N", "bits", "block_size"))
    _check_bits(bits)
    check_weight_sizes(k, n, block)
    blocks = -(-k // block)
    expect_dims(g, (n, blocks, block * bits // 8), B=b)
    _expect_rows(g, n, blocks, scales=scales)
    # Integer zero points are packed like the weights; float ones are one per block.
    per_row = -(-blocks * bits // 8) if zero is not None and zero.dtype is U8 else blocks
    _expect_rows(g, n, per_row, zero_points=zero)


@matmul_nbits.infer
def _(g: Scope, a: Fact, b: Fact, scales: Fact, *more: Fact | None, **attrs: Any) -> Fact:
    zero, g_idx, bias = more
    _check_attrs(attrs)
    check_weights(g, b, scales, zero, attrs)
    k, n = attrs["K"], attrs["N"]
    if a.rank < 1:
        raise ShapeError(f"A must have rows of K = {k}, got the scalar {a}")
    g.equal(a.dims[-1], k, "the last dim of A is not K")
    if g_idx is not None:
        length = g_idx.dims[0] if g_idx.rank == 1 else 0
        if isinstance(length, int) and length < k:
            raise ShapeError(f"g_idx must be a row of {k} numbers, got {g_idx}")
    expect_dims(g, (n,), bias=bias)
    return a.shaped((*a.dims[:-1], n))


@matmul_nbits.reference
def _(*inputs: Any, **attrs: Any) -> Array:
    a, b, scales, zero, g_idx, bias = inputs
    n, blocks = b.shape[:2]
    scales = scales.reshape(n, blocks)
    zero = None if zero is None else zero.reshape(n, -1)
    left = wide(a)
    y = np.empty((*a.shape[:-1], n), np.float32)
    with np.errstate(all="ignore"):
        for start in range(0, n, COLUMN_BLOCK):
            block_columns = slice(start, start + COLUMN_BLOCK)
            zeros = None if zero is None else zero[block_columns]
            weights = (b[block_columns], scales[block_columns], zeros)
            y[..., block_columns] = matmul(left, _dequantized_columns(weights, g_idx, attrs))
        if bias is not None:
            y += wide(bias)
        return y.astype(a.dtype, copy=False)


def _dequantized_columns(
    weights: tuple[Array, Array, Array | None], g_idx: Array | None, attrs: Mapping[str, Any]
) -> Array:
    """Return a block of columns of the weights [K, N] as float32.

    g_idx (GPTQ act-order) names the quantization block of each of the K rows.
    """
    q, scales, zero = weights
    bits, k = attrs["bits"], attrs["K"]
    layout = {**attrs, "N": q.shape[0], "k_major": 0, "signed": 0, "zero_default": 1 << bits - 1}
    if g_idx is None:
        return dequantized_weights(q, scales, zero, layout)
    blocks = scales.shape[1]
    group = g_idx[:k]
    if group.size < k or group.min() < 0 or group.max() >= blocks:
        raise InvalidArgument(f"g_idx must be {k} numbers of blocks in [0, {blocks})")
    # With g_idx the blocks of a column are not contiguous: unpack the codes, then scale by row.
    codes = dequantized_weights(q, np.ones(1, np.float32), None, {**layout, "zero_default": 0})
    points: Any = np.float32(layout["zero_default"])
    if zero is not None:
        expanded = unpack_codes(zero, bits) if zero.dtype == np.uint8 else zero
        points = expanded[:, group].T.astype(np.float32)
    return np.asarray((codes - points) * scales[:, group].T.astype(np.float32))


gather_blocks: Final = contrib_op(
    "GatherBlockQuantized",
    "data:T1 indices:Tind scales:T2 zero_points:T1?",
    "output:T2",
    attrs={"bits": 4, "block_size": 128, "gather_axis": 0, "quantize_axis": 1},
    types={
        "T1": frozenset((by_name("i4"), by_name("u4"), U8)) | TINY_FLOATS,
        "T2": REALS,
        "Tind": INDEX,
    },
)


@gather_blocks.infer
def _(g: Scope, data: Fact, indices: Fact, scales: Fact, zero: Fact | None, **attrs: Any) -> Fact:
    if not data.rank:
        raise ShapeError(f"data must have an axis to gather along, got the scalar {data}")
    axis = axis_of(attrs["gather_axis"], data.rank, "gather_axis")
    at = axis_of(attrs["quantize_axis"], data.rank, "quantize_axis")
    bits, block, is_float = attrs["bits"], attrs["block_size"], data.dtype in TINY_FLOATS
    if not is_float or block:
        _check_bits(8 if is_float else bits)
        check_block_size(block)
    if data.dtype is U8 and (axis or at != data.rank - 1):
        raise ShapeError(
            f"data of u8 is read along axis 0 and has its blocks along the last, "
            f"not along {axis} and {at}"
        )
    if data.dtype.bits == 4 and not is_float and bits != 4:
        raise ShapeError(f"bits is {bits}, and data is {data}")
    if data.dtype is U8 and bits < 8 and axis == at:
        raise ShapeError("packed data of u8 needs two axes, got one")
    if is_float and zero is not None:
        raise ShapeError(f"zero_points need integer data, got {data}")
    # Tensors of 4-bit types have one code per element; uint8 data holds several per byte.
    per_byte = 8 // bits if data.dtype is U8 else 1
    dims = (*data.dims[:-1], data.dims[-1] * per_byte)
    _check_scales(g, dims, scales, (at, block), is_float)
    if zero is not None:
        packed = (scales.dims[-1] + (per_byte - 1)) // per_byte
        expect_dims(g, (*scales.dims[:-1], packed), zero_points=zero)
    return Fact(scales.dtype, (*dims[:axis], *indices.dims, *dims[axis + 1 :]))


def _check_scales(
    g: Scope, dims: tuple[Size, ...], scales: Fact, spec: tuple[int, int], is_float: bool
) -> None:
    """Check for one scale per block along an axis; scales of float data may broadcast."""
    at, block = spec
    if scales.rank != len(dims):
        raise ShapeError(f"scales {scales} must have the rank of data, {len(dims)}")
    for i, (have, size) in enumerate(zip(scales.dims, dims, strict=True)):
        what = f"scales do not have one number per block of {block} along axis {i}"
        if i != at:
            (g.equal_or_one if is_float else g.equal)(have, size, what)
        else:
            g.equal(have, (size + (block - 1)) // block if block else 1, what)


@gather_blocks.reference
def _(data: Array, indices: Array, scales: Array, zero: Array | None, **attrs: Any) -> Array:
    rank = data.ndim
    axis, at = attrs["gather_axis"] % rank, attrs["quantize_axis"] % rank
    layout = {"axis": axis, "quantize_axis": at, "block_size": attrs["block_size"], "fills": 1}
    if dtype_of(data).is_integer:
        bits = attrs["bits"]
        default = 1 << bits - 1 if data.dtype == np.uint8 else 0
        y = gather_dequantized(
            (data, scales, zero), indices, {**layout, "bits": bits, "zero_default": default}
        )
    else:
        y = _gathered_floats(data, indices, scales, layout)
    return y.astype(scales.dtype, copy=False)


def _gathered_floats(
    data: Array, indices: Array, scales: Array, layout: Mapping[str, int]
) -> Array:
    """Gather float8 or float4 elements, each times the scale of its block."""
    at, axis = layout["quantize_axis"], layout["axis"]
    block = layout["block_size"] or max(1, data.shape[at])
    # One scale per element along the quantized axis; the last block may be partial.
    expanded = np.repeat(scales.astype(np.float32), block, at)
    expanded = expanded[(slice(None),) * at + (slice(0, data.shape[at]),)]
    expanded = np.broadcast_to(expanded, data.shape)
    index, is_outside = normalized_indices(indices, data.shape[axis], axis, fills=1)
    with np.errstate(all="ignore"):
        y = np.take(data, index, axis).astype(np.float32) * np.take(expanded, index, axis)
    y[(slice(None),) * axis + (is_outside,)] = 0
    return np.asarray(y)


OPS: Final = (matmul_nbits, gather_blocks)
