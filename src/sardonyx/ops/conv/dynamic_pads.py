"""ConvTransposeWithDynamicPads: a transposed convolution with pads as an input."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.graph.dtype import F16, F32, F64, I64
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, optional_input
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import MICROSOFT, Op, optional
from sardonyx.ops.arrays import Array
from sardonyx.ops.attention.heads import same_dims
from sardonyx.ops.builder import Builder
from sardonyx.ops.conv.standard import CONV, conv_transpose
from sardonyx.ops.decomposition import Outputs, need

_FLOATS: Final = frozenset((F16, F32, F64))


dynamic_pads: Final = Op(
    "ConvTransposeWithDynamicPads",
    1,
    "X:T W:T Pads:P? B:T?",
    "Y:T",
    domain=MICROSOFT,
    attrs={k: v for k, v in CONV.items() if k != "pads"} | {"output_padding": optional("ints")},
    types={"T": _FLOATS, "P": frozenset((I64,))},
)


@dynamic_pads.infer
def _(g: Scope, x: Fact, w: Fact, pads: Fact | None, b: Fact | None, **attrs: Any) -> Fact:
    rule = conv_transpose.infer_rule
    assert rule is not None
    static_pads = None if pads is None else pads.ints
    y: Fact = rule(g, x, w, b, **attrs, pads=static_pads, output_shape=None)
    if pads is None or static_pads is not None:
        return y
    same_dims(g, pads.dims, (2 * (x.rank - 2),), "Pads")
    return y.shaped((*y.dims[:2], *(g.fresh("size") for _ in y.dims[2:])))


@dynamic_pads.reference
def _(x: Array, w: Array, pads: Array | None = None, b: Array | None = None, **attrs: Any) -> Any:
    rule = conv_transpose.reference_rule
    assert rule is not None
    run_pads = None if pads is None else tuple(pads.tolist())
    return rule(x, w, b, **attrs, pads=run_pads, output_shape=None)


@dynamic_pads.decompose
def _(b: Builder, node: Node) -> Outputs:
    """ConvTransposeWithDynamicPads with pads that are known."""
    x, w, pads, bias = (optional_input(node, i) for i in range(4))
    known = None if pads is None else pads.tensor.ints
    need(pads is None or known is not None, "the pads are not known")
    return (b.ConvTranspose(x, w, bias, pads=known, **node.attrs),)


OPS: Final = (dynamic_pads,)
