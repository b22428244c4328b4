"""Steps that write their output over an input: equal results, in less memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.graph.infer import infer
from sardonyx.load import load
from sardonyx.program.native import NativeSegment
from sardonyx.program.run import bind
from tests.graphs import run_graph

Array = Any
MIB = 1 << 20


def numbers(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


class Net:
    """A model under construction, from `x` to `y`; constants are made up."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(self, op: str, *inputs: str, to: str = "", **attrs: Any) -> str:
        to = to or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [to], **attrs))
        return to

    def const(self, array: Array) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def conv(self, x: str, c: int, maps: int, kernel: int = 1, group: int = 1) -> str:
        """A convolution that keeps the image's size, with a bias."""
        w = self.const(numbers(maps, c // group, kernel, kernel) / (c * kernel))
        return self.add(
            "Conv", x, w, self.const(numbers(maps)), pads=[kernel // 2] * 4, group=group
        )

    def product(self, x: str, k: int, n: int) -> str:
        """A matrix product, with a bias."""
        w = np.roll(numbers(k, n), len(self.constants)) / np.float32(k**0.5)  # unlike all others
        product = self.add("MatMul", x, self.const(w))
        return self.add("Add", product, self.const(numbers(n)))

    def model(self, y: str, shape: list[Any]) -> bytes:
        # A small output, whose block is too small for what the arena holds.
        self.add("ReduceSumSquare", y, self.const(np.array([1])), to="y")
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
        out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "g", [x], [out], self.constants)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        return bytes(made.SerializeToString())


def checked(model: bytes, x: Array) -> int:
    """Bytes of the arena of a run, which gives what the references give."""
    graph = load(model).graph
    infer(graph)
    results = run_graph(graph, {"x": x})
    options = sardonyx.SessionOptions()
    for options.intra_op_num_threads in (1, 2):  # one runs the items of a step in their order
        session = sardonyx.InferenceSession(model, options)
        for found, wanted in zip(session.run(None, {"x": x}), results, strict=True):
            np.testing.assert_allclose(found, wanted, 1e-4, 1e-4 * np.abs(wanted).max())
    program = session._compiled.program
    dims = bind(program, {"x": x})
    total = 0
    for segment in program.segments:
        assert isinstance(segment, NativeSegment)
        runnable = segment._runnable
        assert runnable is not None
        for report in runnable.memory([dims.get(name, -1) for name in segment.names]):
            total = max(total, report["arena_bytes"])
    return total


def residual(kernel: int, group: int) -> tuple[bytes, Array]:
    """Blocks of a residual network: each sum goes where the one before it was."""
    net = Net()
    last = net.add("Exp", "x")
    for _ in range(3):
        inner = net.add("Relu", net.conv(last, 64, 16))
        outer = net.conv(net.conv(inner, 16, 64), 64, 64, kernel, group)
        last = net.add("Relu", net.add("Add", outer, last))
    return net.model(last, ["N", 64, 32, 32]), numbers(4, 64, 32, 32)


@pytest.mark.parametrize(("kernel", "group"), [(1, 1), (3, 1), (3, 64), (3, 2)])
def test_residual_blocks(kernel: int, group: int) -> None:
    model, x = residual(kernel, group)
    # Winograd's patches, and its weights as it transforms them.
    prepared = 2.25 * MIB + 36 * 64 * 64 * 4 if (kernel, group) == (3, 1) else 0
    assert checked(model, x) < 2.3 * MIB + prepared  # and two tensors


def transformer(width: int) -> tuple[bytes, Array]:
    net = Net()
    last = net.add("Exp", "x")
    for _ in range(3):
        up = net.add("Relu", net.product(last, width, 2 * width))
        last = net.add("Add", last, net.product(up, 2 * width, width))
    return net.model(last, ["N", "S", width]), numbers(2, 64, width) / 4


def test_residual_products() -> None:
    model, x = transformer(256)
    assert checked(model, x) == 3 * 2 * 64 * 256 * 4  # the stream, and the wide layer


def test_scaled_residual_products() -> None:
    """A layer whose result is scaled before it is added, and an activation before that."""
    net = Net()
    last = net.add("Exp", "x")
    for _ in range(3):
        down = net.add("Relu", net.product(last, 256, 64))
        scaled = net.add("Mul", net.product(down, 64, 256), net.const(numbers(256)))
        last = net.add("Add", last, net.add("Tanh", scaled))
    model = net.model(last, ["N", "S", 256])
    assert checked(model, numbers(2, 64, 256) / 4) == 5 * 2 * 64 * 64 * 4


def test_operands_of_a_matmul_are_not_overwritten() -> None:
    """A layer with a residual of its own input, also by way of another shape."""
    for through in ("", "Reshape"):
        net = Net()
        last = net.add("Exp", "x")
        for _ in range(3):
            seen = last
            if through:
                seen = net.add("Reshape", last, net.const(np.array([0, -1, 40])))
            last = net.add("Add", net.product(seen, 40, 40), last)
        checked(net.model(last, ["N", 50, 40]), numbers(3, 50, 40) / 4)
    net = Net()
    last = net.add("Exp", "x")
    for kernel in (1, 3, 3):
        last = net.add("Relu", net.add("Add", net.conv(last, 16, 16, kernel), last))
    checked(net.model(last, ["N", 16, 20, 20]), numbers(2, 16, 20, 20))


def inception(net: Net) -> str:
    """Branches of several layers each, all of which end where they are joined."""
    x = net.add("Exp", "x")
    wide = net.conv(net.add("Relu", net.conv(x, 8, 16)), 16, 40, 3)
    deep = net.conv(net.conv(x, 8, 8, 3), 8, 33, 3)
    thin = net.conv(net.conv(x, 8, 24), 24, 24, 3, 24)
    pooled = net.add("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4)
    parts = [net.add("Relu", p) for p in (wide, deep, thin)]
    return net.add("Concat", *parts, net.conv(pooled, 8, 31), axis=1)


def upward(net: Net) -> str:
    """A skip connection next to an upsampled input."""
    kept = net.add("Relu", net.conv("x", 8, 64))
    below = net.conv(net.add("MaxPool", kept, kernel_shape=[2, 2], strides=[2, 2]), 64, 64, 3)
    w = net.const(numbers(64, 64, 2, 2) / 8)
    up = net.add("ConvTranspose", below, w, strides=[2, 2])
    return net.add("Concat", kept, up, axis=1)


def head(net: Net) -> str:
    """Features of several sizes, brought to one."""
    scales = [net.const(np.array([1, 1, s, s], np.float32)) for s in (2, 4)]
    small = net.add("AveragePool", "x", kernel_shape=[2, 2], strides=[2, 2])
    least = net.add("AveragePool", small, kernel_shape=[2, 2], strides=[2, 2])
    parts = [
        net.add("Resize", net.conv(least, 8, 48), "", scales[1], mode="linear"),
        net.add("Resize", net.conv(small, 8, 48), "", scales[0], mode="nearest"),
        net.conv("x", 8, 48, 3),
    ]
    return net.add("Concat", *parts, axis=1)


def nested(net: Net) -> str:
    """Joined parts of what is joined again."""
    inner = net.add("Concat", *(net.conv("x", 8, maps, 3) for maps in (16, 50, 30)), axis=1)
    twice = net.conv("x", 8, 16)
    return net.add("Concat", twice, inner, net.conv("x", 8, 16, 3), twice, axis=1)


@pytest.mark.parametrize(
    ("build", "maps", "most"),
    [(inception, 128, 1.6), (upward, 128, 1.7), (head, 144, 1.3), (nested, 144, 1.2)],
)
def test_concatenations_along_channels(build: Any, maps: int, most: float) -> None:
    """Concat inputs are written directly into its output: little memory is needed beside it."""
    net = Net()
    model = net.model(net.conv(build(net), maps, 8), ["N", 8, 64, 64])
    assert checked(model, numbers(2, 8, 64, 64) / 4) <= most * 2 * 64 * 64 * maps * 4


def test_concat_may_be_an_output() -> None:
    net = Net()
    net.add("Concat", *(net.conv("x", 8, maps) for maps in (5, 7)), axis=1, to="joined")
    checked(ending(net.model("joined", ["N", 8, 6, 6])), numbers(3, 8, 6, 6))


def ending(model: bytes) -> bytes:
    """A model that gives what its last node reads."""
    proto = onnx.load_from_string(model)
    proto.graph.output[0].name = proto.graph.node[-1].input[0]
    del proto.graph.node[-1]
    return bytes(proto.SerializeToString())


def test_nested_concats_along_different_axes() -> None:
    """A Concat of rows cannot be written into one of columns, where its rows are strided."""
    net = Net()
    below = net.add("Concat", net.product("x", 16, 16), net.product("x", 16, 16), axis=0)
    beside = net.product(net.add("Concat", "x", "x", axis=0), 16, 16)
    whole = net.add("Softmax", net.add("Concat", below, beside, axis=1))
    checked(net.model(net.product(whole, 32, 16), ["N", 16]), numbers(20, 16))


def test_concat_inputs_at_other_offsets_are_not_overwritten() -> None:
    """The first part of one whole becomes the last of another of the same size."""
    net = Net()
    first = net.add("Softmax", net.product("x", 16, 16))
    half = [net.const(np.array([n])) for n in (0, 100)]
    short = net.add("Slice", net.product("x", 16, 16), *half)
    whole = net.add("Concat", first, net.add("Softmax", short), axis=0)
    last = net.add("Add", first, net.add("ReduceMax", whole, keepdims=0))
    short = net.add("Softmax", net.add("Slice", net.product(last, 16, 16), *half))
    whole = net.add("Concat", short, last, axis=0)
    checked(net.model(net.product(whole, 16, 16), ["N", 16]), numbers(200, 16))


def grown(seed: int) -> tuple[bytes, Array]:
    """A random network of everything that may be written in place, in any order and nesting."""
    rng = np.random.default_rng(seed)
    net, values = Net(), [("x", 8)]
    for _ in range(14):
        (x, c), (y, d) = (values[-1 - rng.integers(0, min(4, len(values)))] for _ in range(2))
        maps = int(rng.choice([5, 8, 16, 24, 33]))
        match int(rng.integers(0, 9)):
            case 0 | 1:
                made = net.conv(x, c, maps, int(rng.choice([1, 3])))
            case 2:
                made, maps = net.conv(x, c, c, 3, c), c
            case 3:
                made = net.add("Relu" if rng.integers(0, 2) else "Tanh", x)
                maps = c
            case 4 | 5:
                made, maps = net.add("Concat", x, y, axis=1), c + d
            case 6:
                scale = net.const(np.array([1, 1, 2, 2], np.float32))
                small = net.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
                made, maps = net.add("Resize", small, "", scale, mode="linear"), c
            case _:
                inner = net.conv(x, c, d, int(rng.choice([1, 3])))
                if rng.integers(0, 2):
                    inner = net.add("Mul", inner, net.add("Sigmoid", inner))
                made, maps = net.add("Add", inner, y), d
        values.append((made, maps))
    parts = [net.conv(v, c, 8) for v, c in values[-3:]]
    last = net.add("Concat", *parts, axis=1)
    return net.model(last, ["N", 8, 14, 18]), numbers(2, 8, 14, 18) / 4


@pytest.mark.parametrize("seed", range(12))
def test_random_networks(seed: int) -> None:
    checked(*grown(seed))


@pytest.mark.parametrize("seed", range(12))
def test_random_networks_with_more_outputs(seed: int) -> None:
    """Blocks of outputs hold other values until they are made, parts of them included."""
    model, x = grown(seed)
    proto = onnx.load_from_string(model)
    made = [n.output[0] for n in proto.graph.node[:-1] if n.op_type in ("Conv", "Concat", "Add")]
    for name in made[seed % 3 :: 3]:
        proto.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    checked(proto.SerializeToString(), x)


def test_a_concat_input_that_is_read_later() -> None:
    net = Net()
    part = net.add("Softmax", "x")
    whole = net.add("Concat", part, net.add("Softmax", net.add("Exp", "x")), axis=0)
    checked(net.model(net.add("Add", whole, part), [1, 40_000]), numbers(1, 40_000))


def test_output_blocks_are_reused_before_they_are_written() -> None:
    net = Net()
    second = net.product(net.product("x", 64, 64), 64, 64)
    model = ending(net.model(net.product(second, 64, 256), ["N", 64]))
    x = numbers(128, 64)
    assert checked(model, x) == x.nbytes  # the first shares the output's bytes


@pytest.mark.parametrize("heads", [4, 20])
def test_attention_in_place_of_its_queries(heads: int) -> None:
    """As many heads as rows is the case in which a wrong order of axes would go unnoticed."""
    rows, width = 20, 16 * heads
    net = Net()
    x = net.add("Exp", "x")

    def split(k: str) -> str:
        shape = net.const(np.array([0, rows, heads, 16]))
        return net.add("Transpose", net.add("Reshape", k, shape), perm=[0, 2, 1, 3])

    q, k, v = (split(net.product(x, width, width)) for _ in range(3))
    k = net.add("Transpose", k, perm=[0, 1, 3, 2])
    scores = net.add("Mul", net.add("MatMul", q, k), net.const(np.array(0.25, np.float32)))
    sums = net.add("MatMul", net.add("Softmax", scores, axis=-1), v)
    transposed = net.add("Transpose", sums, perm=[0, 2, 1, 3])
    made = net.add("Reshape", transposed, net.const(np.array([0, rows, width])))
    model = net.model(net.add("Add", net.product(made, width, width), x), ["N", rows, width])
    assert checked(model, numbers(9, rows, width) / 4) == 4 * 9 * rows * width * 4
