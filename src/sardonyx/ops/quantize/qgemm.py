"""QGemm of com.microsoft: alpha A B + C of 8-bit matrices, as float32 or requantized."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import ShapeError
from sardonyx.graph.dtype import F32, DType
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, input_of, optional_input
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import INTERNAL, contrib_op
from sardonyx.ops.arrays import Array, dtype_of
from sardonyx.ops.builder import Builder
from sardonyx.ops.decomposition import Outputs
from sardonyx.ops.quantize.convert import to_quantized
from sardonyx.ops.quantize.matmul_conv import BYTES, FLOAT, INT, centred, check_single, exact_type
from sardonyx.ops.quantize.qdq import quantize_node, scalar

qgemm: Final = contrib_op(
    "QGemm",
    "A:TA a_scale:T a_zero_point:TA B:TB b_scale:T b_zero_point:TB C:TC? y_scale:T? "
    "y_zero_point:TYZ?",
    "Y:TY",
    attrs={"alpha": 1.0, "transA": 0, "transB": 0},
    types={"T": FLOAT, "TA": BYTES, "TB": BYTES, "TC": INT, "TYZ": BYTES, "TY": BYTES | FLOAT},
)


@qgemm.typed
def _(types: dict[str, DType], attrs: dict[str, Any]) -> dict[str, DType]:
    return {"TY": types.get("TYZ", F32)}


def _check_columns(g: Scope, columns: Any, **facts: Fact | None) -> None:
    """Check parameters of B: one number, or one per column."""
    for name, fact in facts.items():
        if fact is None or not fact.rank:
            continue
        if fact.rank > 1:
            raise ShapeError(f"{name} must be one number or one for each column, got {fact}")
        g.equal_or_one(fact.dims[0], columns, f"{name} does not fit the columns of B")


@qgemm.infer
def _(g: Scope, *facts: Any, transA: int, transB: int, alpha: float) -> Fact:  # noqa: N803
    a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero = facts
    for name, fact in (("A", a), ("B", b)):
        if fact.rank != 2:
            raise ShapeError(f"{name} must be a matrix, got {fact}")
    if y_scale is None and y_zero is not None:
        raise ShapeError("y_zero_point needs y_scale, which is missing")
    rows, inner = a.dims[::-1] if transA else a.dims
    depth, columns = b.dims[::-1] if transB else b.dims
    g.equal(inner, depth, "inner dimensions differ")
    check_single(g, a_scale=a_scale, a_zero_point=a_zero, y_scale=y_scale, y_zero_point=y_zero)
    _check_columns(g, columns, b_scale=b_scale, b_zero_point=b_zero)
    if c is not None:
        if c.rank > 2:
            raise ShapeError(f"C must broadcast to a matrix, got {c}")
        for have, size in zip(c.dims[::-1], (columns, rows), strict=False):
            g.equal_or_one(have, size, "C does not broadcast to the product")
    return Fact(F32 if y_zero is None else y_zero.dtype, (rows, columns))


@qgemm.reference
def _(*arrays: Any, transA: int, transB: int, alpha: float) -> Array:  # noqa: N803
    a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero = arrays
    left, right = a.T if transA else a, b.T if transB else b
    dtype = exact_type(left.shape[1])
    total = centred(left, a_zero.reshape(()), dtype) @ centred(right, b_zero, dtype)
    if c is not None:
        total = total.astype(np.float64) + c
    with np.errstate(all="ignore"):
        scale = np.float32(alpha) * a_scale.reshape(()) * b_scale
        if y_zero is None:
            return np.asarray(total.astype(np.float32) * scale)
        quotient = total.astype(np.float32) * (scale / y_scale.reshape(()))
        return to_quantized(quotient, [y_zero.reshape(())], dtype_of(y_zero))


@qgemm.decompose
def _(b: Builder, node: Node) -> Outputs:
    """QGemm: QMatMul, or MatMulInteger where C is not a vector."""
    a, w = input_of(node, 0), input_of(node, 3)
    a_scale, a_zero, w_scale, w_zero, c, y_scale, y_zero = (
        optional_input(node, i) for i in (1, 2, 4, 5, 6, 7, 8)
    )
    attrs, columns = node.attrs, node.outputs[0].tensor.dims[1]
    x_scale = scalar(b, a_scale)
    # alpha goes into the scale of the activations.
    if attrs["alpha"] != 1:
        x_scale = b.Mul(x_scale, attrs["alpha"])
    left = b.Transpose(a, perm=(1, 0)) if attrs["transA"] else a
    is_transposed = bool(attrs["transB"] and w.is_const)  # packing transposes constants
    right = b.Transpose(w, perm=(1, 0)) if attrs["transB"] and not is_transposed else w
    is_vector = c is None or (c.tensor.dims[-1:] == (columns,) and c.tensor.dims[:-1] in ((), (1,)))
    if is_vector:
        bias = c if c is None or c.tensor.rank == 1 else b.Reshape(c, b.ints(-1))
        result = (None, None) if y_zero is None else (scalar(b, y_scale), scalar(b, y_zero))
        y = b.QMatMul(
            left, right, x_scale, scalar(b, a_zero), w_scale, w_zero, bias, *result,
            domain=INTERNAL, dtype=node.outputs[0].tensor.dtype.onnx, trans_w=int(is_transposed),
        )  # fmt: skip
        return (y,)
    right = b.Transpose(right, perm=(1, 0)) if is_transposed else right
    # C is int32 with the scale of the accumulators: added before scaling.
    total = b.Add(b.MatMulInteger(left, right, scalar(b, a_zero), w_zero), c)
    y = b.Mul(b.Cast(total, to=F32.onnx), b.Mul(x_scale, w_scale))
    return (y if y_zero is None else quantize_node(b, y, y_scale, y_zero, y_zero.tensor.dtype),)


OPS: Final = (qgemm,)
