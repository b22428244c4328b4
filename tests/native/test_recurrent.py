"""Recurrent kernels with packed weights, of sizes that tests/cases does not have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
import sardonyx._native as native
from sardonyx.graph.const import ArrayConst
from sardonyx.graph.constant_values import constant
from sardonyx.graph.dtype import F32
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.infer import infer_node
from sardonyx.graph.op import GRADIENT
from sardonyx.ops import lookup
from sardonyx.place.lowered import Call, Packed
from sardonyx.providers.cpu import lowered
from tests.kernels import run_call, run_splits

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def random(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32) * 0.3


class Layer:
    """A node with constant weights, and what is fed to it."""

    def __init__(self, name: str, x: Any, hidden: int, directions: int = 1, **attrs: Any) -> None:
        gates = GATES[name]
        weights = [
            random(directions, gates * hidden, x.shape[2]),
            random(directions, gates * hidden, hidden) / np.float32(np.sqrt(hidden)),
            random(directions, 2 * gates * hidden),
        ]
        self.fed: dict[Value, Any] = {}
        inputs: list[Value | None] = [self.feed(x), *(constant(ArrayConst(w)) for w in weights)]
        self.arrays: list[Any] = [x, *weights]
        self.name, self.inputs, self.attrs = name, inputs, attrs
        self.outputs = 3 if name == "LSTM" else 2

    def feed(self, array: Any) -> Value:
        value = constant(ArrayConst(np.ascontiguousarray(array)))
        value.fact = value.tensor.without_contents()
        self.fed[value] = array
        return value

    def more(self, *arrays: Any) -> Layer:
        """Adds inputs after the bias; None is one that is not given."""
        self.arrays += arrays
        self.inputs += [None if a is None else self.feed(a) for a in arrays]
        return self

    def check(self, tolerance: float = 2e-6) -> None:
        node = self._node()
        call = lowered(node)
        assert isinstance(call, Call)
        assert all(isinstance(p, Packed) for p in call.inputs[1:3])
        expected = node.op.run([None if a is None else _plain(a) for a in self.arrays], node.attrs)
        for isa in native.isas:
            for a, b in zip(run_splits(call, node, self.fed, isa), expected, strict=False):
                np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)

    def _node(self) -> Node:
        op = lookup("", self.name)
        assert op is not None
        graph = Graph()
        node = graph.add(op, self.inputs, {**op.defaults, **self.attrs}, self.outputs)
        infer_node(graph.scope, node)
        return node


def _plain(array: Any) -> Any:
    """In float64, so that the truth is more exact than what is tested."""
    return array.astype(np.float64) if array.dtype == np.float32 else array


@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize("hidden", [1, 31, 32, 33, 64, 100])
def test_sizes(name: str, hidden: int) -> None:
    for batch in (1, 2, 5, 13):
        Layer(name, random(4, batch, 7), hidden).check()


@pytest.mark.parametrize("name", GATES)
def test_long_states(name: str) -> None:
    """States of more than one pass of a product."""
    Layer(name, random(3, 2, 300), 520, 2, direction=b"bidirectional").check()


@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize("length", [0, 1, 4])
def test_units_shared_by_threads(name: str, length: int) -> None:
    """One sequence with a state that is large enough for threads to share it."""
    states = [random(1, 1, 250) for _ in range(2 if name == "LSTM" else 1)]
    linked = {"linear_before_reset": 1} if name == "GRU" else {}
    layer = Layer(name, random(length, 1, 7), 250, direction=b"reverse", **linked)
    layer.more(np.array([length], np.int32), *states).check()


@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize("direction", [b"forward", b"reverse", b"bidirectional"])
def test_lengths(name: str, direction: bytes) -> None:
    n = 2 if direction == b"bidirectional" else 1
    lens = np.array([0, 5, 3, 1, 5, 2, 4, 0, 1, 5, 5, 3, 2, 1], np.int32)
    states = [random(n, 14, 9) for _ in range(2 if name == "LSTM" else 1)]
    Layer(name, random(5, 14, 6), 9, n, direction=direction).more(lens, *states).check()


@pytest.mark.parametrize("name", GATES)
def test_batch_first(name: str) -> None:
    x = random(5, 3, 6).swapaxes(0, 1)
    states = [random(3, 2, 9) for _ in range(2 if name == "LSTM" else 1)]
    layer = Layer(name, x, 9, 2, direction=b"bidirectional", layout=1)
    layer.more(np.array([5, 2, 4], np.int32), *states).check()


def test_peepholes() -> None:
    layer = Layer("LSTM", random(4, 3, 5), 33, input_forget=1)
    layer.more(None, None, None, random(1, 99)).check()


@pytest.mark.parametrize("linear", [0, 1])
def test_linear_before_reset(linear: int) -> None:
    Layer("GRU", random(6, 3, 5), 40, linear_before_reset=linear).check()


def test_empty_sequences() -> None:
    Layer("LSTM", random(0, 3, 5), 4).check()
    Layer("GRU", random(2, 0, 5), 4).check()


def test_sequence_length_out_of_range() -> None:
    layer = Layer("GRU", random(2, 2, 5), 4).more(np.array([1, 3], np.int32))
    node = layer._node()
    call = lowered(node)
    assert isinstance(call, Call)
    with pytest.raises(RuntimeError, match=r"sequence_lens holds 3, outside \[0, 2\]"):
        run_call(call, node, layer.fed, {})


def test_threads() -> None:
    """Threads that run parts of one layer have memory of their own."""
    length, inputs, hidden = 200, 512, 256
    w, r = random(1, hidden, inputs), np.zeros((1, hidden, hidden), np.float32)
    node = helper.make_node(
        "RNN", ["x", "w", "r"], ["y"], hidden_size=hidden, activations=["Affine"]
    )
    graph = helper.make_graph(
        [node],
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [length, 1, inputs])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(r, "r")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    x = random(length, 1, inputs)
    found = []
    for threads, runs in ((1, 1), (4, 20)):
        options = sardonyx.SessionOptions()
        options.intra_op_num_threads = threads
        session = sardonyx.InferenceSession(model.SerializeToString(), options)
        found += [session.run(None, {"x": x})[0] for _ in range(runs)]
    assert all(np.array_equal(found[0], y) for y in found)
    np.testing.assert_allclose(found[0][:, 0, 0], x[:, 0] @ w[0].T, atol=1e-4)


SAVED, R, STATE = (5, 2, 15), (9, 3), (2, 3)  # 5 steps, 2 sequences, 3 hidden units


@pytest.mark.parametrize(
    ("name", "shapes", "why"),
    [
        ("LSTMRecurrenceGradient", ((5, 2), (12, 3)), "saved must have rank 3"),
        ("LSTMRecurrenceGradient", (SAVED, (1, 12, 3)), "R must have rank 2"),
        ("LSTMRecurrenceGradient", (SAVED, (12, 3), None, None, (1, 3)), "initial_c"),
        ("LSTMRecurrenceGradient", (SAVED, (12, 3), None, None, STATE, (2, 1)), "dY_c"),
        ("GRURecurrenceGradient", ((5, 2, 9), R, None, None, (1, 1, 9), (5, 2, 3)), "state_gates"),
        ("GRURecurrenceGradient", ((5, 2, 9), R, None, None, (5, 2, 9), (5, 2, 1)), "states"),
        ("LSTMTraining", ((5, 2, 4), (2, 12, 4), (2, 12, 3)), "one direction"),
    ],
    ids=str,
)
def test_operands_of_gradients_are_checked(name: str, shapes: Any, why: str) -> None:
    """Kernels read them by the sizes of the others; a model may have these nodes as any other."""
    op = lookup(GRADIENT, name)
    assert op is not None
    facts = [None if s is None else Fact(F32, s) for s in shapes]
    inputs = [None if fact is None else Value(f"v{i}", fact) for i, fact in enumerate(facts)]
    layer = {"direction": b"bidirectional", "hidden_size": 3} if name == "LSTMTraining" else {}
    node = Graph().add(op, inputs, {**op.defaults, **layer}, len(op.outputs))
    with pytest.raises(sardonyx.SardonyxError, match=why):
        infer_node(node.graph.scope, node)
