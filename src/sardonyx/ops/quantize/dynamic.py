"""DynamicQuantizeMatMul and MatMulIntegerToFloat of com.microsoft."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dim import Shape
from sardonyx.graph.dtype import F16, F32
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import contrib_op
from sardonyx.ops.arrays import Array, narrow, wide
from sardonyx.ops.inference import broadcast_shapes
from sardonyx.ops.matmul.standard import matmul, matmul_shape
from sardonyx.ops.quantize.matmul_conv import BYTES, FLOAT, centred, exact_type


def dynamic_quantized(x: Array) -> tuple[Array, Any]:
    """Quantize x to uint8 over its range extended to contain 0.

    Returns the codes minus their zero point, and the quantization step.
    """
    low, high = x.min(initial=0), x.max(initial=0)
    with np.errstate(all="ignore"):
        step = np.float32(high - low) / np.float32(255) if high != low else np.float32(1)
        zero = np.clip(np.rint(-low / step), 0, 255)
        return np.clip(np.rint(x / step) + zero, 0, 255) - zero, step


def integer_matmul(a: Array, b: Array) -> Any:
    """Return the exact matrix product of integers, those of `a` of 8 bits, as float32."""
    return matmul(a.astype(b.dtype, copy=False), b).astype(np.float32, copy=False)


def centred_weights(x: Array, zero: Array | None) -> Array:
    """Subtract the zero point from 8-bit weights, in a float type that accumulates them exactly."""
    return centred(x, zero, exact_type(x.shape[0] if x.ndim == 1 else x.shape[-2]))


dynamic_matmul: Final = contrib_op(
    "DynamicQuantizeMatMul",
    "A:T1 B:T2 b_scale:T1 b_zero_point:T2? bias:T1?",
    "Y:T1",
    types={"T1": FLOAT, "T2": BYTES},
)


def _check_columns(g: Scope, product: Shape, b: Fact, **facts: Fact | None) -> None:
    """Check that scales, zero points and biases are one number, or one per column of B."""
    for name, fact in facts.items():
        if fact is None:
            continue
        if fact.rank > max(b.rank, 1):
            raise InvalidGraph(f"{name} must be one number or one per column of {b}, got {fact}")
        if fact.rank and product:
            # The product's last axis are the columns of B, also where B is a stack of matrices.
            g.equal_or_one(fact.dims[-1], product[-1], f"{name} does not fit the columns of B")
        broadcast_shapes(g, product, fact.dims)


@dynamic_matmul.infer
def _(g: Scope, a: Fact, b: Fact, *more: Fact | None) -> Fact:
    scale, zero, bias = more
    shape = matmul_shape(g, a, b)
    _check_columns(g, shape, b, b_scale=scale, b_zero_point=zero, bias=bias)
    return a.shaped(shape)


@dynamic_matmul.reference
def _(*inputs: Any) -> Any:
    a, b, b_scale, zero, bias = inputs
    whole, step = dynamic_quantized(a)
    with np.errstate(all="ignore"):
        y = integer_matmul(whole, centred_weights(b, zero)) * (step * b_scale)
        return y if bias is None else y + bias


matmul_to_float: Final = contrib_op(
    "MatMulIntegerToFloat",
    "A:T1 B:T2 a_scale:T3 b_scale:T3 a_zero_point:T1? b_zero_point:T2? bias:T3?",
    "Y:T3",
    types={"T1": BYTES, "T2": BYTES, "T3": frozenset((F32, F16))},
    unranked=True,
)


@matmul_to_float.infer
def _(g: Scope, a: Fact, b: Fact, *more: Any) -> Fact:
    a_scale, b_scale, a_zero, b_zero, bias = more
    if any(f is not None and f.shape is None for f in (a, b, *more)):
        return Fact(a_scale.dtype, None)
    shape = matmul_shape(g, a, b)
    for name, fact in (("a_scale", a_scale), ("a_zero_point", a_zero)):
        if fact is not None and fact.rank:
            g.equal_or_one(fact.dims[-1], a.dims[-1], f"{name} does not fit the columns of A")
    _check_columns(g, shape, b, b_scale=b_scale, b_zero_point=b_zero, bias=bias)
    return Fact(a_scale.dtype, shape)


@matmul_to_float.reference
def _(*inputs: Any) -> Any:
    a, b, a_scale, b_scale, a_zero, b_zero, bias = inputs
    left, right = centred(a, a_zero, np.float32), centred_weights(b, b_zero)
    with np.errstate(all="ignore"):
        if a_scale.size == 1:
            y = integer_matmul(left, right) * (wide(a_scale).reshape(()) * wide(b_scale))
        else:  # a scale per column of A is inside the accumulation
            y = integer_matmul(left * wide(a_scale), right) * wide(b_scale)
        return narrow(y if bias is None else y + wide(bias), a_scale.dtype)


OPS: Final = (dynamic_matmul, matmul_to_float)
