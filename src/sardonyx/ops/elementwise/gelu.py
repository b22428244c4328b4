"""The GELU ops of com.microsoft: exact (erf), by tanh, with a bias, by sigmoid, of int8."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dtype import F32, FLOATS, I8
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value, input_of
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import MICROSOFT, Op, optional
from sardonyx.ops.arrays import Array, float32, in_wide
from sardonyx.ops.builder import Builder
from sardonyx.ops.decomposition import never
from sardonyx.ops.elementwise.activation import gelu_function, swish
from sardonyx.ops.inference import like_first

_TYPES: Final = {"T": FLOATS}
_ALPHA: Final = {"alpha": float32(1.702)}


def _biased(g: Scope, x: Fact, bias: Fact | None) -> Fact:
    if bias is not None:
        if bias.rank != 1 or not x.rank:
            raise InvalidGraph(f"the bias must be one vector for the last dim of {x}, got {bias}")
        g.equal(bias.dims[0], x.dims[-1], "the bias does not fit the last dim")
    return x.without_contents()


gelu: Final = Op("Gelu", 1, "X:T", "Y:T", domain=MICROSOFT, types=_TYPES, unranked=True)
gelu.infer(like_first)
gelu.reference(in_wide(gelu_function))

fast_gelu: Final = Op("FastGelu", 1, "X:T bias:T?", "Y:T", domain=MICROSOFT, types=_TYPES)
fast_gelu.infer(_biased)


@fast_gelu.reference
@in_wide
def _(x: Array, bias: Array | None = None) -> Array:
    return gelu_function(x if bias is None else x + bias, approximate=b"tanh")


bias_gelu: Final = Op("BiasGelu", 1, "A:T B:T", "C:T", domain=MICROSOFT, types=_TYPES)
bias_gelu.infer(_biased)
bias_gelu.reference(in_wide(lambda x, bias: gelu_function(x + bias)))

quick_gelu: Final = Op(
    "QuickGelu", 1, "X:T", "Y:T", domain=MICROSOFT, attrs=_ALPHA, types=_TYPES, unranked=True
)
quick_gelu.infer(like_first)
quick_gelu.reference(in_wide(swish))


qordered_gelu: Final = Op(
    "QOrderedGelu",
    1,
    "X:Q scale_X:S scale_Y:S",
    "Y:Q",
    domain=MICROSOFT,
    attrs={"order_X": optional("int"), "order_Y": optional("int")},
    types={"Q": frozenset((I8,)), "S": frozenset((F32,))},
)


@qordered_gelu.infer
def _(g: Scope, x: Fact, x_scale: Fact, y_scale: Fact, **orders: int | None) -> Fact:
    x_order, y_order = orders["order_X"], orders["order_Y"]
    if None not in (x_order, y_order) and x_order != y_order:
        raise InvalidGraph(f"the orders of X and Y must be equal, got {x_order} and {y_order}")
    for name, scale in (("scale_X", x_scale), ("scale_Y", y_scale)):
        for dim in scale.dims:
            g.equal(dim, 1, f"{name} is one number")
    return x.without_contents()


@qordered_gelu.reference
def _(x: Array, x_scale: Array, y_scale: Array, **_: Any) -> Array:
    y = gelu_function(x.astype(np.float32) * x_scale.reshape(()))
    return np.clip(np.rint(y / y_scale.reshape(())), -128, 127).astype(np.int8)


@qordered_gelu.decompose(when=never)
def _(b: Builder, node: Node) -> Value:
    x, x_scale, y_scale = (input_of(node, i) for i in range(3))
    y = b.Gelu(b.DequantizeLinear(x, b.Reshape(x_scale, b.ints())))
    return b.QuantizeLinear(y, b.Reshape(y_scale, b.ints()), output_dtype=I8.onnx)


OPS: Final = (gelu, fast_gelu, bias_gelu, quick_gelu, qordered_gelu)
