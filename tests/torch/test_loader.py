"""The torch provider's loader on torch's CPU device: the same ring and threads as on others."""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import sardonyx
from sardonyx.base import progress
from sardonyx.errors import EPFail, Fail, ModelLoadCanceled
from sardonyx.graph.const import ArrayConst, Const, Recipe, Source, SourceConst
from sardonyx.graph.dtype import BF16, BOOL, F16, F32, F64, U8, DType, by_name
from sardonyx.load.source import map_file
from sardonyx.ops import lookup
from sardonyx.weights import reading
from sardonyx.weights.loading import Conversion, LoaderManager, WeightReference
from tests.weights import models

torch = pytest.importorskip("torch")
from sardonyx.providers.torch import loader as module  # noqa: E402 - torch may be missing
from sardonyx.providers.torch import staging_ring as ring_module  # noqa: E402
from sardonyx.providers.torch.derived_constants import device_recipe  # noqa: E402
from sardonyx.providers.torch.dtypes import as_tensor  # noqa: E402
from sardonyx.providers.torch.loader import TorchLoader  # noqa: E402

KB = 1 << 10
CPU = torch.device("cpu")
BYTES = np.random.default_rng(5).integers(0, 256, 3_000_001, np.uint8)


@pytest.fixture(autouse=True)
def small_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers so small that weights need many of them, and buffers are used again."""
    monkeypatch.setattr(module, "_capacity", lambda _: 64 * KB)
    monkeypatch.setattr(module, "N_SPARE", 1)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return mapped(tmp_path / "weights.bin", BYTES)


def mapped(path: Path, data: Any) -> Source:
    path.write_bytes(data)
    time.sleep(0.03)  # until its times tell it from a later one
    return map_file(str(path), path.name)


def at(source: Source, offset: int, dtype: DType, *shape: int) -> SourceConst:
    return SourceConst(source, offset, dtype.packed_bytes(int(np.prod(shape))), dtype, shape)


def place(*consts: Const, **options: Any) -> list[Any]:
    references = [WeightReference(f"w{i}", c, **options) for i, c in enumerate(consts)]
    return LoaderManager([TorchLoader(CPU)]).place(references, "cpu", unused)


def unused(array: Any) -> Any:
    raise AssertionError("the loader is asked first")


def same(found: Any, const: Const) -> None:
    wanted = as_tensor(const.view(), const.dtype)
    if const.dtype.bits < 8 and const.dtype.kind == "int":
        wanted = torch.from_numpy(const.view().astype(np.int8))
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    torch.testing.assert_close(
        found.reshape(-1).view(torch.uint8), wanted.reshape(-1).view(torch.uint8), rtol=0, atol=0
    )


LAYOUTS = {
    "aligned": [(0, F32, (64, 64)), (16384, F32, (32, 32))],
    "odd offsets": [(3, F32, (64, 64)), (16395, F64, (7, 3)), (20001, BF16, (5,))],
    "large": [(5, F16, (700, 999)), (1_500_001, F32, (1000, 300))],
    "empty": [(0, F32, (0, 3)), (8, F32, (2,)), (2_999_999, F32, (3, 0))],
    "scalar": [(11, F64, ())],
    "overlapping": [(0, F32, (50_000,)), (100, F32, (10,)), (199_990, F32, (10,))],
    "far apart": [(0, F32, (3,)), (2_000_000, F32, (3,)), (1_000_000, F32, (3,))],
    "the last byte": [(2_999_989, F32, (3,))],
    "many": [(i * 97, F32, (i % 5, 4)) for i in range(400)],
    "narrow": [
        (i * 50, by_name(n), (3, 7)) for i, n in enumerate(("u4", "i4", "u2", "i2", "f6e2m3"))
    ],
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("where", ["file", "mapping", "memory"])
def test_weights_arrive(layout: list[Any], where: str, source: Source, tmp_path: Path) -> None:
    if where == "mapping":  # whose path leads elsewhere by now
        (tmp_path / "other").write_bytes(b"other")
        os.replace(tmp_path / "other", tmp_path / "weights.bin")
    elif where == "memory":
        source = Source(memoryview(BYTES.tobytes()), "bytes")
    consts = [at(source, offset, dtype, *shape) for offset, dtype, shape in layout]
    for found, const in zip(place(*consts), consts, strict=True):
        same(found, const)


def test_bool_bytes_other_than_0_and_1(tmp_path: Path) -> None:
    source = mapped(tmp_path / "b", bytes((0, 1, 2, 255)))
    (found,) = place(at(source, 0, BOOL, 4))
    assert found.view(torch.uint8).tolist() == [0, 1, 1, 1]


def test_packed_bytes_stay_packed(source: Source) -> None:
    const = at(source, 9, by_name("u4"), 5, 3)
    (found,) = place(const, is_packed=True)
    np.testing.assert_array_equal(found.numpy(), BYTES[9:17])


def test_a_conversion_reads_the_uploaded_bytes(source: Source) -> None:
    const = at(source, 0, by_name("i4"), 300, 400)
    transposed = Conversion("transposed", F16, (400, 300), lambda t: t.mT)
    found, plain = (place(const, conversion=c)[0] for c in (transposed, None))
    assert found.dtype == torch.float16
    assert found.is_contiguous()
    np.testing.assert_array_equal(found.numpy(), plain.numpy().T)


def recipe(name: str, *inputs: Const, shape: tuple[int, ...], **attrs: Any) -> Recipe:
    op = lookup("", name)
    assert op is not None
    return Recipe(op, inputs, {**op.defaults, **attrs}, 0, (inputs[0].dtype, shape))


def recipes(source: Source) -> dict[str, Recipe]:
    a, b = at(source, 3, F16, 200, 300), at(source, 200_000, F16, 100, 300)
    transposed = recipe("Transpose", a, shape=(300, 200), perm=(1, 0))
    joined = recipe("Concat", a, b, shape=(300, 300), axis=0)
    shift = ArrayConst(np.arange(300, dtype=np.float16))
    to = ArrayConst(np.array([200, 150, 2]))
    return {
        "one": transposed,
        "two": joined,
        "a small one": recipe("Add", joined, shift, shape=(300, 300)),
        "a chain": recipe("Reshape", transposed, to, shape=(200, 150, 2)),
        "one twice": recipe("Add", a, recipe("Neg", a, shape=(200, 300)), shape=(200, 300)),
        "no large one": recipe("Expand", shift, ArrayConst(np.array([300, 300])), shape=(300, 300)),
    }


@pytest.mark.parametrize("name", recipes(Source(memoryview(BYTES), "none")))
def test_recipes_are_made_on_the_device(
    name: str, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    const = recipes(source)[name]
    wanted = recipes(source)[name].read().copy()
    monkeypatch.setattr(Recipe, "_compute", unused)
    (found,) = place(const)
    assert found.shape == wanted.shape
    np.testing.assert_array_equal(found.numpy(), wanted)


def test_unsupported_recipes_run_on_the_host(source: Source) -> None:
    held = ArrayConst(np.arange(100_000, dtype=np.float32).reshape(100, 1000))
    odd = recipe("Split", held, shape=(50, 1000), axis=0, num_outputs=2)
    assert device_recipe(odd) is None
    for found, const in zip(place(held, odd), (held, odd), strict=True):
        same(found, const)


def test_large_recipes_are_uploaded_in_groups(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_GROUP_BYTES", 100_000)
    a, b, c = (at(source, i * 300_000, F32, 100, 300) for i in range(3))
    rows = [recipe("Concat", x, y, shape=(200, 300), axis=0) for x, y in ((a, b), (b, c), (c, a))]
    for found, const in zip(place(rows[0], c, *rows[1:]), (rows[0], c, *rows[1:]), strict=True):
        same(found, const)


def test_one_tensor_for_the_same_bytes(source: Source) -> None:
    const = at(source, 64, F32, 100)
    first, again = place(const, at(source, 64, F32, 100))
    assert first is again
    assert place(const)[0] is first
    other, flat = place(at(source, 68, F32, 100), at(source, 64, F32, 10, 10))
    assert other is not first
    assert flat is not first
    seen = weakref.ref(first)
    del first, again
    assert seen() is None


def test_writable_buffers_are_shared_within_a_load_only() -> None:
    data = bytearray(BYTES[:1000].tobytes())
    const = at(Source(memoryview(data), "buffer", is_fixed=False), 0, F32, 10)
    first, again = place(const, const)
    assert first is again
    data[0] ^= 1
    (later,) = place(const)
    assert later.view(torch.uint8)[0] == data[0]


def cut(path: Path, size: int) -> None:
    state = os.stat(path)
    os.truncate(path, size)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def rewrite(path: Path, byte: int) -> None:
    with path.open("r+b") as file:
        file.seek(byte)
        file.write(b"?")
    os.utime(path, ns=(0, 0))


def test_a_file_that_changed(source: Source, tmp_path: Path) -> None:
    rewrite(tmp_path / "weights.bin", 7)
    with pytest.raises(Fail, match=r"weights.bin changed since the model was opened: .* time"):
        place(at(source, 0, F32, 10))


def test_a_file_that_became_shorter(source: Source, tmp_path: Path) -> None:
    cut(tmp_path / "weights.bin", 500_000)
    with pytest.raises(Fail, match=r"weights.bin changed since the model was opened: .* size"):
        place(at(source, 0, F32, 10))


def test_a_file_that_becomes_shorter_while_it_is_read(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(tmp_path / "weights.bin", 500_000)
    monkeypatch.setattr(reading.OpenFile, "check", lambda self: None)
    with pytest.raises(Fail, match="it ends 300000 bytes before the end of 'w1', 400000") as caught:
        place(at(source, 0, F32, 10), at(source, 400_000, F32, 100_000))
    assert caught.value.where["weight"] == "w1"


def test_a_file_that_changes_while_it_is_read(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = reading.OpenFile.read

    def late(self: Any, *args: Any) -> int:
        rewrite(tmp_path / "weights.bin", 7)
        return read(self, *args)

    monkeypatch.setattr(reading.OpenFile, "read", late)
    with pytest.raises(Fail, match="changed since the model was opened"):
        place(at(source, 0, F32, 10))


def test_a_disk_that_fails(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(reading.OpenFile, "read", broken)
    with pytest.raises(
        Fail, match=r"weights.bin cannot be read at 0: Input/output error"
    ) as caught:
        place(at(source, 8, F32, 10))
    assert caught.value.where["weight"] == "w0"


@pytest.mark.parametrize(
    ("free", "state"),
    [(3000, "3.00 KB are free, 1.00 KB missing"), (5000, "5.00 KB are free, but fragmented")],
)
def test_out_of_memory_on_the_device(
    source: Source, monkeypatch: pytest.MonkeyPatch, free: int, state: str
) -> None:
    made: list[Any] = []
    empty = torch.empty

    def full(*args: Any, **options: Any) -> Any:
        if len(made) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 40 bytes")
        tensor = empty(*args, **options)
        made.append(weakref.ref(tensor))
        return tensor

    monkeypatch.setattr(torch, "empty", full)
    monkeypatch.setattr(module, "_free_bytes", lambda device: free)
    with pytest.raises(EPFail, match=r"4.00 KB for the weight 'w2' do not fit on cpu") as caught:
        place(*(at(source, 4000 * i, F32, 1000) for i in range(4)))
    assert state in str(caught.value)
    assert caught.value.where["placed"] == "8.00 KB of 16.0 KB"
    assert [seen() for seen in made] == [None, None]  # although the error is kept


def test_out_of_memory_in_a_conversion(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(tensor: Any) -> Any:
        seen.append(weakref.ref(tensor))
        raise torch.OutOfMemoryError("CUDA out of memory")

    seen: list[Any] = []
    big = Conversion("big", F32, (10,), convert)
    with pytest.raises(EPFail, match="copying 'w0' to the device failed: CUDA out") as caught:
        place(at(source, 0, F32, 10), conversion=big)
    assert caught.value.where["weight"] == "w0"
    assert [ref() for ref in seen] == [None]


def test_an_error_leaves_no_tensor_and_no_file_open(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocated: list[Any] = []
    allocate = TorchLoader.allocate

    def seen(self: Any, reference: Any) -> Any:
        tensor = allocate(self, reference)
        allocated.append(weakref.ref(tensor))
        return tensor

    monkeypatch.setattr(TorchLoader, "allocate", seen)
    cut(tmp_path / "weights.bin", 500_000)
    monkeypatch.setattr(reading.OpenFile, "check", lambda self: None)
    with pytest.raises(Fail) as caught:
        place(at(source, 0, F32, 100_000), at(source, 400_000, F32, 100_000))
    assert caught.value.__traceback__ is not None
    assert [ref() for ref in allocated] == [None, None]
    links = (os.readlink(link.path) for link in os.scandir("/proc/self/fd") if link.is_file())
    assert sum(link == str(tmp_path / "weights.bin") for link in links) == 1  # the mapping's


def test_a_load_that_is_cancelled(source: Source) -> None:
    def check() -> None:
        raise ModelLoadCanceled("enough")

    references = [WeightReference("w", at(source, 0, F32, 500_000))]
    with pytest.raises(ModelLoadCanceled, match="enough"):
        LoaderManager([TorchLoader(CPU)]).place(references, "cpu", unused, check)
    same(place(references[0].const)[0], references[0].const)


def test_progress(source: Source) -> None:
    seen: list[tuple[int, int]] = []

    recorder = SimpleNamespace(update=lambda *done_and_total: seen.append(done_and_total))
    with progress.use_display(lambda _: contextlib.nullcontext(recorder)):
        place(at(source, 0, F32, 500_000), at(source, 2_000_000, F32, 1000))
    assert seen[-1] == (2_004_000, 2_004_000)
    assert seen == sorted(seen)


@pytest.mark.parametrize("is_faster", [False, True])
def test_cold_files_are_read_the_faster_way(
    is_faster: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is cached here, and both ways are tried."""
    ways: list[str] = []
    clock = [0.0]
    past, through = reading.OpenFile._read_direct, reading.OpenFile._read_buffered

    def slow(read: Any, way: str, is_slow: bool) -> Any:
        def call(self: Any, *args: Any) -> Any:
            ways.append(way)
            clock[0] += 1.0 if is_slow else 0.01
            return read(self, *args)

        return call

    monkeypatch.setattr(reading, "_TRIAL", 256 * KB)
    monkeypatch.setattr(reading, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(reading.OpenFile, "_read_cached", lambda *_: 0)
    monkeypatch.setattr(reading.OpenFile, "_read_direct", slow(past, "past", not is_faster))
    monkeypatch.setattr(reading.OpenFile, "_read_buffered", slow(through, "through", is_faster))
    const = at(mapped(tmp_path / "w", BYTES), 5, F32, 700_000)
    same(place(const)[0], const)
    if "past" not in ways:
        pytest.skip("the file system has no reads past the page cache")
    assert ways[:4] == ["through"] * 4
    assert set(ways[-8:]) == {"past" if is_faster else "through"}


def test_it_loads_to_its_own_device() -> None:
    assert TorchLoader(CPU).can_load("cpu")
    assert not TorchLoader(CPU).can_load("cuda:0")
    assert TorchLoader(CPU, "torch-cpu").can_load("torch-cpu")
    assert TorchLoader(torch.device("cuda:1")).can_load("cuda:1")


def test_staging_buffer_sizes(source: Source, monkeypatch: Any) -> None:
    monkeypatch.undo()
    sizes = [10, 200 << 20, 20 << 30]
    found = [module._capacity([WeightReference("w", at(source, 0, U8, n))]) for n in sizes]
    assert found == [1 << 20, (200 << 20) // 64, 8 << 20]


@pytest.mark.parametrize("n_threads", [0, 1, 64])
def test_any_number_of_threads(n_threads: int, source: Source) -> None:
    const = at(source, 0, F32, 100_000)
    tensor = torch.empty(100_000)
    TorchLoader(CPU, n_threads=n_threads).load(WeightReference("w", const), tensor)
    same(tensor, const)


def test_sessions_load_a_weight_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    load_many = TorchLoader.load_many

    def seen(self: Any, pairs: Any, report: Any) -> None:
        loaded.extend(reference.name for reference, _ in pairs)
        load_many(self, pairs, report)

    monkeypatch.setattr(TorchLoader, "load_many", seen)
    (tmp_path / "w.data").write_bytes(b"\1" * 3 + models.SQUARE.tobytes())
    weight = models.external("w", models.SQUARE, "w.data", 3)
    path = models.settled(tmp_path / "m.onnx", models.product(weight))
    x = np.ones((2, 192), np.float32)
    kept = []
    for level in (0, 99):  # programs of their own
        options = sardonyx.SessionOptions()
        options.graph_optimization_level = level
        providers = [("TorchExecutionProvider", {"device": "cpu"})]
        kept.append(sardonyx.InferenceSession(path, options, providers=providers))
        (y,) = kept[-1].run(None, {"x": x})
        np.testing.assert_allclose(y, x @ models.SQUARE, 1e-4, 1e-4)
    assert loaded == ["w"]


def test_a_session_whose_file_changes_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "w.data").write_bytes(models.SQUARE.tobytes())
    weight = models.external("w", models.SQUARE, "w.data")
    path = models.settled(tmp_path / "m.onnx", models.product(weight))
    options = sardonyx.SessionOptions()
    options.add_session_config_entry("sardonyx.defer_weights", "1")
    providers = [("TorchExecutionProvider", {"device": "cpu"})]
    session = sardonyx.InferenceSession(path, options, providers=providers)
    rewrite(tmp_path / "w.data", 7)
    with pytest.raises(Fail, match=r"w.data changed since the model was opened"):
        session.run(None, {"x": np.ones((2, 192), np.float32)})


def test_a_buffer_is_filled_again_when_its_copy_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """With events and streams that only write down what is asked of them."""
    said: list[str] = []

    class Recorder:
        def __init__(self, *_: Any) -> None: ...
        def query(self) -> bool:
            return said.count("record") > 1

        def __getattr__(self, name: str) -> Any:
            return lambda *_: said.append(name)

    class Module:
        Stream = Event = current_stream = Recorder

    monkeypatch.setattr(torch, "cpu", Module)
    monkeypatch.setattr(ring_module, "_STREAMED", ("cpu",))
    ring = ring_module.Ring(CPU, 1, 4096)
    assert said == ["wait_stream"]
    for _ in range(3):
        buffer = ring.take()
        assert buffer is not None
        ring.give_back(buffer)
    ring.close()
    # Before the second one the copy was under way still, before the third one it was over.
    assert said[1:] == ["record", "synchronize", "record", "record", "synchronize"]
