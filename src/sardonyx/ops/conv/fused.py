"""FusedConv, NhwcConv and NhwcFusedConv: activation(Conv(x, w, b) + z), NCHW or NHWC."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dtype import F16, F32, IEEE
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, input_of, optional_input
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import MICROSOFT, Op, optional
from sardonyx.ops.arrays import Array, filled, in_wide
from sardonyx.ops.builder import Builder
from sardonyx.ops.conv.standard import CONV
from sardonyx.ops.decomposition import Outputs
from sardonyx.ops.elementwise.fused_activation import (
    ACTIVATION_ATTRS,
    activation_function,
    standard,
)

_FUSED: Final = {**CONV, "activation": optional("bytes"), "activation_params": optional("floats")}


fused_conv: Final = Op(
    "FusedConv", 1, "X:T W:T B:T? Z:T?", "Y:T", domain=MICROSOFT, attrs=_FUSED, types={"T": IEEE}
)


# X and Y are NHWC; the weights have Conv's layout.
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


def _split_activation(attrs: dict[str, Any]) -> tuple[Callable[[Array], Array], dict[str, Any]]:
    """Return the activation, and the attributes that remain for the convolution."""
    rest = {k: v for k, v in attrs.items() if not k.startswith("activation")}
    name: bytes | None = attrs["activation"]
    keys = ACTIVATION_ATTRS.get((name or b"").decode("utf-8", "replace"), ())
    params: Sequence[float] = attrs["activation_params"] or ()
    return activation_function(name, dict(zip(keys, params, strict=False))), rest


@fused_conv.infer
def _fused_fact(g: Scope, *facts: Fact | None, **attrs: Any) -> Fact:
    *conv, z = facts
    _, rest = _split_activation(attrs)
    rule = standard("Conv").infer_rule
    assert rule is not None
    y: Fact = rule(g, *conv, **rest)
    if z is not None:
        if z.rank != y.rank:
            raise InvalidGraph(f"Z is added to {y}, and is {z}")
        for a, b in zip(z.dims, y.dims, strict=True):
            g.equal(a, b, "Z has another shape than the convolution's output")
    return y


@fused_conv.reference
@in_wide
def _fused_conv(
    x: Array, w: Array, b: Array | None = None, z: Array | None = None, **attrs: Any
) -> Array:
    activation, rest = _split_activation(attrs)
    rule = standard("Conv").reference_rule
    assert rule is not None
    y = rule(x, w, b, **rest)
    return activation(y if z is None else y + z)


_NO_ACTIVATION: Final = {"activation": None, "activation_params": None}


def _permuted(fact: Fact | None, order: Callable[[int], Sequence[int]]) -> Fact | None:
    if fact is None:
        return None
    if fact.rank < 3:
        raise InvalidGraph(f"images have batch, spatial axes and channels, and one is {fact}")
    return fact.shaped(tuple(fact.dims[i] for i in order(fact.rank)))


def to_channels_first(rank: int) -> tuple[int, ...]:
    """The permutation of axes from NHWC to NCHW."""
    return (0, rank - 1, *range(1, rank - 1))


def to_channels_last(rank: int) -> tuple[int, ...]:
    """The permutation of axes from NCHW to NHWC."""
    return (0, *range(2, rank), 1)


@nhwc_conv.infer
@nhwc_fused_conv.infer
def _(g: Scope, *facts: Fact | None, **attrs: Any) -> Fact:
    x, w, b, z = filled(facts, 4)
    images = (_permuted(f, to_channels_first) for f in (x, z))
    y = _fused_fact(g, next(images), w, b, next(images), **{**_NO_ACTIVATION, **attrs})
    last = _permuted(y, to_channels_last)
    assert last is not None
    return last


@nhwc_conv.reference
@nhwc_fused_conv.reference
def _(x: Array, w: Array, b: Array | None = None, z: Array | None = None, **attrs: Any) -> Array:
    first = to_channels_first(x.ndim)
    z_first = None if z is None else z.transpose(first)
    y = _fused_conv(x.transpose(first), w, b, z_first, **{**_NO_ACTIVATION, **attrs})
    return np.ascontiguousarray(y.transpose(to_channels_last(x.ndim)))


@nhwc_conv.decompose
@nhwc_fused_conv.decompose
def _(b: Builder, node: Node) -> Outputs:
    """NhwcConv and NhwcFusedConv: layout propagation removes the Transposes again."""
    rank = input_of(node, 0).tensor.rank
    x, w, bias, z = (optional_input(node, i) for i in range(4))
    images = [None if v is None else b.Transpose(v, perm=to_channels_first(rank)) for v in (x, z)]
    if node.op.name == "NhwcConv":
        y = b.Conv(images[0], w, bias, **node.attrs)
    else:
        y = b.FusedConv(images[0], w, bias, images[1], domain=MICROSOFT, **node.attrs)
    return (b.Transpose(y, perm=to_channels_last(rank)),)


OPS: Final = (fused_conv, nhwc_conv, nhwc_fused_conv)
