"""Integer and QLinear matmul and convolution: exact accumulation in a float type that holds it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from sardonyx.errors import ShapeError
from sardonyx.graph.dim import Size
from sardonyx.graph.dtype import F32, FLOAT8, I8, I32, U8
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, input_of
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op
from sardonyx.ops.arrays import Array, dtype_of
from sardonyx.ops.builder import Builder
from sardonyx.ops.conv.im2col import convolve
from sardonyx.ops.conv.standard import CONV, check_bias, conv_shape
from sardonyx.ops.decomposition import Outputs, need
from sardonyx.ops.matmul.standard import matmul, matmul_shape
from sardonyx.ops.quantize.convert import REAL, is_single, to_quantized
from sardonyx.ops.sliding_window import window_geometry, window_of

BYTES: Final = frozenset((I8, U8))
INT: Final = frozenset((I32,))
FLOAT: Final = frozenset((F32,))
MAX_BYTE_PRODUCT: Final = 255 * 255  # bound of (a - a_zero) * (b - b_zero) for 8-bit codes


def exact_type(terms: int) -> Any:
    """Return the fastest float type that accumulates so many byte products exactly."""
    return np.float32 if terms * MAX_BYTE_PRODUCT < 1 << 24 else np.float64


def as_int32(total: Array) -> Array:
    """Convert integers to int32 with wrap-around, as an int32 accumulator overflows."""
    return total.astype(np.int64).astype(np.int32)


def centred(x: Array, zero: Array | None, dtype: Any) -> Array:
    """Subtract the zero point, if any, in a type that holds the difference."""
    wide = x.astype(dtype)
    if zero is not None and np.any(zero):
        # In place: the copy is private, and a zero point never broadcasts beyond its operand.
        wide -= zero.astype(dtype)
    return wide


def _per_row(param: Any) -> Any:
    """Reshape a parameter per row of the left operand, if present, to a column."""
    if param is None or param.size == 1:
        return per_column(param)
    return param[:, None] if param.ndim == 1 else param


def per_column(param: Any) -> Any:
    """Reshape a parameter per column of the right operand, if present, to a row."""
    return param.reshape(()) if param is not None and param.size == 1 else param


def check_operand_params(g: Scope, x: Fact, param: Fact | None, name: str, is_left: bool) -> None:
    """Check a zero point or scale: one number, or one per row (left) or column (right)."""
    if param is None or is_single(param):
        return
    if not x.rank:
        raise ShapeError(f"{name} needs an operand with an axis, got {x}")
    count: Size = x.dims[-2] if is_left and x.rank > 1 else 1 if is_left else x.dims[-1]
    if param.rank == 1:
        g.equal_or_one(param.dims[0], count, f"{name} is neither one number nor one per row/column")
        return
    if param.rank != x.rank:
        raise ShapeError(f"{name} must have rank 0, 1 or {x.rank}, got {param.rank}")
    # A parameter may vary over every axis except the one that is summed.
    reduced = x.rank - 1 if is_left else x.rank - 2
    for i, (have, size) in enumerate(zip(param.dims, x.dims, strict=True)):
        if i == reduced:
            g.equal(have, 1, f"{name} must be constant along axis {i}, the reduction axis")
        else:
            g.equal_or_one(have, size, f"{name} does not fit along axis {i}")


def check_single(g: Scope, **facts: Fact | None) -> None:
    """Require each of these, where present, to be one number."""
    for name, fact in facts.items():
        if fact is None:
            continue
        if fact.rank > 1:
            raise ShapeError(f"{name} must be one number, got {fact}")
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
    check_operand_params(g, a, a_zero, "a_zero_point", is_left=True)
    check_operand_params(g, b, b_zero, "b_zero_point", is_left=False)
    return Fact(I32, shape)


@matmul_integer.reference
def _(a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None) -> Array:
    dtype = exact_type(a.shape[-1])
    left = centred(a, _per_row(a_zero), dtype)
    return as_int32(matmul(left, centred(b, per_column(b_zero), dtype)))


qlinear_matmul = Op(
    "QLinearMatMul",
    21,
    "a:T1 a_scale:TS a_zero_point:T1 b:T2 b_scale:TS b_zero_point:T2 y_scale:TS y_zero_point:T3",
    "y:T3",
    types={"TS": REAL, **dict.fromkeys(("T1", "T2", "T3"), BYTES | FLOAT8)},
)


@qlinear_matmul.infer
def _(g: Scope, *facts: Fact) -> Fact:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = facts
    check_operand_params(g, a, a_scale, "a_scale", is_left=True)
    check_operand_params(g, a, a_zero, "a_zero_point", is_left=True)
    check_operand_params(g, b, b_scale, "b_scale", is_left=False)
    check_operand_params(g, b, b_zero, "b_zero_point", is_left=False)
    check_single(g, y_scale=y_scale, y_zero_point=y_zero)
    return Fact(y_zero.dtype, matmul_shape(g, a, b))


@qlinear_matmul.reference
def _(*arrays: Array) -> Array:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = arrays
    has_floats = dtype_of(a) in FLOAT8 or dtype_of(b) in FLOAT8
    # float8 products are accumulated in float32, integers exactly.
    dtype = np.float32 if has_floats else exact_type(a.shape[-1])
    with np.errstate(all="ignore"):
        left = centred(a, _per_row(a_zero), dtype)
        total = matmul(left, centred(b, per_column(b_zero), dtype))
        left_scale, right_scale = _per_row(a_scale), per_column(b_scale)
        step = y_scale.reshape(()).astype(np.float32)
        scale = left_scale.astype(np.float32) * right_scale.astype(np.float32) / step
        quotient = np.asarray(total).astype(np.float32) * scale
        quotient = quotient.reshape(total.shape)
        return to_quantized(quotient, [y_zero.reshape(())], dtype_of(y_zero))


def _has_float8(node: Node) -> bool:
    return any(input_of(node, i).tensor.dtype in FLOAT8 for i in (0, 3))


@qlinear_matmul.decompose(when=_has_float8)
def _(b: Builder, node: Node) -> Outputs:
    """QLinearMatMul of 8-bit floats: a product of float32."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (input_of(node, i) for i in range(8))
    for scale in (x_scale, w_scale, y_scale):
        need(scale.tensor.dtype is F32, "scales are not float32")
        need(scale.tensor.rank <= 1, "scales are for several matrices")
    right = b.DequantizeLinear(w, w_scale, w_zero, axis=-1)
    product = b.MatMul(b.DequantizeLinear(x, x_scale, x_zero, axis=-2), right)
    return (b.QuantizeLinear(product, y_scale, y_zero),)


conv_integer = Op(
    "ConvInteger",
    10,
    "x:T1 w:T2 x_zero_point:T1? w_zero_point:T2?",
    "y:T3",
    attrs=CONV,
    types={"T1": BYTES, "T2": BYTES, "T3": INT},
)


def check_maps(g: Scope, w: Fact, **facts: Fact | None) -> None:
    """Check parameters of the weights: one number, or one per output channel."""
    if w.rank < 3:
        raise ShapeError(f"the weights must have 3 dims or more, got {w}")
    for name, fact in facts.items():
        if fact is None or is_single(fact):
            continue
        if fact.rank != 1:
            raise ShapeError(f"{name} must be one number or a vector, got {fact}")
        g.equal_or_one(
            fact.dims[0], w.dims[0], f"{name} does not have one number per output channel"
        )


@conv_integer.infer
def _(g: Scope, x: Fact, w: Fact, x_zero: Fact | None, w_zero: Fact | None, **attrs: Any) -> Fact:
    check_single(g, x_zero_point=x_zero)
    check_maps(g, w, w_zero_point=w_zero)
    return Fact(I32, conv_shape(g, x, w, None, attrs))


def exact_conv(
    x: Array, w: Array, x_zero: Array | None, w_zero: Array | None, attrs: Mapping[str, Any]
) -> Array:
    """Return the exact accumulators. Padding has the zero point's value, so it contributes 0."""
    dtype = exact_type(math.prod(w.shape[1:]))
    geometry = window_geometry(window_of(w.shape[2:], attrs), x.shape[2:])
    weights = centred(w, per_map(w_zero, w.ndim - 1), dtype)
    image = centred(x, per_column(x_zero), dtype)
    return convolve(image, weights, geometry, attrs["group"])


def per_map(param: Any, n_trailing: int) -> Any:
    """Reshape a parameter per output channel, if present, to broadcast over `n_trailing` axes."""
    if param is None or param.size == 1:
        return per_column(param)
    return param.reshape(-1, *(1,) * n_trailing)


@conv_integer.reference
def _(
    x: Array, w: Array, x_zero: Array | None = None, w_zero: Array | None = None, **attrs: Any
) -> Array:
    return as_int32(exact_conv(x, w, x_zero, w_zero, attrs))


qlinear_conv = Op(
    "QLinearConv",
    10,
    "x:T1 x_scale:F x_zero_point:T1 w:T2 w_scale:F w_zero_point:T2 y_scale:F y_zero_point:T3 b:T4?",
    "y:T3",
    attrs=CONV,
    types={"T1": BYTES, "T2": BYTES, "T3": BYTES, "T4": INT, "F": FLOAT},
)


@qlinear_conv.infer
def infer_qlinear_conv(g: Scope, *facts: Any, **attrs: Any) -> Fact:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, b = facts
    check_single(g, x_scale=x_scale, x_zero_point=x_zero, y_scale=y_scale, y_zero_point=y_zero)
    check_maps(g, w, w_scale=w_scale, w_zero_point=w_zero)
    check_bias(g, b, w.dims[0])
    return Fact(y_zero.dtype, conv_shape(g, x, w, None, attrs))


@qlinear_conv.reference
def run_qlinear_conv(*arrays: Any, **attrs: Any) -> Array:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, b = arrays
    total = exact_conv(x, w, x_zero, w_zero, attrs)
    if b is not None:
        # The bias is int32 with the scale x_scale * w_scale: exact in float64.
        total = total.astype(np.float64) + b.reshape(-1, *(1,) * (x.ndim - 2))
    with np.errstate(all="ignore"):
        scale = x_scale.reshape(()) * per_map(w_scale, x.ndim - 2) / y_scale.reshape(())
        quotient = total.astype(np.float32) * scale
        return to_quantized(quotient, [y_zero.reshape(())], dtype_of(y_zero))


OPS: Final = (qlinear_matmul, qlinear_conv, conv_integer, matmul_integer)
