"""SparseToDenseMatMul of com.microsoft: alpha * A B with a sparse A."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import ShapeError
from sardonyx.graph.dtype import F32, F64, I32, I64, U32, U64
from sardonyx.graph.fact import AnyFact, Fact, SparseFact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import MICROSOFT, Op
from sardonyx.ops.arrays import Array
from sardonyx.ops.matmul.standard import gemm_shape

_TYPES: Final = frozenset((F32, F64, I32, I64, U32, U64))

sparse_matmul: Final = Op(
    "SparseToDenseMatMul",
    1,
    "A B:T1",
    "Y:T1",
    domain=MICROSOFT,
    attrs={"alpha": 1.0, "transA": 0, "transB": 0},
    types={"T1": _TYPES},
)


@sparse_matmul.infer
def _(g: Scope, a: AnyFact, b: Fact, **attrs: Any) -> Fact:
    if not isinstance(a, SparseFact) or a.dtype is not b.dtype:
        raise ShapeError(f"A is a sparse tensor of the type of B, not {a}")
    if a.shape is None or len(a.shape) != 2 or b.rank != 2:
        raise ShapeError(f"A and B have two dims, not {a} and {b}")
    return Fact(b.dtype, gemm_shape(g, a.shape, b.dims, attrs))


@sparse_matmul.reference
def _(a: Any, b: Array, **attrs: Any) -> Array:
    left = a.to_dense()  # an ort.sparse_tensor.SparseTensor
    with np.errstate(all="ignore"):
        product = (left.T if attrs["transA"] else left) @ (b.T if attrs["transB"] else b)
        return np.asarray(product * b.dtype.type(attrs["alpha"]))


OPS: Final = (sparse_matmul,)
