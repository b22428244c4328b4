"""The internal MatMul: alpha * a b with transposed operands and an elementwise epilogue."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import ShapeError
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import INTERNAL, Op
from sardonyx.ops.arrays import Array, as_bf16, wide
from sardonyx.ops.elementwise.chain import EPILOGUE, code_type, run_code
from sardonyx.ops.matmul.standard import TYPES, matmul, matmul_shape

internal_matmul = Op(
    "MatMul",
    1,
    "a:T b:T operands*",
    "y",
    attrs={"trans_a": 0, "trans_b": 0, "alpha": 1.0, "code": EPILOGUE, "bf16": 0},
    types={"T": TYPES},
    domain=INTERNAL,
)


@internal_matmul.infer
def _(g: Scope, a: Fact, b: Fact, *operands: Fact, **attrs: Any) -> Fact:
    """Operands of the epilogue broadcast to the product."""
    if a.rank < 2 or b.rank < 2:
        raise ShapeError(f"not matrices: {a} times {b}")
    matrices = [_transposed(fact, attrs[f"trans_{side}"]) for fact, side in ((a, "a"), (b, "b"))]
    return Fact(code_type(attrs["code"], a.dtype), matmul_shape(g, *matrices))


def _transposed(fact: Fact, is_transposed: int) -> Fact:
    dims = fact.dims
    return fact.shaped((*dims[:-2], dims[-1], dims[-2])) if is_transposed else fact


@internal_matmul.reference
def _(a: Array, b: Array, *operands: Array, **attrs: Any) -> Array:
    """alpha * a b, with both operands rounded to bfloat16 if `bf16`, then the epilogue."""
    left = wide(a.swapaxes(-1, -2) if attrs["trans_a"] else a)
    right = wide(b.swapaxes(-1, -2) if attrs["trans_b"] else b)
    alpha, code = attrs["alpha"], attrs["code"]
    with np.errstate(all="ignore"):
        # bf16 products with float32 accumulation, as AMX and AVX512-BF16 kernels compute them.
        if attrs["bf16"]:
            left, right = as_bf16(left), as_bf16(right)
        y: Array = matmul(left, right)
        if alpha != 1:
            y = y * y.dtype.type(alpha)
        return run_code(code, (y, *operands)) if code else y.astype(a.dtype, copy=False)


OPS: Final = (internal_matmul,)
