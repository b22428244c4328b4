"""Layer normalization of int8 tensors, to int8 (QOrderedLayerNormalization)."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dtype import F16, F32, I8
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import MICROSOFT, Op
from sardonyx.ops.arrays import Array, float32
from sardonyx.ops.builder import Builder
from sardonyx.ops.inference import axis_of
from sardonyx.ops.normalize.standard import layer_norm
from sardonyx.ops.quantize.matmul_conv import check_single
from sardonyx.ops.quantize.qdq import dequantize_node, quantize_node

qordered_layer_norm: Final = Op(
    "QOrderedLayerNormalization",
    1,
    "X:Q scale_X:S scale:F B:F? scale_Y:S",
    "Y:Q",
    domain=MICROSOFT,
    attrs={"axis": -1, "epsilon": float32(1e-5), "order_X": 1, "order_Y": 1},
    types={"Q": frozenset((I8,)), "S": frozenset((F32,)), "F": frozenset((F16, F32))},
)


@qordered_layer_norm.infer
def _(
    g: Scope, x: Fact, x_scale: Fact, scale: Fact, bias: Fact | None, y_scale: Fact, **attrs: Any
) -> Fact:
    if attrs["order_X"] != 1 or attrs["order_Y"] != 1:
        raise InvalidGraph("the orders of X and Y must be 1, row major")
    check_single(g, scale_X=x_scale, scale_Y=y_scale)
    width = x.dims[axis_of(attrs["axis"], x.rank) :]
    for each in (scale, bias):
        if each is not None and each.rank != len(width):
            raise InvalidGraph(f"{each} has not the axes that {x} is normalized along")
    return x.plain()


@qordered_layer_norm.reference
def _(*arrays: Any, axis: int, epsilon: float, **_: Any) -> Array:
    x, x_scale, scale, bias, y_scale = arrays
    bias = None if bias is None else bias.astype(np.float32)
    real = x.astype(np.float32) * x_scale.reshape(())
    attrs = {"axis": axis, "epsilon": epsilon, "stash_type": F32.onnx}
    y: Array = layer_norm.run([real, scale.astype(np.float32), bias], attrs)[0]
    codes: Array = np.clip(np.rint(y / y_scale.reshape(())), -128, 127)
    return codes.astype(np.int8)


@qordered_layer_norm.decompose
def _(b: Builder, node: Node) -> Value:
    x, x_scale, scale, y_scale = (input_of(node, i) for i in (0, 1, 2, 4))
    bias = optional_input(node, 3)
    weights = (b.cast(scale, F32), None if bias is None else b.cast(bias, F32))
    real = dequantize_node(b, x, x_scale, None)
    axis, epsilon = node.attrs["axis"], node.attrs["epsilon"]
    y = b.LayerNormalization(real, *weights, axis=axis, epsilon=epsilon)
    return quantize_node(b, y, y_scale, None, I8)


OPS: Final = (qordered_layer_norm,)
