"""QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear: per tensor, per axis or per block."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import ShapeError
from sardonyx.graph.dtype import (
    BF16,
    F16,
    F32,
    FLOATS,
    I8,
    I16,
    I32,
    U8,
    U16,
    DType,
    by_name,
    by_onnx,
)
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op
from sardonyx.ops.arrays import Array, dtype_of
from sardonyx.ops.elementwise.cast import convert
from sardonyx.ops.inference import axis_of

E8M0: Final = by_name("f8e8m0")
NARROW_TYPES: Final = frozenset(
    by_name(n)
    for n in (
        "f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "u4", "i4", "f4e2m1", "u2", "i2",
        "f6e2m3", "f6e3m2",
    )
)  # fmt: skip
QUANTIZED: Final = NARROW_TYPES | {I8, U8, I16, U16}
REAL: Final = frozenset((F32, F16, BF16))


def integer_range(dtype: DType) -> tuple[int, int]:
    """Return the smallest and the largest number of an integer type."""
    if dtype.kind == "int":
        return -(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1
    return 0, (1 << dtype.bits) - 1


def is_single(fact: Fact) -> bool:
    """Whether the fact is known to have one element."""
    return all(d == 1 for d in fact.dims)


def _check_single(g: Scope, scale: Fact, zero: Fact) -> None:
    """Require a scale and a zero point of different ranks to be one number each.

    Dynamic sizes become guards that are checked at run time.
    """
    for size in (*scale.dims, *zero.dims):
        if isinstance(size, int) and size != 1:
            raise ShapeError(f"scale {scale} and zero point {zero} differ in rank")
        g.equal(size, 1, "scale and zero point differ in rank, and one is not one number")


def _check_scales(g: Scope, x: Fact, scale: Fact, zero: Fact | None, spec: tuple[int, int]) -> None:
    """Check scales: one number (per tensor), one per element of an axis, or one per block of it.

    Inputs of unknown rank are not checked.
    """
    if any(f is not None and f.shape is None for f in (x, scale, zero)):
        return
    axis, block = spec
    if zero is not None and not (is_single(scale) and is_single(zero)):
        if zero.rank != scale.rank:
            _check_single(g, scale, zero)
            return
        for a, b in zip(scale.dims, zero.dims, strict=True):
            g.equal(a, b, "scale and zero point differ in shape")
    if block < 0:
        raise ShapeError(f"block_size must not be negative, got {block}")
    if is_single(scale):
        return
    # The axis of a vector is 0: the default of 1 is for matrices and images.
    at = 0 if x.rank == 1 else axis_of(axis, x.rank)
    if not block:
        if scale.rank != 1:
            raise ShapeError(f"scale {scale} is neither one number nor a vector: give block_size")
        g.equal_or_one(scale.dims[0], x.dims[at], f"scale does not have one number along axis {at}")
        return
    if scale.rank != x.rank:
        raise ShapeError(f"a blockwise scale {scale} must have the rank of {x}")
    for i, (have, size) in enumerate(zip(scale.dims, x.dims, strict=True)):
        need = (size + (block - 1)) // block if i == at else size
        g.equal(have, need, f"scale does not have one number per block of {block} along axis {i}")


def _broadcastable(
    x: Array, params: list[Array], axis: int, block: int
) -> tuple[Array, list[Array]]:
    """Reshape x and its scales and zero points so that they broadcast.

    The axis of x is split into (blocks, block) where the block divides it; otherwise the parameters
    are repeated.
    """
    if all(r.size == 1 for r in params):
        return x, [r.reshape(()) for r in params]
    at = 0 if x.ndim == 1 else axis_of(axis, x.ndim)
    if not block:
        return x, [r.reshape(-1, *(1,) * (x.ndim - 1 - at)) for r in params]
    size = x.shape[at]
    block = min(block, max(size, 1))
    if size % block:
        return x, [np.repeat(r, block, at)[(slice(None),) * at + (slice(0, size),)] for r in params]
    split = x.reshape(*x.shape[:at], size // block, block, *x.shape[at + 1 :])
    return split, [np.expand_dims(r, at + 1) for r in params]


quantize = Op(
    "QuantizeLinear",
    28,
    "x:T1 y_scale:T2 y_zero_point:T3?",
    "y:T3",
    attrs={"axis": 1, "block_size": 0, "output_dtype": 0, "precision": 0, "saturate": 1},
    types={"T1": REAL | {I32}, "T2": REAL | {I32, E8M0}, "T3": QUANTIZED},
    unranked=True,
)


def _quantized_type(zero: Fact | None, output_dtype: int) -> DType:
    requested = by_onnx(output_dtype) if output_dtype else None
    if output_dtype and requested not in QUANTIZED:
        raise ShapeError(f"output_dtype {requested or output_dtype} is not a quantized type")
    if zero is None:
        return requested or U8
    if requested is not None and requested is not zero.dtype:
        raise ShapeError(f"output_dtype is {requested}, and the zero point is {zero.dtype}")
    return zero.dtype


@quantize.infer
def infer_quantize(g: Scope, x: Fact, scale: Fact, zero: Fact | None, **attrs: Any) -> Fact:
    dtype = _quantized_type(zero, attrs["output_dtype"])
    if attrs["precision"] and by_onnx(attrs["precision"]) not in FLOATS:
        raise ShapeError(f"precision {attrs['precision']} is not a float type")
    _check_scales(g, x, scale, zero, (attrs["axis"], attrs["block_size"]))
    return Fact(dtype, x.shape)


@quantize.reference
def run_quantize(x: Array, scale: Array, zero: Array | None = None, **attrs: Any) -> Array:
    dtype = dtype_of(zero) if zero is not None else by_onnx(attrs["output_dtype"]) or U8
    params = [scale] if zero is None else [scale, zero]
    values, params = _broadcastable(x, params, attrs["axis"], attrs["block_size"])
    with np.errstate(all="ignore"):
        # Division, not a product with the reciprocal, which rounds differently.
        quotient = _divide(values, params[0], attrs["precision"])
        return to_quantized(quotient, params[1:], dtype, bool(attrs["saturate"])).reshape(x.shape)


def _divide(x: Array, scale: Array, precision: int) -> Array:
    """x / scale in float32, or rounded to the type of the precision attribute."""
    requested = by_onnx(precision) if precision else None
    if requested is None:
        kind = np.float64 if scale.dtype.kind == "i" else np.float32
        return np.asarray(x.astype(kind) / scale.astype(kind))
    # float32 has more than twice the bits of a narrow type, plus 2: rounding its quotient again
    # gives the narrow type's correctly rounded quotient.
    wide: Any = np.float64 if requested.bits == 64 else np.float32
    quotient = x.astype(requested.np).astype(wide) / scale.astype(requested.np).astype(wide)
    return np.asarray(quotient.astype(requested.np).astype(wide))


def to_quantized(quotient: Array, zero: list[Array], dtype: DType, saturate: bool = True) -> Array:
    """Round x / scale, add the zero point (if any) and saturate to a quantized type."""
    if dtype.is_float:
        shifted = quotient
        if zero:  # one of 0 keeps the sign of -0, as in onnxruntime
            points = zero[0].astype(quotient.dtype)
            shifted = np.where(points == 0, quotient, quotient + points)
        return convert(shifted, dtype, saturate)
    shifted = np.rint(quotient)
    if zero:
        shifted += zero[0].astype(shifted.dtype)
    low, high = integer_range(dtype)
    shifted = np.minimum(np.fmax(shifted, low), high)  # NaN becomes the lowest, as in onnxruntime
    return shifted.astype(np.int32).astype(dtype.np)


dequantize = Op(
    "DequantizeLinear",
    28,
    "x:T1 x_scale:T2 x_zero_point:T1?",
    "y:T3",
    attrs={"axis": 1, "block_size": 0, "output_dtype": 0},
    types={"T1": QUANTIZED | {I32}, "T2": REAL | {E8M0}, "T3": REAL},
    unranked=True,
)


@dequantize.infer
def infer_dequantize(g: Scope, x: Fact, scale: Fact, zero: Fact | None, **attrs: Any) -> Fact:
    requested = attrs["output_dtype"]
    dtype = by_onnx(requested) if requested else scale.dtype
    if dtype is None or dtype not in REAL:
        raise ShapeError(
            f"the output's type is {dtype or requested}: set output_dtype to a float type"
        )
    _check_scales(g, x, scale, zero, (attrs["axis"], attrs["block_size"]))
    return Fact(dtype, x.shape)


@dequantize.reference
def run_dequantize(x: Array, scale: Array, zero: Array | None = None, **attrs: Any) -> Array:
    dtype = by_onnx(attrs["output_dtype"]) or dtype_of(scale)
    params = [scale] if zero is None else [scale, zero]
    values, params = _broadcastable(x, params, attrs["axis"], attrs["block_size"])
    with np.errstate(all="ignore"):
        y = values.astype(np.float32)
        if zero is not None:
            y = y - params[1].astype(np.float32)
        y = y * params[0].astype(np.float32)
        return y.astype(dtype.np, copy=False).reshape(x.shape)


dynamic = Op(
    "DynamicQuantizeLinear",
    11,
    "x:T1",
    "y:T2 y_scale:T1 y_zero_point:T2",
    types={"T1": frozenset((F32,)), "T2": frozenset((U8,))},
)


@dynamic.infer
def _(g: Scope, x: Fact) -> tuple[Fact, Fact, Fact]:
    return x.with_dtype(U8), Fact(F32, ()), Fact(U8, ())


@dynamic.reference
def _(x: Array) -> tuple[Array, Array, Array]:
    """Quantize to uint8 over the range of x, extended to contain 0."""
    low, high = x.min(initial=0), x.max(initial=0)
    with np.errstate(all="ignore"):
        scale = np.float32(1) if high == low else (high - low) / np.float32(255)
        zero = to_quantized(np.asarray(-low / scale), [], U8)
        return to_quantized(x / scale, [zero], U8), np.asarray(scale), zero


OPS: Final = (quantize, dequantize, dynamic)
