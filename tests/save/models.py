"""Models that a saved file must bring back, each with inputs to run it on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

Feeds = dict[str, Any]
Case = tuple[onnx.ModelProto, Feeds]


def f32(*shape: int) -> Any:
    """Random numbers, the same for the same shape."""
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def text(source: str) -> onnx.ModelProto:
    """A model from onnx's text form."""
    return parser.parse_model(source)


def with_tensor(model: onnx.ModelProto, name: str, array: Any) -> onnx.ModelProto:
    """The model with an initializer more."""
    model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def branches() -> Case:
    """Both branches have an initializer of one name, and read values around them."""
    then = helper.make_graph(
        [helper.make_node("Add", ["doubled", "own"], ["r"]), helper.make_node("Neg", ["r"], ["n"])],
        "then",
        [],
        [helper.make_tensor_value_info("n", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.float32([1, 2]), "own")],
    )
    other = helper.make_graph(
        [helper.make_node("Mul", ["x", "own"], ["r"])],
        "else",
        [],
        [helper.make_tensor_value_info("r", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.float32([3, 4]), "own")],
    )
    nodes = [
        helper.make_node("Add", ["x", "x"], ["doubled"]),
        helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other),
    ]
    graph = helper.make_graph(
        nodes,
        "branches",
        [
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model, {"c": np.array(True), "x": f32(3, 2)}


def loop() -> Case:
    """A body whose state passes through, with a scan output and a value from outside."""
    model = text("""<ir_version: 8, opset_import: ["": 16]>
        loops (float[2] x, int64 m) => (float[2] last, float[k, 2] all, float[2] still) {
            two = Constant <value = float {2.0}> ()
            go = Constant <value = bool {1}> ()
            last, still, all = Loop <body = step (int64 i, bool on, float[2] s, float[2] t)
                => (bool on2, float[2] s2, float[2] t2, float[2] out) {
                on2 = Identity (on)
                s2 = Mul (s, two)
                t2 = Identity (t)
                out = Add (s2, x)
            }> (m, go, x, x)
        }""")
    return model, {"x": f32(2), "m": np.array(3)}


def scan() -> Case:
    model = text("""<ir_version: 8, opset_import: ["": 16]>
        scans (float[2] x, float[n, 2] xs) => (float[2] total, float[n, 2] sums) {
            total, sums = Scan <num_scan_inputs = 1, body = step (float[2] s, float[2] e)
                => (float[2] s2, float[2] out) {
                s2 = Add (s, e)
                out = Identity (s2)
            }> (x, xs)
        }""")
    return model, {"x": f32(2), "xs": f32(3, 2)}


def absent() -> Case:
    """Optional inputs left out in the middle and at the end, outputs left out too."""
    model = text("""<ir_version: 7, opset_import: ["": 13]>
        absent (float[5, 1, 3] x, float[1, 8, 3] w, float[1, 8, 2] r, float[1, 1, 2] h, float high)
            => (float[1, 1, 2] last, float[5, 1, 3] low) {
            , last = LSTM <hidden_size = 2> (x, w, r, , , h)
            low = Clip (x, , high)
        }""")
    feeds = {"x": f32(5, 1, 3), "w": f32(1, 8, 3), "r": f32(1, 8, 2), "h": f32(1, 1, 2)}
    return model, feeds | {"high": np.array(0.5, np.float32)}


def strings() -> Case:
    model = text("""<ir_version: 8, opset_import: ["": 19]>
        strings (string[n] s) => (bool[n] same, string[k] both)
        <string[2] words = {"one", "zwei"}> {
            same = Equal (s, words)
            both = Concat <axis = 0> (s, words)
        }""")
    return model, {"s": np.array(["one", "drei"], object)}


def half_bytes() -> Case:
    """Weights of 4 bits, 3 of them, so that the last byte is half full."""
    model = text("""<ir_version: 10, opset_import: ["": 21]>
        nibbles (float[1, 3] x) => (float[1, 3] y) {
            a = Cast <to = 1> (w)
            b = Cast <to = 1> (v)
            c = Add (a, x)
            y = Add (b, c)
        }""")
    with_tensor(model, "w", np.array([[1, -8, 7]], ml_dtypes.int4))
    return with_tensor(model, "v", np.array([[15, 0, 3]], ml_dtypes.uint4)), {"x": f32(1, 3)}


def short_floats() -> Case:
    model = text("""<ir_version: 8, opset_import: ["": 13]>
        short (float[2, 3] x) => (float[2, 3] y) {
            a = Cast <to = 1> (w)
            b = Cast <to = 1> (h)
            c = Add (a, x)
            y = Add (b, c)
        }""")
    with_tensor(model, "w", np.float32([[1.5, -2, 3], [0, 1e30, 1e-30]]).astype(ml_dtypes.bfloat16))
    return with_tensor(model, "h", np.float16([0.25, 1, 2])), {"x": f32(2, 3)}


def defaults() -> Case:
    """An input with a default between two without."""
    model = text("""<ir_version: 8, opset_import: ["": 13]>
        defaults (float[2] a, float[2] b, float[2] c) => (float[2] y) {
            s = Add (a, b)
            y = Mul (s, c)
        }""")
    return with_tensor(model, "b", np.float32([1, 2])), {"a": f32(2), "c": f32(2) + 1}


def functions() -> Case:
    """Two calls of one function, whose inner names come twice and clash with the graph's."""
    model = text("""<ir_version: 8, opset_import: ["": 17, "own": 1]>
        calls (float[2] x) => (float[2] y) {
            t = own.twice <k = 3.0> (x)
            u = own.twice <k = 0.5> (t)
            y = Sub (u, t)
        }
        <domain: "own", opset_import: ["": 17]>
        twice <k> (x) => (u) {
            c = Constant <value_float: float = @k> ()
            t = Mul (x, c)
            u = Add (t, c)
        }""")
    return model, {"x": f32(2)}


def sparse() -> Case:
    model = text("""<ir_version: 8, opset_import: ["": 13]>
        sparse (float[2, 3] x) => (float[2, 3] y) { y = Add (x, w) }""")
    values = numpy_helper.from_array(np.float32([5, 6]), "w")
    places = numpy_helper.from_array(np.int64([1, 5]), "w_places")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [2, 3]))
    return model, {"x": f32(2, 3)}


def exits() -> Case:
    """Outputs that are an input, a constant, and one value twice."""
    model = text("""<ir_version: 8, opset_import: ["": 13]>
        exits (float[2] x) => (float[2] same, float[2] w, float[2] first, float[2] second)
        <float[2] w = {1, 2}> {
            same = Identity (x)
            first = Add (x, w)
            second = Identity (first)
        }""")
    return model, {"x": f32(2)}


def sequences() -> Case:
    model = text("""<ir_version: 8, opset_import: ["": 14]>
        lists (float[4] x) => (seq(float[k]) parts, float[j] joined) {
            sizes = Constant <value_ints = [1, 3]> ()
            made = SplitToSequence <axis = 0> (x, sizes)
            parts = Identity (made)
            joined = ConcatFromSequence <axis = 0> (parts)
        }""")
    return model, {"x": f32(4)}


def attributes() -> Case:
    """Attributes of every plain kind: a tensor, a text, lists, numbers, defaults among them."""
    model = text("""<ir_version: 8, opset_import: ["": 16, "ai.onnx.ml": 3]>
        attributes (float[1, 1, 5, 5] x, int64[n] k)
            => (float[1, 1, h, v] y, float[n] z, string[n] s) {
            p = AveragePool <auto_pad = "SAME_UPPER", kernel_shape = [3, 3], strides = [2, 2]> (x)
            y = LeakyRelu <alpha = 0.3> (p)
            shape = Shape (k)
            z = ConstantOfShape <value = float[1] {2.5}> (shape)
            s = ai.onnx.ml.LabelEncoder <keys_int64s = [1, 2], values_strings = ["a", "b"]> (k)
        }""")
    return model, {"x": f32(1, 1, 5, 5), "k": np.int64([2, 1, 7])}


def numbered() -> Case:
    """Names that look like those which are given to values without one."""
    model = text("""<ir_version: 7, opset_import: ["": 11]>
        numbered (float[2, 3, 4] const) => (float[2, 3, 4] Reshape, float[2, 3, 4] Softmax_1) {
            Reshape = Softmax <axis = 1> (const)
            Softmax_1 = LogSoftmax <axis = 0> (const)
        }""")
    return model, {"const": f32(2, 3, 4)}


def empty() -> Case:
    model = text("""<ir_version: 7, opset_import: ["": 13]>
        empty (float[n, 2] x) => (float[m, 2] y) { y = Concat <axis = 0> (x, none, none) }""")
    return with_tensor(model, "none", np.empty((0, 2), np.float32)), {"x": f32(3, 2)}


def opset_7() -> Case:
    model = text("""<ir_version: 3, opset_import: ["": 7]>
        seven (float[2, 3] x) => (float[2, 3] y, float[2] z) {
            a = Add (x, w)
            d = Dropout <ratio = 0.5> (a)
            y = Softmax <axis = 1> (d)
            u = Unsqueeze <axes = [0]> (y)
            s = ReduceSum <axes = [0, 2], keepdims = 0> (u)
            z = Identity (s)
        }""")
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [3]))
    return with_tensor(model, "w", f32(3)), {"x": f32(2, 3)}


def opset_9() -> Case:
    model = text("""<ir_version: 4, opset_import: ["": 9]>
        nine (float[1, 2, 4, 4] x) => (float[1, 2, 2, 8] y, float[3] top) {
            up = Upsample <mode = "nearest"> (x, scales)
            cut = Slice <axes = [2], starts = [0], ends = [2]> (up)
            y = Clip <min = -0.5, max = 0.5> (cut)
            flat = Reshape (y, shape)
            top, places = TopK <k = 3> (flat)
        }""")
    with_tensor(model, "shape", np.int64([-1]))
    return with_tensor(model, "scales", np.float32([1, 1, 2, 2])), {"x": f32(1, 2, 4, 4)}


def opset_11() -> Case:
    model = text("""<ir_version: 6, opset_import: ["": 11]>
        eleven (float[n, 3, 4] x) => (float[n, 1, 4] y, float[n, 3, 4] z, float[k, 3, 4] a) {
            s = Squeeze <axes = [0]> (one)
            y = ReduceMean <axes = [1]> (x)
            z = Pad <mode = "constant"> (x, pads, s)
            a, b = Split <axis = 2, split = [1, 3]> (x)
        }""")
    del model.graph.output[2]
    model.graph.output.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, None))
    with_tensor(model, "pads", np.zeros(6, np.int64))
    return with_tensor(model, "one", np.float32([1])), {"x": f32(2, 3, 4)}


def opset_13() -> Case:
    model = text("""<ir_version: 7, opset_import: ["": 13]>
        thirteen (float[n, 4] x) => (float[n, 2] a, float[n, 2] b, float[n] t) {
            a, b = Split <axis = 1> (x)
            axes = Constant <value_ints = [1]> ()
            t = ReduceSum <keepdims = 0> (x, axes)
        }""")
    return model, {"x": f32(3, 4)}


CASES: tuple[Callable[[], Case], ...] = (
    branches, loop, scan, absent, strings, half_bytes, short_floats, defaults, functions, sparse,
    exits, sequences, attributes, numbered, empty, opset_7, opset_9, opset_11, opset_13,
)  # fmt: skip
