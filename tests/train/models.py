"""Models to train: a transformer, an image classifier, recurrent classifiers; weights at random."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, np.dtype[Any]]


class Net:
    """A model under construction: nodes by calls, weights by shapes."""

    def __init__(self, seed: int = 0) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Array] = {}
        self._constants: dict[str, Array] = {}
        self._rng = np.random.default_rng(seed)

    def __call__(self, op: str, *inputs: str, outputs: int = 1, **attrs: Any) -> str:
        """A node; the name of its (first) output is that of the node."""
        name = f"{op.lower()}{len(self.nodes)}"
        made = [name, *(f"{name}.{i}" for i in range(1, outputs))]
        self.nodes.append(helper.make_node(op, inputs, made, name=name, **attrs))
        return name

    def weight(self, name: str, *shape: int, mean: float = 0.0, scale: float = 0.2) -> str:
        numbers = mean + scale * self._rng.standard_normal(shape)
        self.weights[name] = numbers.astype(np.float32)
        return name

    def const(self, *numbers: Any, dtype: Any = np.int64) -> str:
        """A constant that is not trained."""
        name = f"const{len(self._constants)}"
        self._constants[name] = np.array(numbers, dtype)
        self.nodes.append(
            helper.make_node(
                "Constant", [], [name], value=numpy_helper.from_array(self._constants[name])
            )
        )
        return name

    def model(self, inputs: dict[str, tuple[int, list[Any]]], outputs: dict[str, str]) -> Any:
        """The model; `outputs` maps the names of outputs to those of values."""
        nodes = list(self.nodes)
        nodes += [
            helper.make_node("Identity", [v], [n], name=f"{n}_out") for n, v in outputs.items()
        ]
        graph = helper.make_graph(
            nodes,
            "net",
            [helper.make_tensor_value_info(n, t, dims) for n, (t, dims) in inputs.items()],
            [onnx.ValueInfoProto(name=n) for n in outputs],
            [numpy_helper.from_array(w, n) for n, w in self.weights.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def transformer(
    layers: int = 2,
    width: int = 16,
    heads: int = 2,
    words: int = 11,
    batch: Any = "batch",
    length: Any = "length",
) -> tuple[Any, dict[str, Array]]:
    """A causal language model and its loss: embedding, pre-norm blocks, tied head."""
    net = Net()
    table = net.weight("table", words, width)
    x = net("Gather", table, "tokens")
    for i in range(layers):
        x = net("Add", x, _attention(net, f"layer{i}.", x, width, heads))
        x = net("Add", x, _dense(net, f"layer{i}.", x, width))
    x = _norm(net, "last.", x, width)
    scores = net("MatMul", x, net("Transpose", table, perm=[1, 0]))
    flat = net("Reshape", scores, net.const(-1, words))
    labels = net("Reshape", "labels", net.const(-1))
    loss = net("SoftmaxCrossEntropyLoss", flat, labels)
    ints = TensorProto.INT64
    inputs = {"tokens": (ints, [batch, length]), "labels": (ints, [batch, length])}
    return net.model(inputs, {"loss": loss}), net.weights


def _norm(net: Net, prefix: str, x: str, width: int) -> str:
    scale = net.weight(f"{prefix}scale", width, mean=1.0)
    return net("LayerNormalization", x, scale, net.weight(f"{prefix}bias", width))


def _linear(net: Net, prefix: str, x: str, wide: int, out: int) -> str:
    product = net("MatMul", x, net.weight(f"{prefix}w", wide, out))
    return net("Add", product, net.weight(f"{prefix}b", out))


def _attention(net: Net, prefix: str, x: str, width: int, heads: int) -> str:
    x = _norm(net, f"{prefix}norm1.", x, width)
    split = net.const(0, 0, heads, width // heads)
    parts = []
    for name in "qkv":
        part = net("Reshape", _linear(net, f"{prefix}{name}.", x, width, width), split)
        parts.append(net("Transpose", part, perm=[0, 2, 1, 3]))
    out = net("Attention", *parts, is_causal=1)
    joined = net("Reshape", net("Transpose", out, perm=[0, 2, 1, 3]), net.const(0, 0, width))
    return _linear(net, f"{prefix}o.", joined, width, width)


def _dense(net: Net, prefix: str, x: str, width: int) -> str:
    x = _norm(net, f"{prefix}norm2.", x, width)
    x = net("Gelu", _linear(net, f"{prefix}up.", x, width, 4 * width))
    return _linear(net, f"{prefix}down.", x, 4 * width, width)


def image_net(batch: Any = 3) -> tuple[Any, dict[str, Array]]:
    """Convolutions with normalization by the batch, pools, a residual, a linear head."""
    net = Net()
    x = "image"
    for i, (channels, filters, stride) in enumerate(((3, 6, 2), (6, 6, 1))):
        w = net.weight(f"conv{i}.w", filters, channels, 3, 3)
        y = net("Conv", x, w, pads=[1, 1, 1, 1], strides=[stride, stride])
        rows = [
            net.weight(f"bn{i}.{n}", filters, mean=m) for n, m in (("scale", 1.0), ("bias", 0.0))
        ]
        stats = [net.weight(f"bn{i}.{n}", filters, mean=2.0) for n in ("mean", "var")]
        y = net("Relu", net("BatchNormalization", y, *rows, *stats, training_mode=1, outputs=3))
        x = net("Add", x, y) if i else net("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2])
    depth = net.weight("depth.w", 6, 1, 3, 3)
    x = net("Relu", net("Conv", x, depth, net.weight("depth.b", 6), group=6, pads=[1, 1, 1, 1]))
    x = net("AveragePool", x, kernel_shape=[2, 2], strides=[1, 1])
    x = net("Flatten", net("GlobalAveragePool", x))
    scores = net("Gemm", x, net.weight("head.w", 4, 6), net.weight("head.b", 4), transB=1)
    loss = net("SoftmaxCrossEntropyLoss", scores, "labels")
    inputs = {
        "image": (TensorProto.FLOAT, [batch, 3, 17, 16]),
        "labels": (TensorProto.INT64, [batch]),
    }
    return net.model(inputs, {"loss": loss, "scores": scores}), net.weights


def recurrent_net(kind: str, hidden: int = 5) -> tuple[Any, dict[str, Array]]:
    """A bidirectional recurrent layer over an embedding, and a linear head on its last states."""
    net, gates = Net(), {"RNN": 1, "GRU": 3, "LSTM": 4}[kind]
    x = net("Gather", net.weight("table", 11, 4, scale=1.0), "tokens")
    w = net.weight("w", 2, gates * hidden, 4)
    r = net.weight("r", 2, gates * hidden, hidden)
    extra = {"linear_before_reset": 1} if kind == "GRU" else {}
    layer = net(
        kind, x, w, r, net.weight("b", 2, 2 * gates * hidden), direction="bidirectional",
        hidden_size=hidden, outputs=2, **extra,
    )  # fmt: skip
    last = net("Transpose", f"{layer}.1", perm=[1, 0, 2])
    joined = net("Reshape", last, net.const(0, 2 * hidden))
    scores = net("Gemm", joined, net.weight("head.w", 2 * hidden, 4), net.weight("head.b", 4))
    loss = net("SoftmaxCrossEntropyLoss", scores, "labels")
    ints = TensorProto.INT64
    inputs = {"tokens": (ints, ["length", "batch"]), "labels": (ints, ["batch"])}
    return net.model(inputs, {"loss": loss}), net.weights
