"""Sessions hold one copy of a weight and of its packed form, as long as any of them lives."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx import errors
from sardonyx.base.shared_store import STORE
from sardonyx.compile import Options, compile
from sardonyx.graph.const import ArrayConst, Recipe
from sardonyx.graph.dtype import F32
from sardonyx.ops import lookup as op_of
from sardonyx.program.native import RunSettings
from sardonyx.providers.reference import Reference
from sardonyx.weights import layouts
from tests.weights import models
from tests.weights.models import SQUARE, apart, large, product, settled

X = np.ones((2, 192), np.float32)


def session(source: Any, level: int = 99, **options: Any) -> sardonyx.InferenceSession:
    made = sardonyx.SessionOptions()
    made.graph_optimization_level = level
    return sardonyx.InferenceSession(source, made, **options)


def constants(source: Any) -> list[np.ndarray]:
    """Return the weights of a program of the reference provider."""
    compiled = compile(source, Options((Reference(),)))
    compiled.program.prepare(RunSettings())
    return [
        a for a in compiled.program.frame() if isinstance(a, np.ndarray) and a.nbytes >= 1 << 16
    ]


def test_one_packed_form_for_all_levels(tmp_path: Path) -> None:
    path = settled(tmp_path / "m.onnx", product())
    arrays = [large(session(path, level)) for level in (99, 99)]
    held = [session(path, level) for level in (0, 1, 2, 99)]
    assert len({id(large(s)) for s in held}) == 1
    assert arrays[0].nbytes >= SQUARE.nbytes
    for s in held:
        np.testing.assert_allclose(s.run(None, {"x": X})[0], X @ SQUARE, 1e-4, 1e-4)


def test_models_share_a_weight_file(tmp_path: Path) -> None:
    (tmp_path / "w.data").write_bytes(b"\1" * 3 + SQUARE.tobytes())
    one = product(models.external("w", SQUARE, "w.data", 3))
    other = product(models.external("another", SQUARE, "./w.data", 3))
    settled(tmp_path / "other.onnx", other)
    a, b = session(settled(tmp_path / "one.onnx", one)), session(tmp_path / "other.onnx")
    assert large(a) is large(b)
    np.testing.assert_allclose(b.run(None, {"x": X})[0], X @ SQUARE, 1e-4, 1e-4)


def unaligned(folder: Path) -> Path:
    (folder / "w.data").write_bytes(b"\1" * 3 + SQUARE.tobytes())
    weight = models.external("w", SQUARE, "w.data", 3)
    made = models.model(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [models.info("x", [192, 192])],
        [models.info("y", [192, 192])],
        [weight],
    )
    return settled(folder / "m.onnx", made)


def test_an_aligned_copy_is_shared_by_providers(tmp_path: Path) -> None:
    path = unaligned(tmp_path)
    native = session(path)
    (array,) = constants(path)
    assert array is large(native)
    assert array.flags.aligned
    np.testing.assert_array_equal(array, SQUARE)


def test_computed_constants_are_shared(tmp_path: Path) -> None:
    made = models.model(
        [
            helper.make_node("Transpose", ["w"], ["t"]),
            helper.make_node("Add", ["x", "t"], ["y"]),
        ],
        [models.info("x", [192, 192])],
        [models.info("y", [192, 192])],
        [numpy_helper.from_array(SQUARE, "w")],
    )
    path = settled(tmp_path / "m.onnx", made)
    a, b = session(path), session(path)
    assert large(a) is large(b)
    np.testing.assert_array_equal(large(a), SQUARE.T)


def branches() -> Any:
    body = [
        helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["z"])],
            name,
            [],
            [models.info("z", None)],
            [numpy_helper.from_array(SQUARE * (i + 1), "w")],
        )
        for i, name in enumerate(("then", "else"))
    ]
    node = helper.make_node("If", ["c"], ["y"], then_branch=body[0], else_branch=body[1])
    inputs = [models.info("c", [], TensorProto.BOOL), models.info("x", ["N", 192])]
    return models.model([node], inputs, [models.info("y", None)], [])


def test_weights_of_bodies_are_shared_and_distinguished(tmp_path: Path) -> None:
    path = settled(tmp_path / "m.onnx", branches())
    a, b = session(path), session(path)
    mine, theirs = (
        {id(x) for x in s._compiled.program.layouts._arrays.values() if x.nbytes >= 1 << 16}
        for s in (a, b)
    )
    assert len(mine) == 2
    assert mine == theirs
    for taken, factor in ((True, 1), (False, 2)):
        (y,) = b.run(None, {"c": np.array(taken), "x": X})
        np.testing.assert_allclose(y, X @ SQUARE * factor, 1e-4, 1e-4)


def test_constants_of_python_steps_are_shared(tmp_path: Path) -> None:
    path = unaligned(tmp_path)
    first, second = constants(path), constants(path)
    assert first[0] is second[0]


def test_decoded_weights_are_shared(tmp_path: Path) -> None:
    """Integers in a field of their own are numbers of varying length, and no place to point to."""
    table = np.arange(20_000).reshape(-1, 2)
    weight = TensorProto(name="t", data_type=TensorProto.INT64, dims=table.shape)
    weight.int64_data.extend(table.reshape(-1).tolist())
    path = settled(tmp_path / "m.onnx", models.lookup(weight))
    a, b = session(path), session(path)
    assert np.shares_memory(large(a), large(b))
    np.testing.assert_array_equal(b.run(None, {"i": np.array([7])})[0], table[[7]])


def test_the_last_session_frees_at_once(tmp_path: Path) -> None:
    path = settled(tmp_path / "m.onnx", product())
    gc.disable()
    try:
        a, b = session(path), session(path)
        array = weakref.ref(large(a))
        del a
        assert array() is not None
        del b
        assert array() is None
    finally:
        gc.enable()


def test_memory_of_three_sessions_is_that_of_one(tmp_path: Path) -> None:
    weight = np.zeros((4096, 4096), np.float32)
    path = settled(tmp_path / "m.onnx", product(numpy_helper.from_array(weight, "w")))
    code = """
        path = given["path"]
        x = np.ones((1, 4096), np.float32)
        def start():
            made = sardonyx.InferenceSession(path)
            made.run(None, {"x": x})
            return made
        start()  # whatever is loaded once
        before = mb()
        held = [start()]
        one = mb() - before
        held += [start(), start()]
        three = mb() - before
        held.clear()
        print(json.dumps({"one": one, "three": three, "after": mb() - before}))
    """
    found = apart(code, path=path)
    assert found["one"] >= 64
    assert found["three"] <= found["one"] * 1.05
    assert found["after"] <= 4


def test_threads_wait_for_the_one_that_packs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = settled(tmp_path / "m.onnx", product())
    made_of, pack = [], layouts.prepack

    def slowly(want: Any) -> Any:
        made_of.append(want)
        time.sleep(0.05)
        return pack(want)

    monkeypatch.setattr(layouts, "prepack", slowly)
    made: list[sardonyx.InferenceSession] = []
    threads = [threading.Thread(target=lambda: made.append(session(path))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made_of) == 1
    assert len({id(large(s)) for s in made}) == 1


def test_a_failing_maker_lets_others_retry() -> None:
    def fail() -> Any:
        raise MemoryError

    with pytest.raises(MemoryError):
        STORE.share("test", fail)
    array = np.zeros(3)
    kept = [STORE.share("test", array.view)]
    assert STORE.holds("test")
    kept.clear()
    assert not STORE.holds("test")


def in_child(call: Any) -> None:
    """Runs a call in a forked child; it must come back, and true."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if call() else 2
        finally:
            os._exit(code)
    for _ in range(300):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.05)
    os.kill(child, 9)
    os.waitpid(child, 0)
    pytest.fail("the child hangs")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_shares_the_weights_of_its_parent(tmp_path: Path) -> None:
    path = settled(tmp_path / "m.onnx", product())
    parent = session(path)

    def child() -> bool:
        mine = session(path)
        y = mine.run(None, {"x": X})[0]
        return large(mine) is large(parent) and np.allclose(y, X @ SQUARE, 1e-4, 1e-4)

    in_child(child)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_has_unlocked_locks(tmp_path: Path) -> None:
    path = settled(tmp_path / "m.onnx", product())
    deferred = sardonyx.SessionOptions()
    deferred.add_session_config_entry("sardonyx.defer_weights", "1")
    waiting = sardonyx.InferenceSession(path, deferred)
    (segment,) = waiting._compiled.program.segments
    held, go = threading.Event(), threading.Event()

    def hold() -> None:
        with STORE._lock, segment._lock, waiting._lock:
            held.set()
            go.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        in_child(lambda: bool(waiting.run(None, {"x": X})) and bool(session(path)))
    finally:
        go.set()
        thread.join()


def embedded(array: Any) -> sardonyx.SessionOptions:
    options = sardonyx.SessionOptions()
    options.add_external_initializers_from_files_in_memory(["w.data"], [array], [len(array)])
    return options


OUTSIDE = product(models.external("w", SQUARE, "w.data")).SerializeToString()


def held_by(buffer: Any, **options: Any) -> sardonyx.InferenceSession:
    return sardonyx.InferenceSession(OUTSIDE, embedded(buffer), **options)


def test_read_only_buffers_are_identified_by_address() -> None:
    data = SQUARE.tobytes()
    a, b = held_by(data), held_by(memoryview(data))
    longer = b"\0" * 8 + data
    view = np.frombuffer(longer, np.uint8)[8:]
    c, d = held_by(view), held_by(memoryview(longer)[8:])
    assert large(a) is large(b)
    assert large(c) is large(d)
    assert large(a) is not large(c)


def test_overlapping_views_show_the_same_weight() -> None:
    data = b"\0" * 64 + SQUARE.tobytes()
    at_64 = product(models.external("w", SQUARE, "w.data", 64)).SerializeToString()
    a = sardonyx.InferenceSession(at_64, embedded(data))
    b = held_by(memoryview(data)[64:])
    assert large(a) is large(b)


def test_a_model_in_a_buffer_is_shared() -> None:
    data = product().SerializeToString()
    assert large(session(data)) is not large(session(bytearray(data)))
    a, b = session(data), session(data)
    assert large(a) is large(b)


@pytest.mark.parametrize(
    "hide",
    [lambda d: d, memoryview, lambda d: memoryview(d).toreadonly()],
    ids=["bytearray", "view", "read-only view"],
)
def test_writable_buffers_are_not_shared(hide: Any) -> None:
    data = hide(bytearray(SQUARE.tobytes()))
    a, b = held_by(data), held_by(data)
    assert large(a) is not large(b)


def test_a_read_only_view_of_a_writable_array_is_not_shared() -> None:
    owner = np.frombuffer(SQUARE.tobytes(), np.uint8).copy()
    view = owner.view()
    view.flags.writeable = False
    a, b = held_by(view), held_by(view)
    assert large(a) is not large(b)
    owner.flags.writeable = False
    c, d = held_by(view), held_by(view)
    assert large(c) is large(d)


def test_buffers_that_come_and_go_at_one_address_are_not_confused() -> None:
    for factor in range(6):
        data = (SQUARE * factor).tobytes()
        made = held_by(data)
        (y,) = made.run(None, {"x": X})
        np.testing.assert_allclose(y, X @ SQUARE * factor, 1e-4, 1e-4)
        del made, data


def test_a_container_shares_writable_buffers_and_keeps_packed_weights() -> None:
    container = sardonyx.PrepackedWeightsContainer()
    data = bytearray(SQUARE.tobytes())
    a = held_by(data, prepacked_weights_container=container)
    b = held_by(data, prepacked_weights_container=container)
    assert large(a) is large(b)
    assert len(container) == 1
    assert container.size_bytes == large(a).nbytes
    array = weakref.ref(large(a))
    del a, b
    gc.collect()
    assert array() is not None
    c = held_by(data, prepacked_weights_container=container)
    assert large(c) is array()
    np.testing.assert_allclose(c.run(None, {"x": X})[0], X @ SQUARE, 1e-4, 1e-4)
    del c, container
    gc.collect()
    assert array() is None


def test_a_container_does_not_change_sharing_of_files(tmp_path: Path) -> None:
    path = settled(tmp_path / "m.onnx", product())
    container = sardonyx.PrepackedWeightsContainer()
    array = weakref.ref(large(session(path, prepacked_weights_container=container)))
    gc.collect()
    assert large(session(path)) is array()  # with or without the container


def test_containers_of_another_kind_are_refused() -> None:
    with pytest.raises(errors.InvalidArgument, match="PrepackedWeightsContainer, got dict"):
        held_by(SQUARE.tobytes(), prepacked_weights_container={})


def doubled(times: int) -> Any:
    """A sum of a sum of a sum, both sides of each the same."""
    add: Any = op_of("", "Add")
    made: Any = ArrayConst(np.ones(2, np.float32))
    for _ in range(times):
        made = Recipe(add, (made, made), {}, 0, (F32, (2,)))
    return made


def test_recipes_of_many_parts_have_an_identity() -> None:
    assert doubled(5000).identity == doubled(5000).identity  # of 2**5000 parts, one by one
    assert doubled(5000).identity != doubled(4999).identity


def test_attributes_that_differ_in_one_bit_are_distinguished() -> None:
    elu: Any = op_of("", "LeakyRelu")
    x = ArrayConst(np.ones(2, np.float32))
    made = [Recipe(elu, (x,), {"alpha": a}, 0, (F32, (2,))) for a in (0.0, -0.0, 0.0)]
    assert made[0].identity == made[2].identity != made[1].identity
