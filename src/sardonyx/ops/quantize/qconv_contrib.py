"""QLinearConv of com.microsoft: the ONNX op, optionally channels-last."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, input_of
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import MICROSOFT, Op
from sardonyx.ops.arrays import Array
from sardonyx.ops.builder import Builder
from sardonyx.ops.conv.standard import CONV
from sardonyx.ops.decomposition import Outputs
from sardonyx.ops.quantize.matmul_conv import BYTES, FLOAT, INT, qlinear_conv
from sardonyx.ops.quantize.qdq import in_nchw, scalar
from sardonyx.ops.quantize.qlinear import as_channels_first

conv: Final = Op(
    "QLinearConv",
    1,
    "x:T1 x_scale:F x_zero_point:T1 w:T2 w_scale:F w_zero_point:T2 y_scale:F y_zero_point:T3 B:T4?",
    "y:T3",
    domain=MICROSOFT,
    attrs={**CONV, "channels_last": 0},
    types={"T1": BYTES, "T2": BYTES, "T3": BYTES, "T4": INT, "F": FLOAT},
)


@conv.infer
def _(g: Scope, x: Fact, *rest: Fact | None, channels_last: int, **attrs: Any) -> Fact:
    rule = qlinear_conv.infer_rule
    assert rule is not None
    result: Fact = rule(g, as_channels_first(x, channels_last), *rest, **attrs)
    return (
        result.shaped((result.dims[0], *result.dims[2:], result.dims[1]))
        if channels_last
        else result
    )


@conv.reference
def _(x: Array, *rest: Array | None, channels_last: int, **attrs: Any) -> Array:
    rule = qlinear_conv.reference_rule
    assert rule is not None
    result: Array = rule(np.moveaxis(x, -1, 1) if channels_last else x, *rest, **attrs)
    return np.moveaxis(result, 1, -1) if channels_last else result


@conv.decompose
def _(b: Builder, node: Node) -> Outputs:
    """QLinearConv of com.microsoft: the standard op, in either layout."""
    x, rest = input_of(node, 0), node.inputs[1:]
    attrs = {k: v for k, v in node.attrs.items() if k != "channels_last"}
    # Scales and zero points of activations; those of the weights may be per channel.
    singles = [scalar(b, v) if i in (0, 1, 5, 6) else v for i, v in enumerate(rest)]
    is_last = node.attrs["channels_last"]
    return (in_nchw(b, x, lambda v: b.QLinearConv(v, *singles, **attrs), is_last),)


OPS: Final = (conv,)
