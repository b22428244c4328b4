"""Data loaders: which one loads a weight, in which order they are asked, with which requests."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sardonyx.base.shared_store import Store
from sardonyx.errors import Fail
from sardonyx.graph.const import ArrayConst, Const, Recipe, Source, SourceConst
from sardonyx.graph.dtype import F16, F32, U8, by_name
from sardonyx.load.source import map_file
from sardonyx.ops import lookup
from sardonyx.weights.loading import Conversion, DataLoader, LoaderManager, WeightReference

DATA = np.arange(20_000, dtype=np.float32)


class Tin:
    """Memory of a device that the host cannot read."""

    def __init__(self) -> None:
        self.array: Any = None


class Tins(DataLoader):
    """Keeps bytes in tins, on devices named acme."""

    def __init__(self, device: str = "acme") -> None:
        self.device = device
        self.loaded: list[str] = []

    def can_load(self, device: str) -> bool:
        return device == self.device

    def allocate(self, reference: WeightReference) -> Tin:
        return Tin()

    def load(self, reference: WeightReference, destination: Tin) -> None:
        self.loaded.append(reference.name)
        destination.array = np.frombuffer(reference.buffer(), reference.dtype.np)


class SharedTins(Tins):
    shares = True


def references(*consts: Const) -> list[WeightReference]:
    return [WeightReference(f"w{i}", c) for i, c in enumerate(consts)]


def wrap(array: Any) -> list[Any]:
    return ["uploaded", array.copy()]


@pytest.fixture
def source(tmp_path: Path) -> Source:
    (tmp_path / "w").write_bytes(DATA.tobytes())
    time.sleep(0.03)
    return map_file(str(tmp_path / "w"), "w")


def test_attributes_of_a_weight_reference(source: Source, tmp_path: Path) -> None:
    narrow = SourceConst(source, 4, 8, by_name("u4"), (3, 5))
    in_memory = ArrayConst(DATA[:6].reshape(2, 3))
    transposed = Conversion("transposed", F16, (5, 3), lambda t: t.T)
    rows = [
        (WeightReference("a", narrow), "u4", (3, 5), 15, 8),
        (WeightReference("b", narrow, is_packed=True), "u8", (8,), 8, 8),
        (WeightReference("c", narrow, conversion=transposed), "f16", (5, 3), 30, 8),
        (WeightReference("d", in_memory), "f32", (2, 3), 24, 24),
        (WeightReference("e", in_memory, is_packed=True), "f32", (2, 3), 24, 24),
    ]
    for reference, dtype, shape, size, length in rows:
        found = reference.dtype.name, reference.shape, reference.size_bytes, reference.length
        assert found == (dtype, shape, size, length), reference.name
        assert len(reference.buffer()) == length
    assert (rows[0][0].path, rows[0][0].offset) == (str(tmp_path / "w"), 4)
    assert (rows[3][0].path, rows[3][0].offset) == (None, 0)
    assert len({r.layout_key for r, *_ in rows[:3]}) == 3


def test_a_reference_evaluates_recipes() -> None:
    recipe = Recipe(lookup("", "Neg"), (ArrayConst(DATA),), {}, 0, (F32, DATA.shape))
    (reference,) = references(recipe)
    np.testing.assert_array_equal(np.frombuffer(reference.buffer(), np.float32), -DATA)
    reference.release()


def test_the_first_loader_that_can_is_asked() -> None:
    other, first, second = Tins("other"), Tins(), Tins()
    manager = LoaderManager([other, first])
    manager.register(second)
    (tin,) = manager.place(references(ArrayConst(DATA)), "acme", wrap)
    np.testing.assert_array_equal(tin.array, DATA)
    assert (other.loaded, first.loaded, second.loaded) == ([], ["w0"], [])


def test_without_a_loader_the_provider_uploads(source: Source) -> None:
    narrow = SourceConst(source, 0, 2, by_name("u4"), (4,))
    half = Conversion("half", F32, (3,), lambda t: [*t, "converted"])
    wanted = [
        WeightReference("plain", SourceConst(source, 4, 12, F32, (3,))),
        WeightReference("packed", narrow, is_packed=True),
        WeightReference("unpacked", narrow),
        WeightReference("made", SourceConst(source, 4, 12, F32, (3,)), conversion=half),
    ]
    plain, packed, unpacked, made = LoaderManager([Tins("other")]).place(wanted, "acme", wrap)
    np.testing.assert_array_equal(plain[1], [1, 2, 3])
    assert (packed[1].dtype, packed[1].shape) == (U8.np, (2,))
    assert (unpacked[1].dtype, unpacked[1].shape) == (by_name("u4").np, (4,))
    assert made[2] == "converted"


def test_the_same_bytes_are_loaded_once(source: Source) -> None:
    const = SourceConst(source, 0, 400, F32, (100,))
    twin = SourceConst(source, 0, 400, F32, (100,))
    loader = Tins()
    manager = LoaderManager([loader])
    a, b, c = manager.place(references(const, twin, ArrayConst(DATA)), "acme", wrap)
    assert a is b
    assert c is not a
    assert loader.loaded == ["w0", "w2"]
    assert manager.place(references(const), "acme", wrap)[0] is not a  # it says nothing of sharing


def test_loads_share_what_is_alive(source: Source) -> None:
    const = SourceConst(source, 0, 400, F32, (100,))
    loader, other = SharedTins(), SharedTins()
    (a,) = LoaderManager([loader]).place(references(const), "acme", wrap)
    b, c = LoaderManager([other]).place(references(const, ArrayConst(DATA)), "acme", wrap)
    assert a is b
    assert other.loaded == ["w1"]
    del a, b, c
    LoaderManager([other]).place(references(const), "acme", wrap)
    assert other.loaded == ["w1", "w0"]


def test_loads_report_progress_and_may_be_cancelled() -> None:
    left = [1, 1, 0]
    loader = Tins()

    def check() -> None:
        if not left.pop(0):
            raise Fail("enough")

    consts = [ArrayConst(DATA[i:]) for i in range(5)]
    with pytest.raises(Fail, match="enough"):
        LoaderManager([loader]).place(references(*consts), "acme", wrap, check)
    assert loader.loaded == ["w0", "w1", "w2"]


def test_all_weights_are_allocated_before_any_is_read() -> None:
    class Full(Tins):
        def allocate(self, reference: WeightReference) -> Tin:
            if reference.name == "w2":
                raise Fail("the tin is full")
            return super().allocate(reference)

    loader = Full()
    consts = [ArrayConst(DATA[i * 10 : i * 10 + 10]) for i in range(4)]
    with pytest.raises(Fail, match="the tin is full") as caught:
        LoaderManager([loader]).place(references(*consts), "acme", wrap)
    assert caught.value.where == {"weight": "w2", "placed": "80 B of 160 B"}
    assert loader.loaded == []


def test_concurrent_loads_of_one_weight_run_once() -> None:
    store: Store[Tin] = Store()
    made: list[Any] = []
    begun, go_on = threading.Event(), threading.Event()
    got: dict[str, dict[Any, Tin]] = {}

    def slow(keys: list[Any]) -> list[Tin]:
        made.append(keys)
        begun.set()
        assert go_on.wait(10)
        return [Tin() for _ in keys]

    def quick(keys: list[Any]) -> list[Tin]:
        made.append(keys)
        go_on.set()
        return [Tin() for _ in keys]

    def ask(name: str, keys: str, make: Any) -> None:
        got[name] = store.share_many(dict.fromkeys(keys), make)

    first = threading.Thread(target=ask, args=("first", "abc", slow))
    first.start()
    assert begun.wait(10)
    ask("second", "bcd", quick)  # makes its own before it waits
    first.join(10)
    assert made == [["a", "b", "c"], ["d"]]
    assert all(got["first"][key] is got["second"][key] for key in "bc")


def test_a_failed_load_is_retried_by_waiting_threads() -> None:
    store: Store[Tin] = Store()
    begun, go_on = threading.Event(), threading.Event()

    def fail(keys: list[Any]) -> list[Tin]:
        begun.set()
        assert go_on.wait(10)
        raise Fail("no")

    def ask() -> None:
        with pytest.raises(Fail, match="no"):
            store.share_many({"a": None}, fail)

    first = threading.Thread(target=ask)
    first.start()
    assert begun.wait(10)
    threading.Timer(0.05, go_on.set).start()
    found = store.share_many({"a": None}, lambda keys: [Tin() for _ in keys])
    first.join(10)
    assert isinstance(found["a"], Tin)
