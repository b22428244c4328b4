"""GemmFloat8 of com.microsoft: Gemm of float8 matrices with per-tensor scales."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph, ShapeError
from sardonyx.graph.dtype import BF16, F16, F32, DType, by_name, by_onnx
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import MICROSOFT, Op
from sardonyx.ops.arrays import Array
from sardonyx.ops.elementwise.activation import gelu_function
from sardonyx.ops.elementwise.cast import convert
from sardonyx.ops.matmul.standard import check_matrix_bias, gemm_shape

_FLOAT8: Final = frozenset((by_name("f8e4m3fn"), by_name("f8e5m2")))
_ANY: Final = _FLOAT8 | {F16, BF16, F32}

gemm_float8: Final = Op(
    "GemmFloat8",
    1,
    "A:TA B:TB C:TC? scaleA:TS? scaleB:TS? scaleY:TS?",
    "Y:TR",
    domain=MICROSOFT,
    attrs={"activation": b"NONE", "alpha": 1.0, "beta": 0.0, "dtype": 1, "transA": 0, "transB": 0},
    types={"TA": _ANY, "TB": _ANY, "TC": _ANY - _FLOAT8, "TR": _ANY, "TS": frozenset((F32,))},
    singles="scaleA scaleB scaleY",
)


def _result_type(number: int) -> DType:
    dtype = by_onnx(number)
    if dtype not in _ANY:
        raise InvalidGraph(f"dtype {number} is not a float type of 8 to 32 bits")
    assert dtype is not None
    return dtype


@gemm_float8.typed
def _(types: dict[str, DType], attrs: dict[str, Any]) -> dict[str, DType]:
    return {"TR": _result_type(attrs["dtype"])}


@gemm_float8.infer
def _(g: Scope, a: Fact, b: Fact, c: Fact | None, *_: Any, **attrs: Any) -> Fact:
    if a.rank != 2 or b.rank != 2:
        raise ShapeError(f"A and B are matrices, not {a} and {b}")
    if attrs["activation"] not in (b"NONE", b"RELU", b"GELU"):
        raise InvalidGraph(f"activation is NONE, RELU or GELU, not {attrs['activation']!r}")
    shape = gemm_shape(g, a.dims, b.dims, attrs)
    if c is not None:
        check_matrix_bias(g, c, shape)
    return Fact(_result_type(attrs["dtype"]), shape)


@gemm_float8.reference
def _(a: Array, b: Array, c: Array | None, *scales: Array | None, **attrs: Any) -> Array:
    a, b = (x.astype(np.float32) for x in (a, b))
    a, b = (a.T if attrs["transA"] else a), (b.T if attrs["transB"] else b)
    a_scale, b_scale, y_scale = (np.float32(1) if s is None else s.reshape(-1)[0] for s in scales)
    with np.errstate(all="ignore"):
        y = np.float32(attrs["alpha"]) * a_scale * b_scale * (a @ b)
        if c is not None and attrs["beta"]:
            y = y + np.float32(attrs["beta"]) * c.astype(np.float32)
        if attrs["activation"] != b"NONE":
            y = np.maximum(y, 0) if attrs["activation"] == b"RELU" else gelu_function(y)
        return convert(y * y_scale, _result_type(attrs["dtype"]), True, b"up")


OPS: Final = (gemm_float8,)
