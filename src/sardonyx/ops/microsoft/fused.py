"""Products with what follows them: FusedConv, FusedGemm, FusedMatMul."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from sardonyx.errors import InternalError, InvalidGraph
from sardonyx.graph.dtype import FLOATS, I32, I64, IEEE, U32, U64
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.ops import lookup
from sardonyx.ops.declare import MICROSOFT, ONNX, Op, optional
from sardonyx.ops.linear import matmul, matmul_shape
from sardonyx.ops.rules import Array, in_wide

# Activations with the attributes that they need, in the order that activation_params has them.
_SETTINGS: Final[dict[str, tuple[str, ...]]] = {
    "Relu": (),
    "Tanh": (),
    "Sigmoid": (),
    "Softplus": (),
    "Softsign": (),
    "HardSwish": (),
    "LeakyRelu": ("alpha",),
    "Elu": ("alpha",),
    "Celu": ("alpha",),
    "ThresholdedRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "ScaledTanh": ("alpha", "beta"),
    "ParametricSoftplus": ("alpha", "beta"),
    "Selu": ("alpha", "gamma"),
    "Clip": ("min", "max"),
}


def standard(name: str) -> Op:
    """The standard op of this name."""
    op = lookup(ONNX, name)
    if op is None or op.infer_rule is None or op.reference_rule is None:
        raise InternalError(f"the standard op {name} is missing")
    return op


def _activation(name: bytes | None, given: dict[str, float | None]) -> Callable[[Array], Array]:
    """The activation of a fused node as a function; none when it names none."""
    if not name:
        return lambda x: x
    text = name.decode("utf-8", "replace")
    if text not in _SETTINGS:
        raise InvalidGraph(f"activation {text!r} is none of {', '.join(_SETTINGS)}")
    wanted = _SETTINGS[text]
    missing = [k for k in wanted if given.get(k) is None]
    if missing:
        raise InvalidGraph(f"activation {text} needs a value for {' and '.join(missing)}")
    values: dict[str, Any] = {k: given[k] for k in wanted}
    if text == "Clip":
        return lambda x: np.clip(x, x.dtype.type(values["min"]), x.dtype.type(values["max"]))
    if text == "ScaledTanh":
        return lambda x: values["alpha"] * np.tanh(values["beta"] * x)
    if text == "ParametricSoftplus":
        return lambda x: values["alpha"] * np.logaddexp(values["beta"] * x, 0, dtype=x.dtype)
    rule = standard(text).reference_rule
    assert rule is not None
    return lambda x: np.asarray(rule(x, **values))


fused_conv: Final = Op(
    "FusedConv",
    1,
    "X:T W:T B:T? Z:T?",
    "Y:T",
    domain=MICROSOFT,
    attrs={
        "activation": optional("bytes"),
        "activation_params": optional("floats"),
        "auto_pad": b"NOTSET",
        "dilations": optional("ints"),
        "group": 1,
        "kernel_shape": optional("ints"),
        "pads": optional("ints"),
        "strides": optional("ints"),
    },
    types={"T": IEEE},
)


def _conv_parts(attrs: dict[str, Any]) -> tuple[Callable[[Array], Array], dict[str, Any]]:
    """The activation, and the attributes that remain for the convolution."""
    rest = {k: v for k, v in attrs.items() if not k.startswith("activation")}
    name: bytes | None = attrs["activation"]
    keys = _SETTINGS.get((name or b"").decode("utf-8", "replace"), ())
    params: Sequence[float] = attrs["activation_params"] or ()
    return _activation(name, dict(zip(keys, params, strict=False))), rest


@fused_conv.infer
def _(g: Scope, *facts: Fact | None, **attrs: Any) -> Fact:
    *conv, z = facts
    _, rest = _conv_parts(attrs)
    rule = standard("Conv").infer_rule
    assert rule is not None
    y: Fact = rule(g, *conv, **rest)
    if z is not None:
        if z.rank != y.rank:
            raise InvalidGraph(f"Z is added to {y}, and is {z}")
        for a, b in zip(z.dims, y.dims, strict=True):
            g.equal(a, b, "Z has another shape than what it is added to")
    return y


@fused_conv.reference
@in_wide
def _(x: Array, w: Array, b: Array | None = None, z: Array | None = None, **attrs: Any) -> Array:
    activation, rest = _conv_parts(attrs)
    rule = standard("Conv").reference_rule
    assert rule is not None
    y = rule(x, w, b, **rest)
    return activation(y if z is None else y + z)


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


def _gemm_parts(attrs: dict[str, Any]) -> tuple[Callable[[Array], Array], dict[str, Any]]:
    rest = {k: v for k, v in attrs.items() if not k.startswith("activation")}
    given = {k: attrs[f"activation_{k}"] for k in ("alpha", "beta", "gamma")}
    return _activation(attrs["activation"], given), rest


@fused_gemm.infer
def _(g: Scope, *facts: Fact | None, **attrs: Any) -> Fact:
    _, rest = _gemm_parts(attrs)
    rule = standard("Gemm").infer_rule
    assert rule is not None
    y: Fact = rule(g, *facts, **rest)
    return y


@fused_gemm.reference
@in_wide
def _(a: Array, b: Array, c: Array | None = None, **attrs: Any) -> Array:
    activation, rest = _gemm_parts(attrs)
    rule = standard("Gemm").reference_rule
    assert rule is not None
    y = rule(a, b, c, **rest)
    return activation(y).astype(y.dtype)


fused_matmul: Final = Op(
    "FusedMatMul",
    1,
    "A:T B:T",
    "Y:T",
    domain=MICROSOFT,
    attrs={"alpha": 1.0, "transA": 0, "transB": 0, "transBatchA": 0, "transBatchB": 0},
    types={"T": FLOATS},
)


def _turned(rank: int, is_swapped: int, is_batched: int) -> list[int]:
    """The order of axes that a product wants; vectors stay as they are."""
    axes = list(range(rank))
    if is_batched:
        if rank < 3:
            raise InvalidGraph(f"transBatchA and transBatchB need 3 dims or more, not {rank}")
        axes = [*axes[1:-1], 0, axes[-1]]
    return [*axes[:-2], axes[-1], axes[-2]] if is_swapped and rank > 1 else axes


@fused_matmul.infer
def _(g: Scope, a: Fact, b: Fact, **attrs: Any) -> Fact:
    turned = []
    for fact, side in ((a, "A"), (b, "B")):
        order = _turned(fact.rank, attrs[f"trans{side}"], attrs[f"transBatch{side}"])
        turned.append(fact.shaped(tuple(fact.dims[i] for i in order)))
    return a.shaped(matmul_shape(g, *turned))


@fused_matmul.reference
@in_wide
def _(a: Array, b: Array, **attrs: Any) -> Any:
    a = a.transpose(_turned(a.ndim, attrs["transA"], attrs["transBatchA"]))
    b = b.transpose(_turned(b.ndim, attrs["transB"], attrs["transBatchB"]))
    return matmul(a, b) * a.dtype.type(attrs["alpha"])


OPS: Final = (fused_conv, fused_gemm, fused_matmul)
