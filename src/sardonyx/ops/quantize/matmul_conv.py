"""Products of quantized numbers: exact sums, in the fastest float type that holds them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from sardonyx.errors import ShapeError
from sardonyx.graph.dim import Size
from sardonyx.graph.dtype import BF16, F16, F32, I8, I32, U8, by_name, by_numpy
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op
from sardonyx.ops.arrays import Array
from sardonyx.ops.conv.im2col import convolve
from sardonyx.ops.conv.standard import CONV, check_bias, conv_shape
from sardonyx.ops.matmul.standard import matmul, matmul_shape
from sardonyx.ops.quantize.convert import is_single, to_quantized
from sardonyx.ops.sliding_window import window_geometry, window_of

BYTES: Final = frozenset((I8, U8))
INT: Final = frozenset((I32,))
FLOAT: Final = frozenset((F32,))
FLOAT8: Final = frozenset(by_name(n) for n in ("f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz"))
LARGEST: Final = 255 * 255  # of one product of bytes, zero points taken off


def exact_type(terms: int) -> Any:
    """The fastest float type that sums so many products of bytes without rounding."""
    return np.float32 if terms * LARGEST < 1 << 24 else np.float64


def as_int32(total: Array) -> Array:
    """Whole numbers as int32; beyond its range they wrap around."""
    return total.astype(np.int64).astype(np.int32)


def _centred(x: Array, zero: Array | None, dtype: Any) -> Array:
    wide = x.astype(dtype)
    if zero is not None and np.any(zero):
        wide -= zero.astype(dtype)
    return wide


def _of_rows(row: Array | None) -> Array | None:
    """One number per row of a left operand, as a column."""
    if row is None or row.size == 1:
        return None if row is None else row.reshape(())
    return row[:, None] if row.ndim == 1 else row


def of_columns(row: Array | None) -> Array | None:
    """One number per column of a right operand, as a row."""
    return row.reshape(()) if row is not None and row.size == 1 else row


def check_side(g: Scope, x: Fact, row: Fact | None, name: str, is_left: bool) -> None:
    """Zero points and scales of an operand: one number, or one per row (left) or column (right)."""
    if row is None or is_single(row):
        return
    if not x.rank:
        raise ShapeError(f"{name} is one number or a row, and what it belongs to is {x}")
    count: Size = x.dims[-2] if is_left and x.rank > 1 else 1 if is_left else x.dims[-1]
    if row.rank == 1:
        g.equal_or_one(row.dims[0], count, f"{name} is neither one number nor one for each of")
        return
    if row.rank != x.rank:
        raise ShapeError(f"{name} has rank {row.rank}, and must have 0, 1 or {x.rank}")
    summed = x.rank - 1 if is_left else x.rank - 2
    for i, (have, size) in enumerate(zip(row.dims, x.dims, strict=True)):
        if i == summed:
            g.equal(have, 1, f"{name} must be the same along axis {i}, which is summed")
        else:
            g.equal_or_one(have, size, f"{name} does not fit along axis {i}")


def check_single(g: Scope, **facts: Fact | None) -> None:
    """Needs each of these, where it is there, to be one number."""
    for name, fact in facts.items():
        if fact is None:
            continue
        if fact.rank > 1:
            raise ShapeError(f"{name} is one number, not {fact}")
        for d in fact.dims:
            g.equal(d, 1, f"{name} is one number")


matmul_integer = Op(
    "MatMulInteger",
    10,
    "a:T1 b:T2 a_zero_point:T1? b_zero_point:T2?",
    "y:T3",
    types={"T1": BYTES, "T2": BYTES, "T3": INT},
)


@matmul_integer.infer
def _(g: Scope, a: Fact, b: Fact, a_zero: Fact | None, b_zero: Fact | None) -> Fact:
    shape = matmul_shape(g, a, b)
    check_side(g, a, a_zero, "a_zero_point", is_left=True)
    check_side(g, b, b_zero, "b_zero_point", is_left=False)
    return Fact(I32, shape)


@matmul_integer.reference
def _(a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None) -> Array:
    dtype = exact_type(a.shape[-1])
    left = _centred(a, _of_rows(a_zero), dtype)
    return as_int32(matmul(left, _centred(b, of_columns(b_zero), dtype)))


qlinear_matmul = Op(
    "QLinearMatMul",
    21,
    "a:T1 a_scale:TS a_zero_point:T1 b:T2 b_scale:TS b_zero_point:T2 y_scale:TS y_zero_point:T3",
    "y:T3",
    types={
        "TS": frozenset((F32, F16, BF16)),
        "T1": BYTES | FLOAT8,
        "T2": BYTES | FLOAT8,
        "T3": BYTES | FLOAT8,
    },
)


@qlinear_matmul.infer
def _(g: Scope, *facts: Fact) -> Fact:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = facts
    check_side(g, a, a_scale, "a_scale", is_left=True)
    check_side(g, a, a_zero, "a_zero_point", is_left=True)
    check_side(g, b, b_scale, "b_scale", is_left=False)
    check_side(g, b, b_zero, "b_zero_point", is_left=False)
    check_single(g, y_scale=y_scale, y_zero_point=y_zero)
    return Fact(y_zero.dtype, matmul_shape(g, a, b))


@qlinear_matmul.reference
def _(*arrays: Array) -> Array:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = arrays
    out, left_type, right_type = (by_numpy(v.dtype) for v in (y_zero, a, b))
    assert out is not None
    has_floats = left_type in FLOAT8 or right_type in FLOAT8
    dtype = np.float32 if has_floats else exact_type(a.shape[-1])
    with np.errstate(all="ignore"):
        left = _centred(a, _of_rows(a_zero), dtype)
        total = matmul(left, _centred(b, of_columns(b_zero), dtype))
        left_scale, right_scale = _of_rows(a_scale), of_columns(b_scale)
        assert left_scale is not None
        assert right_scale is not None
        step = y_scale.reshape(()).astype(np.float32)
        scale = left_scale.astype(np.float32) * right_scale.astype(np.float32) / step
        steps = np.asarray(total).astype(np.float32) * scale
        return to_quantized(steps.reshape(total.shape), [y_zero.reshape(())], out)


conv_integer = Op(
    "ConvInteger",
    10,
    "x:T1 w:T2 x_zero_point:T1? w_zero_point:T2?",
    "y:T3",
    attrs=CONV,
    types={"T1": BYTES, "T2": BYTES, "T3": INT},
)


def check_maps(g: Scope, w: Fact, **facts: Fact | None) -> None:
    """What belongs to the weights is one number, or one per feature map."""
    if w.rank < 3:
        raise ShapeError(f"the weights have 3 dims or more, and these are {w}")
    for name, fact in facts.items():
        if fact is None or is_single(fact):
            continue
        if fact.rank != 1:
            raise ShapeError(f"{name} is one number or a vector, not {fact}")
        g.equal_or_one(fact.dims[0], w.dims[0], f"{name} does not have one number per feature map")


@conv_integer.infer
def _(g: Scope, x: Fact, w: Fact, x_zero: Fact | None, w_zero: Fact | None, **attrs: Any) -> Fact:
    if x_zero is not None:
        check_single(g, x_zero_point=x_zero)
    check_maps(g, w, w_zero_point=w_zero)
    return Fact(I32, conv_shape(g, x, w, None, attrs))


def convolved(
    x: Array, w: Array, x_zero: Array | None, w_zero: Array | None, attrs: Mapping[str, Any]
) -> Array:
    """The exact sums. Padding stands for the zero point, so it is zero once that is taken off."""
    dtype = exact_type(math.prod(w.shape[1:]))
    path = window_geometry(window_of(w.shape[2:], attrs), x.shape[2:])
    weights = _centred(w, of_maps(w_zero, w.ndim - 1), dtype)
    image = _centred(x, None if x_zero is None else x_zero.reshape(()), dtype)
    return convolve(image, weights, path, attrs["group"])


def of_maps(row: Array | None, axes_behind: int) -> Array | None:
    """One number per feature map, before so many axes."""
    if row is None or row.size == 1:
        return None if row is None else row.reshape(())
    return row.reshape(-1, *(1,) * axes_behind)


@conv_integer.reference
def _(
    x: Array, w: Array, x_zero: Array | None = None, w_zero: Array | None = None, **attrs: Any
) -> Array:
    return as_int32(convolved(x, w, x_zero, w_zero, attrs))


qlinear_conv = Op(
    "QLinearConv",
    10,
    "x:T1 x_scale:F x_zero_point:T1 w:T2 w_scale:F w_zero_point:T2 y_scale:F y_zero_point:T3 b:T4?",
    "y:T3",
    attrs=CONV,
    types={"T1": BYTES, "T2": BYTES, "T3": BYTES, "T4": INT, "F": FLOAT},
)


@qlinear_conv.infer
def _(g: Scope, *facts: Any, **attrs: Any) -> Fact:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, b = facts
    check_single(g, x_scale=x_scale, x_zero_point=x_zero, y_scale=y_scale, y_zero_point=y_zero)
    check_maps(g, w, w_scale=w_scale, w_zero_point=w_zero)
    check_bias(g, b, w.dims[0])
    return Fact(y_zero.dtype, conv_shape(g, x, w, None, attrs))


@qlinear_conv.reference
def _(*arrays: Any, **attrs: Any) -> Array:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, b = (*arrays, None)[:9]
    total = convolved(x, w, x_zero, w_zero, attrs)
    if b is not None:
        total = total.astype(np.float64) + b.reshape(-1, *(1,) * (x.ndim - 2))
    out = by_numpy(y_zero.dtype)
    per_map = of_maps(w_scale, x.ndim - 2)
    assert out is not None
    assert per_map is not None
    with np.errstate(all="ignore"):
        scale = x_scale.reshape(()) * per_map / y_scale.reshape(())
        return to_quantized(total.astype(np.float32) * scale, [y_zero.reshape(())], out)


OPS: Final = (
    qlinear_matmul,
    qlinear_conv,
    conv_integer,
    matmul_integer,
)
