"""Small models with random weights, and their samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Samples = list[dict[str, np.ndarray]]


def _weights(seed: int, **shapes: tuple[int, ...]) -> list[TensorProto]:
    rng = np.random.default_rng(seed)
    return [
        numpy_helper.from_array(rng.normal(0, 0.5, shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]


def _model(
    text: str, weights: list[TensorProto], constants: dict[str, np.ndarray] | None = None
) -> onnx.ModelProto:
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(weights)
    for name, array in (constants or {}).items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    for i, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{i}"
    return model


def convnet(opset: int = 13) -> onnx.ModelProto:
    """Convolutions with and without bias, a residual sum, pooling, a classifier."""
    text = f"""
        <ir_version: 8, opset_import: ["": {opset}]>
        g (float[n, 3, 8, 8] x) => (float[n, 5] y) {{
            a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w1, b1)
            r = Relu(a)
            p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
            c = Conv <kernel_shape = [1, 1]> (p, w2)
            s = Add(p, c)
            l = Clip(s, low, high)
            m = GlobalAveragePool(l)
            f = Flatten(m)
            h = Gemm <transB = 1> (f, w3, b3)
            t = Sigmoid(h)
            y = Softmax(t)
        }}"""
    weights = _weights(0, w1=(4, 3, 3, 3), b1=(4,), w2=(4, 4, 1, 1), w3=(5, 4), b3=(5,))
    return _model(text, weights, {"low": np.float32(0), "high": np.float32(6)})


def transformer() -> onnx.ModelProto:
    """Normalization, products with shared and own weights, moves, a Where and a Concat."""
    text = """
        <ir_version: 8, opset_import: ["": 17]>
        g (float[n, 6, 8] x, int64[k] rows) => (float[n, 6, 8] y, float[k, 8] z) {
            z = Gather(table, rows)
            n1 = LayerNormalization(x, g1, b1)
            q = MatMul(n1, wq)
            v = MatMul(n1, wv)
            t = Transpose <perm = [0, 2, 1]> (q)
            s = MatMul(v, t)
            o = MatMul(s, v)
            m = Mul(o, x)
            c = Concat <axis = 2> (m, x)
            y = MatMul(c, wo)
        }"""
    shapes = {"table": (16, 8), "wq": (8, 8), "wv": (8, 8), "wo": (16, 8), "g1": (8,), "b1": (8,)}
    return _model(text, _weights(1, **shapes))


def samples(name: str, count: int = 4) -> Samples:
    """Return feeds of a model."""
    rng = np.random.default_rng(7)
    if name == "convnet":
        return [{"x": rng.normal(0, 1, (2, 3, 8, 8)).astype(np.float32)} for _ in range(count)]
    x = [rng.normal(0, 1, (2, 6, 8)).astype(np.float32) for _ in range(count)]
    return [{"x": v, "rows": np.array([1, 5], np.int64)} for v in x]


MODELS: dict[str, Any] = {"convnet": convnet, "transformer": transformer}


class Reader:
    """A reader of samples."""

    def __init__(self, feeds: Samples) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


def signature(path: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """Return what identifies a quantized model: its nodes in any order, and its constants."""
    model = onnx.load(path)
    nodes = sorted(
        (n.op_type, n.domain, n.name, tuple(n.input), tuple(n.output), _attributes(n))
        for n in model.graph.node
    )
    arrays = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    return (nodes, sorted((o.domain, o.version) for o in model.opset_import)), arrays


def _attributes(node: Any) -> tuple[Any, ...]:
    pairs = ((a.name, helper.get_attribute_value(a)) for a in node.attribute)
    return tuple(sorted((k, tuple(v) if hasattr(v, "__len__") else v) for k, v in pairs))
