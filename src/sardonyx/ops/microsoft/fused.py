"""Products with what follows them: convolutions, Gemm and MatMul, with their activations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from sardonyx.errors import InternalError, InvalidGraph
from sardonyx.graph.dtype import F16, F32, FLOATS, I32, I64, IEEE, U32, U64
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import MICROSOFT, ONNX, Op, optional, required
from sardonyx.ops import lookup
from sardonyx.ops.conv import CONV
from sardonyx.ops.linear import matmul, matmul_shape
from sardonyx.ops.rules import Array, filled, in_wide

# Activations with the attributes that they need, in the order that activation_params has them.
SETTINGS: Final[dict[str, tuple[str, ...]]] = {
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
    if text not in SETTINGS:
        raise InvalidGraph(f"activation {text!r} is none of {', '.join(SETTINGS)}")
    wanted = SETTINGS[text]
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


_FUSED: Final = {
    **CONV,
    "activation": optional("bytes"),
    "activation_params": optional("floats"),
}
fused_conv: Final = Op(
    "FusedConv",
    1,
    "X:T W:T B:T? Z:T?",
    "Y:T",
    domain=MICROSOFT,
    attrs=_FUSED,
    types={"T": IEEE},
)
# Images with the channels last, before and behind; weights as Conv has them.
nhwc_conv: Final = Op(
    "NhwcConv", 1, "X:T W:T B:T?", "Y:T", domain=MICROSOFT, attrs=CONV, types={"T": IEEE}
)
nhwc_fused_conv: Final = Op(
    "NhwcFusedConv",
    1,
    "X:T W:T B:T? Z:T?",
    "Y:T",
    domain=MICROSOFT,
    attrs=_FUSED,
    types={"T": frozenset((F32, F16))},
)


def _conv_parts(attrs: dict[str, Any]) -> tuple[Callable[[Array], Array], dict[str, Any]]:
    """The activation, and the attributes that remain for the convolution."""
    rest = {k: v for k, v in attrs.items() if not k.startswith("activation")}
    name: bytes | None = attrs["activation"]
    keys = SETTINGS.get((name or b"").decode("utf-8", "replace"), ())
    params: Sequence[float] = attrs["activation_params"] or ()
    return _activation(name, dict(zip(keys, params, strict=False))), rest


@fused_conv.infer
def _fused_fact(g: Scope, *facts: Fact | None, **attrs: Any) -> Fact:
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
def _fused_conv(
    x: Array, w: Array, b: Array | None = None, z: Array | None = None, **attrs: Any
) -> Array:
    activation, rest = _conv_parts(attrs)
    rule = standard("Conv").reference_rule
    assert rule is not None
    y = rule(x, w, b, **rest)
    return activation(y if z is None else y + z)


_NO_ACTIVATION: Final = {"activation": None, "activation_params": None}


def _moved(fact: Fact | None, order: Callable[[int], Sequence[int]]) -> Fact | None:
    if fact is None:
        return None
    if fact.rank < 3:
        raise InvalidGraph(f"images have batch, spatial axes and channels, and one is {fact}")
    return fact.shaped(tuple(fact.dims[i] for i in order(fact.rank)))


def to_first(rank: int) -> tuple[int, ...]:
    """The order of axes that puts the channels behind the batch."""
    return (0, rank - 1, *range(1, rank - 1))


def to_last(rank: int) -> tuple[int, ...]:
    """The order of axes that puts the channels last."""
    return (0, *range(2, rank), 1)


@nhwc_conv.infer
@nhwc_fused_conv.infer
def _(g: Scope, *facts: Fact | None, **attrs: Any) -> Fact:
    x, w, b, z = filled(facts, 4)
    images = (_moved(f, to_first) for f in (x, z))
    y = _fused_fact(g, next(images), w, b, next(images), **{**_NO_ACTIVATION, **attrs})
    last = _moved(y, to_last)
    assert last is not None
    return last


@nhwc_conv.reference
@nhwc_fused_conv.reference
def _(x: Array, w: Array, b: Array | None = None, z: Array | None = None, **attrs: Any) -> Array:
    first = to_first(x.ndim)
    turned = None if z is None else z.transpose(first)
    y = _fused_conv(x.transpose(first), w, b, turned, **{**_NO_ACTIVATION, **attrs})
    return np.ascontiguousarray(y.transpose(to_last(x.ndim)))


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


_TURNS: Final = {"alpha": 1.0, "transA": 0, "transB": 0, "transBatchA": 0, "transBatchB": 0}
fused_matmul: Final = Op(
    "FusedMatMul", 1, "A:T B:T", "Y:T", domain=MICROSOFT, attrs=_TURNS, types={"T": FLOATS}
)
matmul_activation: Final = Op(
    "FusedMatMulActivation",
    1,
    "A:T B:T",
    "Y:T",
    domain=MICROSOFT,
    attrs={
        **_TURNS,
        "activation": required("bytes"),
        "activation_alpha": optional("float"),
        "activation_axis": optional("int"),
        "activation_beta": optional("float"),
        "activation_gamma": optional("float"),
    },
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
def _matmul_fact(g: Scope, a: Fact, b: Fact, **attrs: Any) -> Fact:
    turned = []
    for fact, side in ((a, "A"), (b, "B")):
        order = _turned(fact.rank, attrs[f"trans{side}"], attrs[f"transBatch{side}"])
        turned.append(fact.shaped(tuple(fact.dims[i] for i in order)))
    return a.shaped(matmul_shape(g, *turned))


@fused_matmul.reference
@in_wide
def _matmul(a: Array, b: Array, **attrs: Any) -> Any:
    a = a.transpose(_turned(a.ndim, attrs["transA"], attrs["transBatchA"]))
    b = b.transpose(_turned(b.ndim, attrs["transB"], attrs["transBatchB"]))
    return matmul(a, b) * a.dtype.type(attrs["alpha"])


@matmul_activation.infer
def _(g: Scope, a: Fact, b: Fact, **attrs: Any) -> Fact:
    _gemm_parts(attrs)
    y: Fact = _matmul_fact(g, a, b, **attrs)
    return y


@matmul_activation.reference
@in_wide
def _(a: Array, b: Array, **attrs: Any) -> Array:
    activation, rest = _gemm_parts(attrs)
    return activation(np.asarray(_matmul(a, b, **rest)))


OPS: Final = (
    fused_conv, nhwc_conv, nhwc_fused_conv, fused_gemm, fused_matmul, matmul_activation,
)  # fmt: skip
