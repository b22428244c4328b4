"""Hostile models: a session or a SardonyxError, in bounded time and memory.

`tools/fuzz_models.py` does the same for as long as one likes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.errors import InvalidGraph, SardonyxError
from tests.hostile_runs import bounded_memory, feeds_for, load_and_run, within
from tests.mutate import change_bytes, change_model
from tests.seed_models import SEEDS, WEIGHT_BYTES, WEIGHTS, seeds

# What numpy warns of when numbers are absurd is no concern here.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True, scope="module")
def _limited() -> Iterator[None]:
    with bounded_memory(2 << 30):
        yield


@pytest.mark.parametrize("make", SEEDS)
def test_the_seeds_are_valid(make: Callable[[], onnx.ModelProto]) -> None:
    if make.__name__ != "external":  # the checker wants the file to be there
        onnx.checker.check_model(make())
    options = sardonyx.SessionOptions()
    options.add_external_initializers_from_files_in_memory(
        [WEIGHTS], [WEIGHT_BYTES], [len(WEIGHT_BYTES)]
    )
    session = sardonyx.InferenceSession(make().SerializeToString(), options)
    session.run(None, {n: tame(x) for n, x in feeds_for(session, Random(0)).items()})


def tame(value: Any) -> Any:
    """The same shapes with nothing absurd in them; a list has an element, an optional is there."""
    if isinstance(value, np.ndarray):
        return np.full(value.shape, "a" if value.dtype == object else 0, value.dtype)
    return [np.zeros((2, 3), np.float32)] if isinstance(value, list) else np.zeros((2, 3), "f4")


@settings(max_examples=400)
@given(st.sampled_from(seeds()), st.sampled_from(seeds()), st.randoms(use_true_random=False))
def test_mutated_bytes(data: bytes, other: bytes, rng: Random) -> None:
    load_and_run(change_bytes(rng, data, other), rng)


@settings(max_examples=800)
@given(st.sampled_from(seeds()), st.randoms(use_true_random=False))
def test_mutated_models(data: bytes, rng: Random) -> None:
    load_and_run(change_model(rng, data), rng)


# ------------------------------------------------------------------------ models made by hand

X = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2])
FED = {"x": np.zeros((3, 2), np.float32)}


def run(nodes: Sequence[NodeProto], output: str, **constants: Any) -> Any:
    """The output of a model of these nodes over x, in bounded time."""
    tensors = [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()]
    graph = helper.make_graph(nodes, "g", [X], [onnx.ValueInfoProto(name=output)], tensors)
    opsets = [helper.make_opsetid("", 20)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    with within(30):
        session = sardonyx.InferenceSession(model.SerializeToString())
        return session.run(None, FED)[0]


def chain(op: str, length: int, first: str, *more: str) -> tuple[list[NodeProto], str]:
    """Nodes of one op, each reading the one before, and the name of the last."""
    names = [first, *(f"{op}{i}" for i in range(length))]
    pairs = itertools.pairwise(names)
    return [helper.make_node(op, [a, *more], [b]) for a, b in pairs], names[-1]


SIZE = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Gather", ["s", "zero"], ["d"])]


def filled(last: str) -> list[NodeProto]:
    """Nodes that make a tensor of a computed size."""
    grown = helper.make_node("Unsqueeze", [last, "axis"], ["shape"])
    return [grown, helper.make_node("ConstantOfShape", ["shape"], ["y"])]


def test_long_chains_run() -> None:
    nodes, last = chain("Relu", 3000, "x")
    assert run(nodes, last).shape == (3, 2)
    shape = helper.make_node("Shape", [last], ["y"])
    assert run([*nodes, shape], "y").tolist() == [3, 2]
    assert run(list(reversed(nodes)), last).shape == (3, 2)


def test_long_chains_of_constants_run() -> None:
    nodes, last = chain("Neg", 3001, "w")
    total = helper.make_node("Add", ["x", last], ["y"])
    assert run([*nodes, total], "y", w=np.ones((1, 2), np.float32)).max() == -1


@pytest.mark.parametrize("op", ["Div", "Mod", "Max", "Add"])
def test_long_chains_of_sizes_run(op: str) -> None:
    nodes, last = chain(op, 1000, "d", "two")
    y = run([*SIZE, *nodes, *filled(last)], "y", zero=0, two=2, axis=[0])
    assert y.shape == ({"Div": 0, "Mod": 1, "Max": 3, "Add": 2003}[op],)


@pytest.mark.parametrize(("op", "number"), [("Mul", 2), ("Add", "d"), ("Mul", "d")])
def test_sizes_that_grow_without_bound(op: str, number: Any) -> None:
    other = number if isinstance(number, str) else "two"
    nodes, last = chain(op, 400, "d", other)
    if op == "Add":
        nodes = [helper.make_node("Add", [n.input[0], n.input[0]], n.output) for n in nodes]
    with pytest.raises(SardonyxError, match=r"64|size|bytes|bits"):
        run([*SIZE, *nodes, *filled(last)], "y", zero=0, two=2, axis=[0])


def test_many_readers_of_one_value() -> None:
    names = [f"r{i}" for i in range(4000)]
    same = [helper.make_node("Relu", ["x"], [name]) for name in names]
    assert run([*same, helper.make_node("Sum", names, ["y"])], "y").shape == (3, 2)
    folded = [helper.make_node("Neg", ["w"], [name]) for name in names]
    joined = helper.make_node("Concat", ["x", *names], ["y"], axis=0)
    assert run([*folded, joined], "y", w=np.ones((1, 2), np.float32)).shape == (4003, 2)


def loops(depth: int) -> GraphProto:
    """A loop in a loop, and so on; the innermost doubles its value, so that no shape settles."""
    i = helper.make_tensor_value_info(f"i{depth}", TensorProto.INT64, [])
    c = helper.make_tensor_value_info(f"c{depth}", TensorProto.BOOL, [])
    v = helper.make_tensor_value_info(f"v{depth}", TensorProto.FLOAT, None)
    goes_on = helper.make_node("Identity", [f"c{depth}"], [f"g{depth}"])
    if depth:
        inner = loops(depth - 1)
        made = helper.make_node("Loop", ["one", "", v.name], [f"w{depth}"], body=inner)
    else:
        made = helper.make_node("Concat", [v.name, v.name], ["w0"], axis=0)
    outputs = [onnx.ValueInfoProto(name=f"g{depth}"), onnx.ValueInfoProto(name=f"w{depth}")]
    return helper.make_graph([goes_on, made], "body", [i, c, v], outputs)


def test_loops_in_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    outer = helper.make_node("Loop", ["one", "", "x"], ["y"], body=loops(24))
    assert run([outer], "y", one=1).shape == (6, 2)
    monkeypatch.setattr("sardonyx.graph.guard.MAX_IN_BODIES", 30)
    with pytest.raises(InvalidGraph, match="nest too deep"):
        run([outer], "y", one=1)


# An op with inputs that ask for more than any machine has; x is f32[3,2].
GREEDY: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "Expand": ("x big", {"big": [2**40, 1, 1]}, {}),
    "Tile": ("x big", {"big": [2**31, 2**31]}, {}),
    "ConstantOfShape": ("big", {"big": [2**31, 2**31]}, {}),
    "Range": ("zero big one", {"big": 2**62, "zero": 0, "one": 1}, {}),
    "Pad": ("x big", {"big": [0, 0, 2**50, 0]}, {}),
    "Resize": ("x none big", {"none": np.zeros(0, np.float32), "big": np.float32([1e9, 1e9])}, {}),
    "OneHot": ("at big pair", {"big": 2**50, "at": [1, 2], "pair": np.float32([0, 1])}, {}),
    "CenterCropPad": ("x big", {"big": [2**40, 2**40]}, {}),
    "RandomNormal": ("", {}, {"shape": [2**40, 2**10]}),
    "HannWindow": ("big", {"big": 2**50}, {}),
    "Unsqueeze": ("x big", {"big": list(range(70))}, {}),
    "AffineGrid": ("theta big", {"theta": np.zeros((1, 2, 3), np.float32),
                                 "big": [1, 1, 2**31, 2**31]}, {}),
    "MaxPool": ("image", {"image": np.zeros((1, 1, 4, 4), np.float32)},
                {"kernel_shape": [2, 2], "pads": [2**40, 2**40, 2**40, 2**40]}),
    "ConvTranspose": ("image kernel", {"image": np.zeros((1, 1, 4, 4), np.float32),
                                       "kernel": np.zeros((1, 1, 2, 2), np.float32)},
                      {"strides": [2**31, 2**31]}),
    "Col2Im": ("image size block", {"image": np.zeros((1, 4, 1), np.float32),
                                    "size": [2**31, 2**31], "block": [2, 2]}, {}),
    "MelWeightMatrix": ("a b c d e", {"a": 2**31, "b": 2**40, "c": 16000, "d": np.float32(0),
                                      "e": np.float32(8000)}, {}),
}  # fmt: skip


@pytest.mark.parametrize("op", GREEDY)
@pytest.mark.parametrize("is_known", [True, False], ids=["constants", "inputs"])
def test_sizes_beyond_any_memory(op: str, is_known: bool) -> None:
    names, values, attrs = GREEDY[op]
    given = {name: np.asarray(value) for name, value in values.items()}
    node = helper.make_node(op, names.split(), ["y"], **attrs)
    tensors = [numpy_helper.from_array(v, k) for k, v in given.items()] if is_known else []
    infos = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for k, v in given.items()
        if not is_known
    ]
    graph = helper.make_graph([node], "g", [X, *infos], [onnx.ValueInfoProto(name="y")], tensors)
    opsets = [helper.make_opsetid("", 20)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    with (
        within(10),
        pytest.raises(SardonyxError, match=r"memory|bytes|elements|rank|size|outside|fit"),
    ):
        sardonyx.InferenceSession(model).run(None, FED | ({} if is_known else given))


def test_a_huge_exponent() -> None:
    node = helper.make_node("GlobalLpPool", ["image"], ["y"], p=2**31 - 1)
    y = run([node], "y", image=np.full((1, 1, 8, 8), 0.5, np.float32))
    assert y.shape == (1, 1, 1, 1)
