"""Matrix products of com.microsoft: fused with transposes or activations, float8, sparse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph, ShapeError
from sardonyx.graph.dtype import BF16, F16, F32, F64, FLOATS, IEEE, DType, by_name, by_onnx
from sardonyx.graph.fact import AnyFact, Fact, SparseFact
from sardonyx.graph.graph import Node
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import MICROSOFT, Op, optional, required
from sardonyx.ops.arrays import Array, in_wide
from sardonyx.ops.builder import Builder
from sardonyx.ops.decomposition import Outputs
from sardonyx.ops.elementwise.activation import gelu_function
from sardonyx.ops.elementwise.cast import convert
from sardonyx.ops.elementwise.fused_activation import activated, activation_function
from sardonyx.ops.matmul import standard
from sardonyx.ops.matmul.standard import check_matrix_bias, gemm_shape, matmul, matmul_shape

_GEMM: Final = {"alpha": 1.0, "transA": 0, "transB": 0}
_ACTIVATION: Final = {f"activation_{k}": optional("float") for k in ("alpha", "beta", "gamma")}

fused_gemm: Final = Op(
    "FusedGemm",
    1,
    "A:T B:T C:T?",
    "Y:T",
    domain=MICROSOFT,
    attrs={**_GEMM, **_ACTIVATION, "activation": optional("bytes"), "beta": 1.0},
    types={"T": IEEE | standard.WHOLE},
)


def _split_activation(attrs: dict[str, Any]) -> tuple[Callable[[Array], Array], dict[str, Any]]:
    """Return the activation, and the attributes that remain for the matmul."""
    rest = {k: v for k, v in attrs.items() if not k.startswith("activation")}
    params = {k: attrs[f"activation_{k}"] for k in ("alpha", "beta", "gamma")}
    return activation_function(attrs["activation"], params), rest


@fused_gemm.infer
def _(g: Scope, *facts: Fact | None, **attrs: Any) -> Fact:
    _, rest = _split_activation(attrs)
    y: Fact = standard.infer_gemm(g, *facts, **rest)
    return y


@fused_gemm.reference
@in_wide
def _(a: Array, b: Array, c: Array | None = None, **attrs: Any) -> Array:
    activation, rest = _split_activation(attrs)
    y = standard.gemm.run((a, b, c), rest)[0]
    return activation(y).astype(y.dtype)


_TRANSPOSES: Final = {**_GEMM, "transBatchA": 0, "transBatchB": 0}
# alpha * A B with transposed operands: the result of onnxruntime's MatMulTransposeFusion.
fused_matmul: Final = Op(
    "FusedMatMul", 1, "A:T B:T", "Y:T", domain=MICROSOFT, attrs=_TRANSPOSES, types={"T": FLOATS}
)


matmul_activation: Final = Op(
    "FusedMatMulActivation",
    1,
    "A:T B:T",
    "Y:T",
    domain=MICROSOFT,
    attrs={
        **_TRANSPOSES,
        **_ACTIVATION,
        "activation": required("bytes"),
        "activation_axis": optional("int"),
    },
    types={"T": FLOATS},
)


def operand_permutation(rank: int, attrs: dict[str, Any], side: str) -> list[int]:
    """Return the permutation of operand `side` by its trans and transBatch attributes.

    trans exchanges the last two axes; transBatch moves the first axis before the last, as in
    onnxruntime. Vectors are unchanged.
    """
    axes = list(range(rank))
    if attrs[f"transBatch{side}"]:
        if rank < 3:
            raise InvalidGraph(f"transBatchA and transBatchB need 3 dims or more, got {rank}")
        axes = [*axes[1:-1], 0, axes[-1]]
    return [*axes[:-2], axes[-1], axes[-2]] if attrs[f"trans{side}"] and rank > 1 else axes


@fused_matmul.infer
def _matmul_fact(g: Scope, a: Fact, b: Fact, **attrs: Any) -> Fact:
    operands = []
    for fact, side in ((a, "A"), (b, "B")):
        perm = operand_permutation(fact.rank, attrs, side)
        operands.append(fact.shaped(tuple(fact.dims[i] for i in perm)))
    return a.shaped(matmul_shape(g, *operands))


@fused_matmul.reference
@in_wide
def _matmul(a: Array, b: Array, **attrs: Any) -> Any:
    a, b = (x.transpose(operand_permutation(x.ndim, attrs, s)) for x, s in ((a, "A"), (b, "B")))
    return matmul(a, b) * a.dtype.type(attrs["alpha"])


@matmul_activation.infer
def _(g: Scope, a: Fact, b: Fact, **attrs: Any) -> Fact:
    _split_activation(attrs)
    y: Fact = _matmul_fact(g, a, b, **attrs)
    return y


@matmul_activation.reference
@in_wide
def _(a: Array, b: Array, **attrs: Any) -> Array:
    activation, rest = _split_activation(attrs)
    return activation(np.asarray(_matmul(a, b, **rest)))


@fused_gemm.decompose
@matmul_activation.decompose
def _(b: Builder, node: Node) -> Outputs:
    """The activation becomes a node, which a later pass fuses into the epilogue of the matmul."""
    rest = {k: v for k, v in node.attrs.items() if not k.startswith("activation")}
    if node.op is fused_gemm:
        return (activated(b, b.Gemm(*node.inputs, **rest), node),)
    return (activated(b, b.FusedMatMul(*node.inputs, domain=MICROSOFT, **rest), node),)


_FLOAT8: Final = frozenset((by_name("f8e4m3fn"), by_name("f8e5m2")))
_ANY: Final = _FLOAT8 | {F16, BF16, F32}

gemm_float8: Final = Op(
    "GemmFloat8",
    1,
    "A:TA B:TB C:TC? scaleA:TS? scaleB:TS? scaleY:TS?",
    "Y:TR",
    domain=MICROSOFT,
    attrs={**_GEMM, "activation": b"NONE", "beta": 0.0, "dtype": 1},
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
        raise ShapeError(f"A and B must be matrices, got {a} and {b}")
    if attrs["activation"] not in (b"NONE", b"RELU", b"GELU"):
        raise InvalidGraph(f"activation must be NONE, RELU or GELU, got {attrs['activation']!r}")
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
        # Float8 saturates: a result beyond the largest finite number becomes that number.
        return convert(y * y_scale, _result_type(attrs["dtype"]), True, b"up")


sparse_matmul: Final = Op(
    "SparseToDenseMatMul",
    1,
    "A B:T1",
    "Y:T1",
    domain=MICROSOFT,
    attrs=_GEMM,
    types={"T1": standard.WHOLE | {F32, F64}},
)


@sparse_matmul.infer
def _(g: Scope, a: AnyFact, b: Fact, **attrs: Any) -> Fact:
    if not isinstance(a, SparseFact) or a.dtype is not b.dtype:
        raise ShapeError(f"A must be a sparse tensor of the type of B, got {a}")
    if a.shape is None or len(a.shape) != 2 or b.rank != 2:
        raise ShapeError(f"A and B must have two dims, got {a} and {b}")
    return Fact(b.dtype, gemm_shape(g, a.shape, b.dims, attrs))


@sparse_matmul.reference
def _(a: Any, b: Array, **attrs: Any) -> Array:
    left = a.to_dense()  # an ort.sparse_tensor.SparseTensor
    with np.errstate(all="ignore"):
        product = (left.T if attrs["transA"] else left) @ (b.T if attrs["transB"] else b)
        return np.asarray(product * b.dtype.type(attrs["alpha"]))


OPS: Final = (fused_gemm, fused_matmul, matmul_activation, gemm_float8, sparse_matmul)
