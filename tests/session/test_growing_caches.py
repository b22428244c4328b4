"""Key/value caches that are fed back grow in place, with results as if they were copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import sardonyx as ort
from sardonyx import _native as native
from sardonyx.errors import InvalidArgument


def cache_model(axis: int = 2, outputs: tuple[str, ...] = ("present", "sums")) -> bytes:
    """present = past and new rows; sums = what a reader of the whole cache makes of it."""
    nodes = [
        helper.make_node("Concat", ["past", "new"], ["present"], axis=axis),
        helper.make_node("ReduceSum", ["present", "axes"], ["sums"], keepdims=0),
    ]
    dims: list[Any] = ["batch", "heads", "past", "width"]
    new, total = list(dims), list(dims)
    new[axis], total[axis] = "new", "total"
    shapes = {"past": dims, "new": new, "present": total, "sums": None}

    def info(name: str) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes[name])

    graph = helper.make_graph(
        nodes,
        "cache",
        [info("past"), info("new")],
        [info(o) for o in outputs],
        [helper.make_tensor("axes", TensorProto.INT64, [1], [2])],
    )
    made: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9
    ).SerializeToString()
    return made


def session(axis: int = 2, **entries: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    for key, value in entries.items():
        options.add_session_config_entry(f"sardonyx.{key}", value)
    return ort.InferenceSession(cache_model(axis), options)


def rows(n: int, seed: int, batch: int = 2, heads: int = 3) -> Any:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((batch, heads, n, 4)).astype(np.float32)


def is_same_block(a: Any, b: Any) -> bool:
    return bool(a.__array_interface__["data"][0] == b.__array_interface__["data"][0])


@pytest.mark.parametrize("output_names", [None, ["present", "sums"]])
def test_rows_are_appended_in_place(output_names: list[str] | None) -> None:
    s = session()
    wanted = rows(5, 0)
    past, _ = s.run(output_names, {"past": rows(0, 1), "new": wanted})
    for step in range(100):
        new = rows(1, step)
        wanted = np.concatenate([wanted, new], 2)
        before = past
        past, sums = s.run(output_names, {"past": before, "new": new})
        np.testing.assert_array_equal(past, wanted)
        np.testing.assert_allclose(sums, wanted.sum(2), rtol=1e-4, atol=1e-4)
        if step == 0:
            assert is_same_block(before, past)
            assert native.has_capacity(past)


def test_two_continuations_of_one_cache() -> None:
    s = session()
    past = s.run(None, {"past": rows(0, 0), "new": rows(5, 1)})[0]
    first = s.run(None, {"past": past, "new": rows(1, 2)})[0]
    second = s.run(None, {"past": past, "new": rows(1, 3)})[0]
    assert is_same_block(past, first)
    assert not is_same_block(past, second)
    np.testing.assert_array_equal(first[:, :, 5:], rows(1, 2))
    np.testing.assert_array_equal(second[:, :, 5:], rows(1, 3))
    np.testing.assert_array_equal(first[:, :, :5], second[:, :, :5])
    np.testing.assert_array_equal(past, rows(5, 1))


def test_a_full_cache_is_reallocated() -> None:
    s = session()
    past = s.run(None, {"past": rows(0, 0), "new": rows(5, 1)})[0]
    larger = s.run(None, {"past": past, "new": rows(500, 2)})[0]
    assert not is_same_block(past, larger)
    np.testing.assert_array_equal(larger, np.concatenate([rows(5, 1), rows(500, 2)], 2))


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.copy(),
        lambda a: a[:, :, 1:],
        lambda a: a[::-1],
        lambda a: a[:, :, :0],
        lambda a: np.asfortranarray(a),
        lambda a: a[:1],
    ],
    ids=["copy", "tail", "transposed", "empty", "fortran", "one"],
)
def test_a_cache_that_was_changed_is_copied(change: Any) -> None:
    s = session()
    past = s.run(None, {"past": rows(0, 0), "new": rows(5, 1)})[0]
    changed = change(past)
    new = rows(1, 2, batch=changed.shape[0])
    got = s.run(None, {"past": changed, "new": new})[0]
    assert not is_same_block(past, got)
    np.testing.assert_array_equal(got, np.concatenate([change(rows(5, 1)), new], 2))
    np.testing.assert_array_equal(past, rows(5, 1))


def test_a_cache_outlives_its_session() -> None:
    s = session()
    past = s.run(None, {"past": rows(0, 0), "new": rows(5, 1)})[0]
    del s
    other = session()
    got = other.run(None, {"past": past, "new": rows(2, 2)})[0]
    assert is_same_block(past, got)
    np.testing.assert_array_equal(got, np.concatenate([rows(5, 1), rows(2, 2)], 2))


def test_a_cache_fed_where_it_cannot_grow_is_read_as_it_is() -> None:
    past = session().run(None, {"past": rows(0, 0), "new": rows(5, 1)})[0]
    got = session().run(None, {"past": rows(3, 3), "new": past})[0]
    np.testing.assert_array_equal(got, np.concatenate([rows(3, 3), rows(5, 1)], 2))


@pytest.mark.parametrize("output_names", [None, ["present"]])
def test_a_cache_that_grew_along_another_axis_is_copied(output_names: list[str] | None) -> None:
    past = session(1).run(None, {"past": rows(5, 0, heads=0), "new": rows(5, 1)})[0]
    assert not past.flags.c_contiguous
    got = session(2).run(output_names, {"past": past, "new": rows(1, 2)})[0]
    np.testing.assert_array_equal(got, np.concatenate([rows(5, 1), rows(1, 2)], 2))


def test_a_cache_grows_along_one_axis_only() -> None:
    def info(name: str, heads: str, n: str) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", heads, n, "width"])

    nodes = [
        helper.make_node("Concat", ["past", "heads"], ["wide"], axis=1),
        helper.make_node("Concat", ["past", "rows"], ["long"], axis=2),
    ]
    inputs = [info("past", "h", "n"), info("heads", "h1", "n"), info("rows", "h", "n1")]
    graph = helper.make_graph(
        nodes, "both", inputs, [info("wide", "h2", "n"), info("long", "h", "n2")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    s = ort.InferenceSession(model.SerializeToString())
    past = s.run(
        None, {"past": rows(3, 0, 1, 0), "heads": rows(3, 1, 1, 2), "rows": rows(1, 2, 1, 0)}
    )[0]
    feed = {"past": past, "heads": rows(3, 3, 1, 1), "rows": rows(1, 4, 1, 2)}
    wide, long = s.run(None, feed)  # as many heads then as there were rows
    np.testing.assert_array_equal(past, rows(3, 1, 1, 2))
    np.testing.assert_array_equal(wide, np.concatenate([past, feed["heads"]], 1))
    np.testing.assert_array_equal(long, np.concatenate([past, feed["rows"]], 2))


def test_outputs_that_cannot_be_fed_back_have_no_capacity() -> None:
    def info(name: str, n: Any) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", n, 5])

    node = helper.make_node("Concat", ["x", "more"], ["y"], axis=1)
    inputs, outputs = [info("x", 3), info("more", "n")], [info("y", "total")]
    graph = helper.make_graph([node], "both", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    feed = {"x": np.ones((2, 3, 5), np.float32), "more": np.zeros((2, 4, 5), np.float32)}
    got = ort.InferenceSession(model.SerializeToString()).run(None, feed)[0]
    assert got.flags.c_contiguous
    assert not native.has_capacity(got)
    np.testing.assert_array_equal(got, np.concatenate([feed["x"], feed["more"]], 1))


def test_growing_in_place_can_be_disabled() -> None:
    s = session(grow_in_place="0")
    past = s.run(None, {"past": rows(0, 0), "new": rows(5, 1)})[0]
    got = s.run(None, {"past": past, "new": rows(1, 2)})[0]
    assert past.flags.c_contiguous
    assert not is_same_block(past, got)


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_every_axis(axis: int) -> None:
    s = session(axis)
    shape = [2, 3, 5, 4]
    x = np.arange(120, dtype=np.float32).reshape(shape)
    wanted, past = x, s.run(None, {"past": np.take(x, [], axis), "new": x})[0]
    for _ in range(3):
        wanted = np.concatenate([wanted, x], axis)
        past = s.run(None, {"past": past, "new": x})[0]
        np.testing.assert_array_equal(past, wanted)


def test_a_failed_run_only_loses_the_claimed_capacity() -> None:
    s = session()
    past = s.run(None, {"past": rows(0, 0), "new": rows(5, 1)})[0]
    with pytest.raises(InvalidArgument):
        s.run(None, {"past": past, "new": rows(1, 2, heads=7)})
    got = s.run(None, {"past": past, "new": rows(1, 2)})[0]
    np.testing.assert_array_equal(got, np.concatenate([rows(5, 1), rows(1, 2)], 2))


def identity_model() -> bytes:
    def info(name: str) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", "h", "n", "w"])

    node = helper.make_node("Identity", ["x"], ["y"])
    graph = helper.make_graph([node], "same", [info("x")], [info("y")])
    made: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9
    ).SerializeToString()
    return made


@pytest.mark.parametrize("output_names", [None, ["y"]])
def test_a_fed_cache_is_not_returned_as_an_output(output_names: list[str] | None) -> None:
    past = session().run(None, {"past": rows(0, 0), "new": rows(5, 1)})[0]
    got = ort.InferenceSession(identity_model()).run(output_names, {"x": past})[0]
    assert not np.shares_memory(got, past)
    np.testing.assert_array_equal(got, past)


def test_a_cache_that_is_fetched_twice_is_copied() -> None:
    got = session().run(["present", "present"], {"past": rows(0, 0), "new": rows(5, 1)})
    assert not np.shares_memory(*got)
    np.testing.assert_array_equal(*got)


@pytest.mark.parametrize("outputs", [("present", "sums"), ("sums", "present")])
def test_a_run_is_one_native_call(outputs: tuple[str, ...]) -> None:
    """Decoders make their caches before their logits, and list them after those."""
    s = ort.InferenceSession(cache_model(outputs=outputs))
    assert s._fast_path is not None
    made: Any = s._fast_path.call({"past": rows(3, 0), "new": rows(1, 1)})
    got = dict(zip(outputs, made, strict=True))
    wanted = np.concatenate([rows(3, 0), rows(1, 1)], 2)
    np.testing.assert_array_equal(got["present"], wanted)
    np.testing.assert_allclose(got["sums"], wanted.sum(2), rtol=1e-5)
