"""Gradients of the feature ops of ai.onnx.ml, by decomposition."""

from __future__ import annotations

import numpy as np

from sardonyx.graph.dtype import F32, F64
from sardonyx.graph.graph import Node, Value, input_of
from sardonyx.graph.op import ML
from sardonyx.ops.gradient_rules import GradientBuilder, decompose, ranked


@decompose("ArrayFeatureExtractor", domain=ML)
def _(b: GradientBuilder, node: Node) -> Value:
    x, index = input_of(node, 0), b.Reshape(input_of(node, 1), b.ints(-1))
    rows = x if ranked(x).rank > 1 else b.Unsqueeze(x, b.ints(0))
    return b.Gather(rows, index, axis=ranked(rows).rank - 1)


@decompose("Scaler", domain=ML)
def _(b: GradientBuilder, node: Node) -> Value:
    x = input_of(node, 0)
    offset, scale = node.attrs["offset"], node.attrs["scale"]
    if offset is not None:
        x = b.Sub(x, b.const(offset, x.tensor.dtype))
    if scale is not None:
        x = b.Mul(x, b.const(scale, x.tensor.dtype))
    return b.cast(x, F32)


@decompose("Normalizer", domain=ML)
def _(b: GradientBuilder, node: Node) -> Value:
    x = b.cast(input_of(node, 0), F64)
    reduce = {b"MAX": b.ReduceMax, b"L1": b.ReduceL1, b"L2": b.ReduceL2}[node.attrs["norm"]]
    size = reduce(x, b.ints(-1), keepdims=1)
    # Rows of size 0 stay as they are.
    return b.cast(b.Div(x, b.Where(b.Equal(size, 0.0), b.const(1, F64), size)), F32)


@decompose("Imputer", domain=ML)
def _(b: GradientBuilder, node: Node) -> Value:
    x, sentinel = input_of(node, 0), np.float32(node.attrs["replaced_value_float"])
    is_missing = b.IsNaN(x) if np.isnan(sentinel) else b.Equal(x, float(sentinel))
    return b.Where(is_missing, b.const(node.attrs["imputed_value_floats"], x.tensor.dtype), x)


@decompose("FeatureVectorizer", domain=ML)
def _(b: GradientBuilder, node: Node) -> Value:
    """Concatenate rows, each padded with zeros or cropped to its declared width."""
    columns = []
    for i in range(len(node.inputs)):
        x = input_of(node, i)
        rows = b.Flatten(x, axis=1 if ranked(x).rank > 1 else 0)
        if node.attrs["inputdimensions"] is not None:
            width = b.element(b.shape(rows), 1)
            missing = b.Sub(b.ints(node.attrs["inputdimensions"][i]), width)
            rows = b.Pad(rows, b.Concat(b.ints(0), missing, axis=0), None, b.ints(1))
        columns.append(b.cast(rows, F32))
    return b.Concat(*columns, axis=1)
