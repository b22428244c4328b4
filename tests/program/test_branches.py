"""ORT_PARALLEL: small steps that do not need each other run at once, and nothing else changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx import ExecutionMode

WIDTH = 192  # so that a product of 8 rows takes microseconds


def made(nodes: list[Any], outputs: list[str], weights: dict[str, Any]) -> bytes:
    graph = helper.make_graph(
        nodes,
        "branches",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", WIDTH])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return bytes(model.SerializeToString())


def weight(seed: int) -> Any:
    random = np.random.default_rng(seed)
    return (random.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5).astype(np.float32)


def towers(count: int, depth: int) -> bytes:
    """Chains of products beside each other, joined at the end."""
    nodes, ends = [], []
    for tower in range(count):
        value = "x"
        for level in range(depth):
            name = f"{tower}_{level}"
            nodes.append(helper.make_node("MatMul", [value, f"w{tower}"], [f"p{name}"]))
            nodes.append(helper.make_node("LogSoftmax", [f"p{name}"], [f"s{name}"], f"soft{name}"))
            value = f"s{name}"
        ends.append(value)
    nodes.append(helper.make_node("Concat", ends, ["y"], axis=1))
    return made(nodes, ["y"], {f"w{i}": weight(i) for i in range(count)})


def session(model: bytes, mode: ExecutionMode, threads: int = 2, **options: Any) -> Any:
    chosen = sardonyx.SessionOptions()
    chosen.intra_op_num_threads = threads
    chosen.execution_mode = mode
    for name, value in options.items():
        setattr(chosen, name, value)
    return sardonyx.InferenceSession(model, chosen)


def both(model: bytes, threads: int = 2) -> tuple[Any, Any]:
    modes = (ExecutionMode.ORT_SEQUENTIAL, ExecutionMode.ORT_PARALLEL)
    first, second = (session(model, mode, threads) for mode in modes)
    return first, second


def rows(count: int) -> dict[str, Any]:
    return {"x": np.random.default_rng(count).standard_normal((count, WIDTH)).astype(np.float32)}


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 8, 64])
def test_parallel_branches(threads: int, count: int) -> None:
    plain, parallel = both(towers(4, 5), threads)
    wanted = plain.run(None, rows(count))
    for _ in range(5):
        np.testing.assert_array_equal(parallel.run(None, rows(count))[0], wanted[0])


def test_empty_copies_in_parallel_branches() -> None:
    nodes = []
    for i in range(4):
        nodes += [
            helper.make_node("MatMul", ["x", f"w{i}"], [f"p{i}"]),
            helper.make_node("LogSoftmax", [f"p{i}"], [f"q{i}"]),
            helper.make_node("Slice", [f"q{i}", "zero", "zero"], [f"none{i}"]),
            helper.make_node("Tile", [f"none{i}", "twice"], [f"tiled{i}"]),
            helper.make_node("ReduceSum", [f"tiled{i}", "zero"], [f"zeros{i}"], keepdims=0),
            helper.make_node("Add", [f"q{i}", f"zeros{i}"], [f"a{i}"]),
            helper.make_node("MatMul", [f"a{i}", f"w{i}"], [f"y{i}"]),
        ]
    weights = {f"w{i}": weight(i) for i in range(4)}
    weights |= {"zero": np.array([0]), "twice": np.array([2, 1])}
    plain, parallel = both(made(nodes, [f"y{i}" for i in range(4)], weights))
    wanted, found = plain.run(None, rows(8)), parallel.run(None, rows(8))
    np.testing.assert_array_equal(found, wanted)


def test_random_numbers_do_not_depend_on_threads() -> None:
    """Nodes without a seed draw in one order."""
    nodes = []
    for i in range(8):
        nodes.append(helper.make_node("RandomNormalLike", ["x"], [f"r{i}"]))
        nodes.append(helper.make_node("Softmax", [f"r{i}"], [f"y{i}"]))
    plain, parallel = both(made(nodes, [f"y{i}" for i in range(8)], {}))
    sardonyx.set_seed(5)
    wanted = plain.run(None, rows(8))
    for _ in range(1000):
        sardonyx.set_seed(5)
        np.testing.assert_array_equal(parallel.run(None, rows(8)), wanted)


def random_model(draw: Any) -> bytes:
    """Steps that read what was made before, near or far, some of it handed out."""
    values, nodes = ["x"], []
    for i in range(draw(st.integers(3, 40))):
        pick = st.sampled_from(values[-6:] if draw(st.booleans()) else values)
        kind = draw(st.sampled_from(("MatMul", "Add", "Softmax", "Relu", "Mul")))
        inputs = [draw(pick)]
        if kind == "MatMul":
            inputs.append(f"w{draw(st.integers(0, 2))}")
        elif kind in ("Add", "Mul"):
            inputs.append(draw(pick))
        nodes.append(helper.make_node(kind, inputs, [f"v{i}"]))
        values.append(f"v{i}")
    outputs = sorted({values[-1], *draw(st.lists(st.sampled_from(values[1:]), max_size=3))})
    return made(nodes, outputs, {f"w{i}": weight(i) for i in range(3)})


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_graphs(data: st.DataObject) -> None:
    plain, parallel = both(random_model(data.draw), data.draw(st.integers(2, 4)))
    for count in (8, 3, 8):
        wanted = plain.run(None, rows(count))
        for a, b in zip(parallel.run(None, rows(count)), wanted, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_profile_has_every_step_once(tmp_path: Path) -> None:
    prefix = str(tmp_path / "profile")
    options = {"enable_profiling": True, "profile_file_prefix": prefix}
    parallel = session(towers(4, 5), ExecutionMode.ORT_PARALLEL, **options)
    parallel.run(None, rows(8))
    events = json.loads(Path(parallel.end_profiling()).read_text())
    seen = [e["name"] for e in events if "soft" in e["name"]]
    assert len(seen) == len(set(seen)) == 20
    tracks: dict[int, set[str]] = {}
    for event in events:
        if "soft" in event["name"]:
            tracks.setdefault(event["tid"], set()).add(event["name"][4])
    assert sorted(len(towers) for towers in tracks.values()) == [1, 1, 1, 1]


def test_one_of_two_errors_is_reported() -> None:
    nodes = []
    for i in range(2):
        nodes.append(helper.make_node("MatMul", ["x", f"w{i}"], [f"a{i}"]))
        nodes.append(helper.make_node("Softmax", [f"a{i}"], [f"b{i}"]))
        nodes.append(
            helper.make_node("Gather", [f"b{i}", f"far{i}"], [f"y{i}"], f"picks{i}", axis=1)
        )
    weights = {f"w{i}": weight(i) for i in range(2)}
    weights |= {f"far{i}": np.array([WIDTH * (i + 2)]) for i in range(2)}
    parallel = session(made(nodes, ["y0", "y1"], weights), ExecutionMode.ORT_PARALLEL)
    for _ in range(20):
        with pytest.raises(sardonyx.SardonyxError) as caught:
            parallel.run(None, rows(8))
        said = str(caught.value)
        named = [f"picks{i}" in said for i in range(2)]
        assert sum(named) == 1
        assert named == [str(WIDTH * (i + 2)) in said for i in range(2)]


def test_an_error_names_its_step() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"]),
        helper.make_node("Softmax", ["a"], ["b"]),
        helper.make_node("MatMul", ["x", "w1"], ["c"]),
        helper.make_node("Gather", ["c", "far"], ["d"], "picks", axis=1),
        helper.make_node("MatMul", ["b", "w0"], ["e"]),
    ]
    weights = {"w0": weight(0), "w1": weight(1), "far": np.array([WIDTH * 2])}
    _, parallel = both(made(nodes, ["d", "e"], weights))
    with pytest.raises(sardonyx.SardonyxError, match="picks"):
        parallel.run(None, rows(8))
