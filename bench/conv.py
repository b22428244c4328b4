"""Layers of convolution networks on one thread: GFLOP/s beside the FMA limit and ONNX Runtime."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime

import sardonyx._native as native
from sardonyx.cli.limits import Multiplying
from sardonyx.graph.build import Builder, constant
from sardonyx.graph.dtype import F32
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Value
from sardonyx.ops.declare import INTERNAL
from sardonyx.program.call import Call, Packed
from sardonyx.providers.cpu import lowered
from sardonyx.weights.const import Held
from tests.kernels import tensor

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Layer:
    """A convolution: image, weights, stride."""

    name: str
    size: int  # of the image, along both axes
    channels: int
    maps: int
    kernel: int
    stride: int = 1
    group: int = 1
    op: str = "Conv"

    def attrs(self) -> dict[str, Any]:
        pad = self.kernel // 2 if self.op == "Conv" and self.kernel % 2 else 0
        return {"strides": [self.stride] * 2, "pads": [pad] * 4, "group": self.group}

    def weights(self) -> Array:
        shape = (self.maps, self.channels // self.group)
        if self.op == "ConvTranspose":
            shape = (self.channels, self.maps // self.group)
        return _random(*shape, self.kernel, self.kernel)


LAYERS: Final = (
    Layer("resnet first", 224, 3, 64, 7, 2),
    Layer("resnet 3x3", 56, 64, 64, 3),
    Layer("resnet 1x1", 56, 64, 256, 1),
    Layer("resnet 1x1", 56, 256, 64, 1),
    Layer("resnet 3x3/2", 56, 128, 128, 3, 2),
    Layer("resnet 3x3", 28, 128, 128, 3),
    Layer("resnet 1x1/2", 56, 256, 512, 1, 2),
    Layer("resnet 1x1", 28, 512, 128, 1),
    Layer("resnet 3x3", 14, 256, 256, 3),
    Layer("resnet 1x1", 14, 1024, 256, 1),
    Layer("resnet 3x3", 7, 512, 512, 3),
    Layer("resnet 1x1", 7, 512, 2048, 1),
    Layer("mobile first", 224, 3, 32, 3, 2),
    Layer("mobile 1x1", 112, 32, 16, 1),
    Layer("mobile 1x1", 112, 16, 96, 1),
    Layer("mobile 1x1", 56, 24, 144, 1),
    Layer("mobile 1x1", 56, 144, 24, 1),
    Layer("mobile 1x1", 14, 384, 64, 1),
    Layer("mobile 1x1", 7, 960, 160, 1),
    Layer("mobile dw", 112, 32, 32, 3, 1, 32),
    Layer("mobile dw/2", 112, 96, 96, 3, 2, 96),
    Layer("mobile dw", 56, 144, 144, 3, 1, 144),
    Layer("mobile dw", 28, 192, 192, 3, 1, 192),
    Layer("mobile dw", 14, 384, 384, 3, 1, 384),
    Layer("mobile dw", 7, 960, 960, 3, 1, 960),
    Layer("efficient dw", 28, 240, 240, 5, 1, 240),
    Layer("efficient dw/2", 56, 144, 144, 5, 2, 144),
    Layer("convnext dw", 56, 96, 96, 7, 1, 96),
    Layer("convnext dw", 14, 384, 384, 7, 1, 384),
    Layer("yolo first", 640, 3, 16, 3, 2),
    Layer("yolo 3x3/2", 320, 16, 32, 3, 2),
    Layer("yolo 3x3", 160, 16, 16, 3),
    Layer("yolo 3x3", 80, 32, 32, 3),
    Layer("yolo 3x3", 80, 80, 80, 3),
    Layer("yolo 3x3", 40, 64, 64, 3),
    Layer("yolo 3x3", 20, 128, 128, 3),
    Layer("unet 3x3", 256, 32, 32, 3),
    Layer("unet 3x3", 128, 64, 64, 3),
    Layer("unet 3x3", 16, 512, 512, 3),
    Layer("unet up", 16, 512, 256, 2, 2, 1, "ConvTranspose"),
    Layer("unet up", 128, 64, 32, 2, 2, 1, "ConvTranspose"),
    Layer("resnext 3x3", 56, 128, 128, 3, 1, 32),
    Layer("regnet 3x3", 28, 192, 192, 3, 1, 8),
)  # fmt: skip


def _random(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def theirs(layer: Layer, x: Array, w: Array) -> Callable[[], Array]:
    """The layer as a model of one node in ONNX Runtime, on one thread."""
    info = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node(layer.op, ["x", "w"], ["y"], **layer.attrs())
    graph = onnx.helper.make_graph(
        [node],
        "layer",
        [info("x", onnx.TensorProto.FLOAT, x.shape)],
        [info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(w, "w")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    model.ir_version = 8
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    value = onnxruntime.OrtValue.ortvalue_from_numpy(x)

    def run() -> Array:
        (y,) = session.run_with_ort_values(None, {"x": value})
        return y.numpy()  # type: ignore[no-any-return]

    return run


def ours(layer: Layer, x: Array, w: Array) -> Callable[[], Array]:
    """The layer with the channels last, by its kernel."""
    last = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    graph = Graph()
    value = Value("x", Fact(F32, last.shape))
    graph.inputs.append(value)
    builder = Builder(graph, graph.scope)
    node = builder.node(layer.op, value, constant(Held(w)), domain=INTERNAL, **layer.attrs())
    call = lowered(node)
    assert isinstance(call, Call)
    packed = call.inputs[1]
    assert isinstance(packed, Packed)
    weights = np.empty(packed.size_bytes, np.uint8)
    native.call(packed.row, [tensor(w)], [tensor(weights)], list(packed.ints), [])
    y = np.empty(node.outputs[0].tensor.static, np.float32)
    keep = y, last, weights  # addresses alone do not
    arguments = [tensor(last), tensor(weights)], [tensor(y)], list(call.ints), list(call.floats)

    def run() -> Array:
        if error := native.call(call.row, *arguments):
            raise RuntimeError(error)
        return keep[0]

    return run


def seconds(runs: Sequence[Callable[[], Any]], rounds: int) -> list[float]:
    """The shortest time of each, taken in turns."""
    best = [float("inf")] * len(runs)
    for _ in range(rounds):
        for i, run in enumerate(runs):
            start = time.thread_time()
            run()
            best[i] = min(best[i], time.thread_time() - start)
    return best


def limit() -> float:
    """GFLOP/s of multiplications that wait for nothing."""
    return Multiplying("float32", 1).turn() / 1e9


def main() -> None:
    """Prints a line for each layer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("filter", nargs="?", default="", help="part of the names of layers")
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    print(f"limit {limit():.0f} GFLOP/s")
    for layer in LAYERS:
        if given.filter not in layer.name:
            continue
        x, w = _random(1, layer.channels, layer.size, layer.size), layer.weights()
        runs = ours(layer, x, w), theirs(layer, x, w)
        found, expected = np.moveaxis(runs[0](), -1, 1), runs[1]()
        error = np.abs(found - expected).max() / np.abs(expected).max()
        mine, rival = seconds(runs, given.rounds)
        pixels = layer.size**2 if layer.op == "ConvTranspose" else expected[0, 0].size
        flops = 2 * pixels * w.size
        print(
            f"{layer.name:14} {layer.size:3}x{layer.channels:<4} -> {layer.maps:<4} "
            f"{mine * 1e6:8.0f} us {flops / mine / 1e9:6.1f} GFLOP/s   ORT {rival * 1e6:8.0f} us "
            f"{rival / mine:5.2f}x   error {error:.0e}"
        )


if __name__ == "__main__":
    main()
