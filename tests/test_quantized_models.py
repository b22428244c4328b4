"""Small networks quantized by onnxruntime's own tools, against onnxruntime; no step in Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi._pybind_state import (  # type: ignore[import-untyped]
    quantize_matmul_4bits,
    quantize_matmul_8bits,
)

import sardonyx

Array = np.ndarray[Any, np.dtype[Any]]
OPSET = 21
QUANTIZERS = {4: quantize_matmul_4bits, 8: quantize_matmul_8bits}


class Net:
    """Writes a network of one input node by node; weights are random and the same each time."""

    def __init__(self, *shape: Any) -> None:
        self.rng = np.random.default_rng(7)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.input = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)

    def weight(self, *shape: int) -> str:
        fan = max(int(np.prod(shape[1:] if len(shape) > 1 else shape)), 1)
        array = (self.rng.standard_normal(shape) / np.sqrt(fan)).astype(np.float32)
        return self.const(array)

    def const(self, array: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def __call__(self, op: str, *inputs: str, outputs: int = 1, **attrs: Any) -> str:
        names = [f"{op}{len(self.nodes)}_{i}" for i in range(outputs)]
        node = helper.make_node(op, inputs, names, name=f"n{len(self.nodes)}", **attrs)
        self.nodes.append(node)
        return names[0]

    def model(self, y: str) -> onnx.ModelProto:
        out = helper.make_tensor_value_info(y, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "net", [self.input], [out], self.weights)
        imports = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=10)
        return onnx.shape_inference.infer_shapes(model)


def mlp() -> onnx.ModelProto:
    n = Net("B", 24)
    h = n("Relu", n("Gemm", "x", n.weight(48, 24), n.weight(48), transB=1))
    h = n("Sigmoid", n("Add", n("MatMul", h, n.weight(48, 32)), n.weight(32)))
    return n.model(n("Softmax", n("MatMul", h, n.weight(32, 10)), axis=-1))


def convnet() -> onnx.ModelProto:
    n = Net("B", 3, 16, 16)
    h = n("Relu", n("Conv", "x", n.weight(8, 3, 3, 3), n.weight(8), pads=[1] * 4))
    h = n("MaxPool", h, kernel_shape=[2, 2], strides=[2, 2])
    a = n("LeakyRelu", n("Conv", h, n.weight(8, 1, 3, 3), n.weight(8), pads=[1] * 4, group=8))
    h = n("Concat", n("Add", a, h), n("Mul", a, h), axis=1)
    h = n("AveragePool", h, kernel_shape=[2, 2], strides=[2, 2])
    h = n("Conv", n("Clip", h, n.const(np.float32(-1)), n.const(np.float32(3))),
          n.weight(16, 16, 1, 1), n.weight(16))  # fmt: skip
    h = n("Flatten", n("GlobalAveragePool", n("Mul", h, n("Sigmoid", h))))
    return n.model(n("Gemm", h, n.weight(16, 10), n.weight(10)))


def encoder() -> onnx.ModelProto:
    """One layer of a transformer."""
    n = Net("B", "S", 32)

    def linear(x: str, inner: int, outer: int) -> str:
        return n("Add", n("MatMul", x, n.weight(inner, outer)), n.weight(outer))

    def heads(x: str, *perm: int) -> str:
        split = n("Reshape", x, n.const(np.array([0, 0, 4, 8], np.int64)))
        return n("Transpose", split, perm=list(perm))

    def norm(x: str) -> str:
        return n("LayerNormalization", x, n.const(np.ones(32, np.float32)), n.weight(32), axis=-1)

    q, k, v = (linear("x", 32, 32) for _ in range(3))
    scores = n("Div", n("MatMul", heads(q, 0, 2, 1, 3), heads(k, 0, 2, 3, 1)),
               n.const(np.float32(np.sqrt(8))))  # fmt: skip
    y = n("Transpose", n("MatMul", n("Softmax", scores, axis=-1), heads(v, 0, 2, 1, 3)),
          perm=[0, 2, 1, 3])  # fmt: skip
    y = n("Reshape", y, n.const(np.array([0, 0, 32], np.int64)))
    x = norm(n("Add", "x", linear(y, 32, 32)))
    return n.model(norm(n("Add", x, linear(n("Gelu", linear(x, 32, 64)), 64, 32))))


def recurrent() -> onnx.ModelProto:
    n = Net("S", "B", 12)
    w, r, bias = n.weight(2, 64, 12), n.weight(2, 64, 16), n.weight(2, 128)
    y = n("LSTM", "x", w, r, bias, direction="bidirectional", hidden_size=16)
    y = n("Reshape", n("Transpose", y, perm=[0, 2, 1, 3]), n.const(np.array([0, 0, 32], np.int64)))
    return n.model(n("MatMul", y, n.weight(32, 5)))


SHAPES: dict[Callable[[], onnx.ModelProto], tuple[int, ...]] = {
    mlp: (5, 24), convnet: (2, 3, 16, 16), encoder: (2, 7, 32), recurrent: (6, 3, 12),
}  # fmt: skip


def feeds_of(net: Callable[[], onnx.ModelProto], seed: int = 0) -> dict[str, Array]:
    x = np.random.default_rng(seed).standard_normal(SHAPES[net])
    return {"x": x.astype(np.float32)}


class Reader:
    """Feeds to calibrate with."""

    def __init__(self, net: Callable[[], onnx.ModelProto]) -> None:
        self.rest: Iterator[dict[str, Array]] = iter([feeds_of(net, i) for i in range(4)])

    def get_next(self) -> dict[str, Array] | None:
        return next(self.rest, None)


def dynamic(net: Callable[[], onnx.ModelProto], folder: Path, **options: Any) -> None:
    from onnxruntime.quantization import quantize_dynamic  # type: ignore[import-untyped]

    onnx.save(net(), folder / "plain.onnx")
    quantize_dynamic(folder / "plain.onnx", folder / "model.onnx", **options)


def static(net: Callable[[], onnx.ModelProto], folder: Path, **options: Any) -> None:
    from onnxruntime.quantization import (  # type: ignore[import-untyped]
        QuantFormat,
        QuantType,
        quantize_static,
    )

    onnx.save(net(), folder / "plain.onnx")
    kinds = {k: QuantType[v] for k, v in options.items() if k.endswith("_type")}
    options["quant_format"] = QuantFormat[options.get("quant_format", "QDQ")]
    quantize_static(folder / "plain.onnx", folder / "model.onnx", Reader(net), **options | kinds)


def nbits(net: Callable[[], onnx.ModelProto], folder: Path, **options: Any) -> None:
    """Each product with weights becomes a MatMulNBits, in blocks of 16."""
    model, bits = net(), options["bits"]
    weights = {w.name: numpy_helper.to_array(w) for w in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type != "MatMul" or node.input[1] not in weights:
            continue
        w = np.ascontiguousarray(weights[node.input[1]])
        k, n = w.shape
        packed = np.zeros((n, k // 16, 16 * bits // 8), np.uint8)
        scales, zeros = (
            np.zeros(n * (k // 16), np.float32),
            np.zeros(n * (k * bits // 128), np.uint8),
        )
        QUANTIZERS[bits](packed, w, scales, zeros, 16, n, k, options.get("is_symmetric", False))
        parts = (packed, scales) if options.get("is_symmetric") else (packed, scales, zeros)
        names = [f"{node.name}_{i}" for i in range(len(parts))]
        model.graph.initializer.extend(map(numpy_helper.from_array, parts, names))
        made = helper.make_node(
            "MatMulNBits", [node.input[0], *names], node.output, domain="com.microsoft",
            K=k, N=n, bits=bits, block_size=16,
        )  # fmt: skip
        node.CopyFrom(made)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, folder / "model.onnx")


def bnb4(net: Callable[[], onnx.ModelProto], folder: Path, **options: Any) -> None:
    from onnxruntime.quantization.matmul_bnb4_quantizer import (  # type: ignore[import-untyped]
        MatMulBnb4Quantizer,
    )

    quantizer = MatMulBnb4Quantizer(net(), block_size=16, **options)
    quantizer.process()
    quantizer.model.save_model_to_file(str(folder / "model.onnx"))


U8S8 = {"activation_type": "QUInt8", "weight_type": "QInt8"}
S8S8 = {"activation_type": "QInt8", "weight_type": "QInt8"}
U8U8 = {"activation_type": "QUInt8", "weight_type": "QUInt8"}
U16 = {"activation_type": "QUInt16", "weight_type": "QInt8"}
# How far a result may be off: a step of 8 bits falls either way where numbers that are equal but
# for their last bits are on both sides of a half.
STEP = 1 / 64
RARE = 0.05  # the share of results that may be off at all
MODELS: list[tuple[Any, Callable[[], onnx.ModelProto], dict[str, Any], float]] = [
    *((dynamic, net, {}, STEP) for net in SHAPES),
    (dynamic, mlp, {"per_channel": True}, STEP),
    (dynamic, recurrent, {"per_channel": True}, STEP),
    *(
        (static, net, {"quant_format": form, **kinds}, STEP)
        for net in (mlp, convnet, encoder)
        for form, kinds in (
            ("QOperator", U8S8), ("QOperator", U8U8), ("QDQ", U8S8), ("QDQ", S8S8), ("QDQ", U16),
        )
        if not (net is encoder and form == "QOperator" and kinds is U8U8)
    ),
    (static, convnet, {"quant_format": "QOperator", "per_channel": True, **U8S8}, STEP),
    (static, convnet, {"quant_format": "QDQ", "per_channel": True, **S8S8}, STEP),
    *((nbits, encoder, {"bits": bits}, 1e-5) for bits in (4, 8)),
    (nbits, encoder, {"bits": 4, "is_symmetric": True}, 1e-5),
    *((bnb4, encoder, {"quant_type": kind}, 1e-5) for kind in (0, 1)),
]  # fmt: skip


def title(row: Any) -> str:
    return "-".join(str(v) for v in (row[0].__name__, row[1].__name__, *row[2].values()))


onnxruntime.set_default_logger_severity(4)


@pytest.mark.parametrize("row", MODELS, ids=title)
def test_quantized_by_onnxruntime(row: Any, tmp_path: Path) -> None:
    quantize, net, options, tolerance = row
    quantize(net, tmp_path, **options)
    path = str(tmp_path / "model.onnx")
    # Without its optimizer, whose results are several steps away from what the model says.
    theirs = onnxruntime.InferenceSession(path, plain(), providers=["CPUExecutionProvider"])
    ours = sardonyx.InferenceSession(path)
    for seed in range(3):
        feeds = feeds_of(net, 10 + seed)
        (want,), (got,) = theirs.run(None, feeds), ours.run(None, feeds)
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        gap = np.abs(got - want) / np.abs(want).max()
        assert gap.max() <= tolerance
        assert (gap > 1e-4).mean() <= RARE
    assert ours._compiled.program.python_steps == 0


def plain() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1  # several quantize parts of a batch of states by themselves
    return options
