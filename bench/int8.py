"""8-bit products and convolutions by their kernels against onnxruntime, on one thread.

    python -m bench.int8

Both are run in turns, and the best of many short runs counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
from onnx import TensorProto, helper, numpy_helper

import sardonyx._native as native
from sardonyx.graph.graph import Graph, Node
from sardonyx.graph.infer import infer
from sardonyx.load import load
from sardonyx.passes import PassOptions, lower
from sardonyx.program.call import Call, Packed
from sardonyx.providers.cpu import lowered
from tests.kernels import operand, tensor

Array = np.ndarray[Any, np.dtype[Any]]

MATMULS = [  # rows, depth, columns
    (128, 768, 768), (128, 768, 3072), (128, 3072, 768), (3136, 64, 64), (3136, 64, 256),
    (784, 1152, 128), (49, 4608, 512), (49, 512, 2048), (1, 2048, 1000),
]  # fmt: skip
CONVS = [  # size, channels, maps, kernel, stride, group
    (224, 3, 64, 7, 2, 1), (56, 64, 64, 1, 1, 1), (56, 64, 64, 3, 1, 1), (56, 64, 256, 1, 1, 1),
    (28, 128, 128, 3, 1, 1), (14, 256, 256, 3, 1, 1), (7, 512, 512, 3, 1, 1),
    (7, 512, 2048, 1, 1, 1), (112, 32, 32, 3, 1, 32), (14, 384, 384, 3, 1, 384),
]  # fmt: skip


def model_of(op: str, x: Array, w: Array, **attrs: Any) -> bytes:
    """One quantized product as a model."""
    maps = w.shape[1] if op == "QLinearMatMul" else w.shape[0]
    rows = {
        "xs": np.float32(0.02), "xz": np.uint8(7), "w": w,
        "ws": np.full(maps, 0.001, np.float32), "wz": np.zeros(maps, np.int8),
        "ys": np.float32(0.5), "yz": np.uint8(9),
    }  # fmt: skip
    node = helper.make_node(op, ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"], ["y"], **attrs)
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, x.shape)],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in rows.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(model.SerializeToString())


def ours(model: bytes, x: Array) -> Callable[[], Any]:
    """The product's own kernel, on an image that already has its channels last."""
    graph: Graph = load(model).graph
    infer(graph)
    lower(graph, PassOptions())
    names = ("QConv", "QLinearMatMul")
    node: Node = next(n for n in graph.nodes if n.op.name in names)
    call = lowered(node)
    assert isinstance(call, Call)
    given = np.ascontiguousarray(np.moveaxis(x, 1, -1)) if node.op.name == "QConv" else x
    inputs: list[Any] = []
    for part in call.inputs:
        is_image = not isinstance(part, Packed) and part is not None and part.const is None
        inputs.append(None if part is None else given if is_image else operand(part, {}, ""))
    shape = node.outputs[0].tensor.static
    assert shape is not None
    y = np.empty(shape, np.uint8)
    arguments = [tensor(a) for a in inputs], [tensor(y)], list(call.ints), list(call.floats)

    def run(_: Any = (inputs, y)) -> Any:
        return native.call(call.row, *arguments)

    assert not run()
    return run


def theirs(model: bytes, x: Array) -> Callable[[], Any]:
    """The model by onnxruntime on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"x": x})


def best(runs: list[Callable[[], Any]], rounds: int = 20) -> list[float]:
    """The shortest time of each, taken in turns."""
    found = [float("inf")] * len(runs)
    for _ in range(rounds):
        for i, run in enumerate(runs):
            began = time.perf_counter()
            run()
            found[i] = min(found[i], time.perf_counter() - began)
    return found


def show(name: str, n_ops: int, model: bytes, x: Array) -> None:
    """One line: billions of operations per second, and how much faster."""
    mine, other = best([ours(model, x), theirs(model, x)])
    speeds = n_ops / mine / 1e9, n_ops / other / 1e9
    print(f"{name:34} {speeds[0]:7.0f} {speeds[1]:7.0f} GOP/s {other / mine:6.2f}x")


def main() -> None:
    """All layers."""
    rng = np.random.default_rng(0)
    print(f"{native.isa:34} sardonyx   onnxruntime")
    for m, k, n in MATMULS:
        x = rng.integers(0, 256, (m, k)).astype(np.uint8)
        w = rng.integers(-128, 128, (k, n)).astype(np.int8)
        show(f"{m} x {k} x {n}", 2 * m * k * n, model_of("QLinearMatMul", x, w), x)
    for size, channels, maps, kernel, stride, group in CONVS:
        x = rng.integers(0, 256, (1, channels, size, size)).astype(np.uint8)
        w = rng.integers(-128, 128, (maps, channels // group, kernel, kernel)).astype(np.int8)
        attrs = {"pads": [kernel // 2] * 4, "strides": [stride] * 2, "group": group}
        n_ops = 2 * (size // stride) ** 2 * int(w.size)
        name = f"{size}² {channels}->{maps} {kernel}x{kernel}/{stride} in {group}"
        show(name, n_ops, model_of("QLinearConv", x, w, **attrs), x)


if __name__ == "__main__":
    main()
