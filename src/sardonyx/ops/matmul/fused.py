"""FusedGemm, FusedMatMul and FusedMatMulActivation of com.microsoft."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dtype import FLOATS, I32, I64, IEEE, U32, U64
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import MICROSOFT, Op, optional, required
from sardonyx.ops.arrays import Array, in_wide
from sardonyx.ops.builder import Builder
from sardonyx.ops.decomposition import Outputs
from sardonyx.ops.elementwise.fused_activation import activated, activation_function, standard
from sardonyx.ops.matmul.standard import matmul, matmul_shape

fused_gemm: Final = Op(
    "FusedGemm",
    1,
    "A:T B:T C:T?",
    "Y:T",
    domain=MICROSOFT,
    attrs={
        "activation": optional("bytes"),
        "activation_alpha": optional("float"),
        "activation_beta": optional("float"),
        "activation_gamma": optional("float"),
        "alpha": 1.0,
        "beta": 1.0,
        "transA": 0,
        "transB": 0,
    },
    types={"T": IEEE | {U32, U64, I32, I64}},
)


def _split_activation(attrs: dict[str, Any]) -> tuple[Callable[[Array], Array], dict[str, Any]]:
    """Return the activation, and the attributes that remain for the matmul."""
    rest = {k: v for k, v in attrs.items() if not k.startswith("activation")}
    params = {k: attrs[f"activation_{k}"] for k in ("alpha", "beta", "gamma")}
    return activation_function(attrs["activation"], params), rest


@fused_gemm.infer
def _(g: Scope, *facts: Fact | None, **attrs: Any) -> Fact:
    _, rest = _split_activation(attrs)
    rule = standard("Gemm").infer_rule
    assert rule is not None
    y: Fact = rule(g, *facts, **rest)
    return y


@fused_gemm.reference
@in_wide
def _(a: Array, b: Array, c: Array | None = None, **attrs: Any) -> Array:
    activation, rest = _split_activation(attrs)
    rule = standard("Gemm").reference_rule
    assert rule is not None
    y = rule(a, b, c, **rest)
    return activation(y).astype(y.dtype)


_TRANSPOSES: Final = {"alpha": 1.0, "transA": 0, "transB": 0, "transBatchA": 0, "transBatchB": 0}


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
        "activation": required("bytes"),
        "activation_alpha": optional("float"),
        "activation_axis": optional("int"),
        "activation_beta": optional("float"),
        "activation_gamma": optional("float"),
    },
    types={"T": FLOATS},
)


def _permutation(rank: int, is_swapped: int, is_batched: int) -> list[int]:
    """Return the permutation that trans (last two axes) and transBatch (first axis) ask for.

    transBatch moves the first axis before the last, as in onnxruntime; vectors are unchanged.
    """
    axes = list(range(rank))
    if is_batched:
        if rank < 3:
            raise InvalidGraph(f"transBatchA and transBatchB need 3 dims or more, not {rank}")
        axes = [*axes[1:-1], 0, axes[-1]]
    return [*axes[:-2], axes[-1], axes[-2]] if is_swapped and rank > 1 else axes


@fused_matmul.infer
def _matmul_fact(g: Scope, a: Fact, b: Fact, **attrs: Any) -> Fact:
    operands = []
    for fact, side in ((a, "A"), (b, "B")):
        permutation = _permutation(fact.rank, attrs[f"trans{side}"], attrs[f"transBatch{side}"])
        operands.append(fact.shaped(tuple(fact.dims[i] for i in permutation)))
    return a.shaped(matmul_shape(g, *operands))


@fused_matmul.reference
@in_wide
def _matmul(a: Array, b: Array, **attrs: Any) -> Any:
    a = a.transpose(_permutation(a.ndim, attrs["transA"], attrs["transBatchA"]))
    b = b.transpose(_permutation(b.ndim, attrs["transB"], attrs["transBatchB"]))
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
def _(b: Builder, node: Node) -> Outputs:
    """FusedGemm: the activation becomes a node, which fuses into the epilogue later."""
    rest = {k: v for k, v in node.attrs.items() if not k.startswith("activation")}
    return (activated(b, b.Gemm(*node.inputs, **rest), node),)


@matmul_activation.decompose
def _(b: Builder, node: Node) -> Outputs:
    """FusedMatMulActivation."""
    rest = {k: v for k, v in node.attrs.items() if not k.startswith("activation")}
    return (activated(b, b.FusedMatMul(*node.inputs, domain=MICROSOFT, **rest), node),)


OPS: Final = (fused_gemm, fused_matmul, matmul_activation)
