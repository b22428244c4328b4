"""Weights in buffers that the user gives: any kind of buffer, no copy, kept alive, checked."""

from __future__ import annotations

import array as arrays
import ctypes
import gc
import mmap
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx import errors
from tests.weights import models
from tests.weights.models import ROWS, apart, external, large, lookup, settled

LOOKUP = lookup(external("table", ROWS, "w.data")).SerializeToString()
I = np.array([3, 500, 0])  # noqa: E741 - the model's input
FEED = {"i": I}


class DLPack:
    """A tensor of a library that knows DLPack and nothing else."""

    def __init__(self, array: Any, device: tuple[int, int] = (1, 0)) -> None:
        self._array, self._device = array, device

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


class Tensor:
    """A tensor of a library that has `numpy()`."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def numpy(self) -> Any:
        return self._array


def mapped(data: bytes) -> mmap.mmap:
    memory = mmap.mmap(-1, len(data))
    memory[:] = data
    return memory


def ctypes_floats(data: bytes) -> Any:
    return (ctypes.c_float * (len(data) // 4)).from_buffer_copy(data)


BUFFERS = {
    "bytes": lambda a: a.tobytes(),
    "bytearray": lambda a: bytearray(a.tobytes()),
    "memoryview": lambda a: memoryview(a.tobytes()),
    "mmap": lambda a: mapped(a.tobytes()),
    "numpy bytes": lambda a: np.frombuffer(a.tobytes(), np.uint8),
    "numpy": lambda a: a.copy(),
    "array": lambda a: arrays.array("f", a.tobytes()),
    "ctypes": lambda a: ctypes_floats(a.tobytes()),
    "dlpack": lambda a: DLPack(a.copy()),
    "tensor": lambda a: Tensor(a.copy()),
    "OrtValue": lambda a: sardonyx.OrtValue.ortvalue_from_numpy(a.copy()),
    "onnxruntime's": lambda a: onnxruntime.OrtValue.ortvalue_from_numpy(a.copy()),
}


def with_files(files: dict[str, Any], lengths: list[int] | None = None) -> sardonyx.SessionOptions:
    options = sardonyx.SessionOptions()
    sizes = [memoryview(f).nbytes for f in files.values()] if lengths is None else lengths
    options.add_external_initializers_from_files_in_memory(list(files), list(files.values()), sizes)
    return options


@pytest.mark.parametrize("kind", BUFFERS)
def test_files_in_any_buffer(kind: str) -> None:
    buffer = BUFFERS[kind](ROWS)
    options = with_files({"./w.data": buffer}, [ROWS.nbytes])
    session = sardonyx.InferenceSession(LOOKUP, options)
    np.testing.assert_array_equal(session.run(None, FEED)[0], ROWS[I])


@pytest.mark.parametrize("kind", ["numpy", "dlpack", "tensor", "OrtValue", "onnxruntime's"])
def test_initializers_in_any_tensor(kind: str) -> None:
    tensor = BUFFERS[kind](ROWS)
    options = sardonyx.SessionOptions()
    options.add_initializer("table", tensor)
    session = sardonyx.InferenceSession(LOOKUP, options)
    np.testing.assert_array_equal(session.run(None, FEED)[0], ROWS[I])


def address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


@pytest.mark.parametrize("kind", ["numpy", "tensor", "OrtValue", "dlpack"])
def test_nothing_is_copied(kind: str) -> None:
    table = ROWS.copy()
    wrapped = {
        "numpy": lambda: table,
        "tensor": lambda: Tensor(table),
        "OrtValue": lambda: onnxruntime.OrtValue.ortvalue_from_numpy(table),
        "dlpack": lambda: DLPack(table),
    }[kind]()
    as_file = sardonyx.InferenceSession(LOOKUP, with_files({"w.data": wrapped}, [table.nbytes]))
    options = sardonyx.SessionOptions()
    options.add_external_initializers(["table"], [wrapped])
    as_tensor = sardonyx.InferenceSession(LOOKUP, options)
    assert address(large(as_file)) == address(large(as_tensor)) == address(table)


def test_memory_does_not_grow_with_the_weights(tmp_path: Path) -> None:
    """A table of 256 MB in a mapped file, which is a hole on the disk."""
    rows = 1 << 16
    (tmp_path / "w.data").touch()
    with (tmp_path / "w.data").open("r+b") as file:
        file.truncate(rows * 4096)
    table = TensorProto(name="table", data_type=TensorProto.FLOAT, dims=(rows, 1024))
    table.data_location = TensorProto.EXTERNAL
    table.external_data.add(key="location", value="w.data")
    path = settled(tmp_path / "m.onnx", lookup(table))
    code = """
        with open(given["data"], "rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        options = sardonyx.SessionOptions()
        options.add_external_initializers_from_files_in_memory(["w.data"], [data], [len(data)])
        with open(given["model"], "rb") as file:
            model = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        feed = {"i": np.arange(4)}
        before = mb()
        session = sardonyx.InferenceSession(model, options)
        session.run(None, feed)
        other = sardonyx.InferenceSession(model, options)
        print(json.dumps({"grown": mb() - before}))
    """
    found = apart(code, data=tmp_path / "w.data", model=path)
    assert found["grown"] < 20


def test_some_files_in_memory_and_others_on_disk(tmp_path: Path) -> None:
    small = np.arange(48, dtype=np.float32)
    (tmp_path / "bias.data").write_bytes(small.tobytes())
    made = lookup(external("table", ROWS, "sub/w.data"))
    made.graph.node[0].output[0] = "rows"
    made.graph.node.append(helper.make_node("Add", ["rows", "bias"], ["y"]))
    made.graph.initializer.append(external("bias", small, "bias.data"))
    options = with_files({"sub\\w.data": ROWS.tobytes()})
    key = "session.model_external_initializers_file_folder_path"
    options.add_session_config_entry(key, str(tmp_path))
    for source in (made.SerializeToString(), settled(tmp_path / "m.onnx", made)):
        session = sardonyx.InferenceSession(source, options)
        np.testing.assert_array_equal(session.run(None, FEED)[0], ROWS[I] + small)


def test_mismatched_file_names(tmp_path: Path) -> None:
    path = settled(tmp_path / "m.onnx", onnx.load_from_string(LOOKUP))
    for source in (LOOKUP, path):
        with pytest.raises(errors.SardonyxError, match=r"names 'w.data'; in memory are 'W.data'"):
            sardonyx.InferenceSession(source, with_files({"W.data": ROWS.tobytes()}))


def test_a_model_in_memory_finds_its_files_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "w.data").write_bytes(ROWS.tobytes())
    with pytest.raises(errors.InvalidGraph, match="the model was given in memory"):
        sardonyx.InferenceSession(LOOKUP)
    options = sardonyx.SessionOptions()
    key = "session.model_external_initializers_file_folder_path"
    options.add_session_config_entry(key, str(tmp_path))
    session = sardonyx.InferenceSession(LOOKUP, options)
    np.testing.assert_array_equal(session.run(None, FEED)[0], ROWS[I])


def in_a_body(weight: onnx.TensorProto) -> onnx.ModelProto:
    bodies = [
        helper.make_graph([node], "body", [], [models.info("z", None)], weights)
        for node, weights in (
            (helper.make_node("Gather", ["table", "i"], ["z"]), [weight]),
            (helper.make_node("Cast", ["i"], ["z"], to=TensorProto.FLOAT), []),
        )
    ]
    node = helper.make_node("If", ["c"], ["y"], then_branch=bodies[0], else_branch=bodies[1])
    inputs = [models.info("c", [], TensorProto.BOOL), models.info("i", ["N"], TensorProto.INT64)]
    return models.model([node], inputs, [models.info("y", None)], [])


def test_initializers_of_bodies() -> None:
    made = in_a_body(external("table", ROWS, "w.data")).SerializeToString()
    by_name = sardonyx.SessionOptions()
    by_name.add_initializer("table", ROWS)
    for options in (with_files({"w.data": ROWS.tobytes()}), by_name):
        session = sardonyx.InferenceSession(made, options)
        (y,) = session.run(None, {"c": np.array(True), "i": I})
        np.testing.assert_array_equal(y, ROWS[I])


@pytest.mark.parametrize(
    "values",
    [
        ROWS.astype(np.float16),
        ROWS.astype(ml_dtypes.bfloat16),
        np.arange(20_000).reshape(-1, 2),
        np.arange(6, dtype=np.int8),
        np.array(["a", "b", "c"], object),
    ],
    ids=lambda v: str(v.dtype),
)
def test_initializers_of_any_type(values: Any) -> None:
    kind = helper.np_dtype_to_tensor_dtype(values.dtype)
    given = TensorProto(name="table", data_type=kind, dims=values.shape)
    if values.dtype == object:
        given.string_data.extend([b"x"] * values.size)
    else:
        given.raw_data = bytes(values.nbytes)
    options = sardonyx.SessionOptions()
    options.add_initializer("table", values)
    session = sardonyx.InferenceSession(lookup(given), options)
    (y,) = session.run(None, {"i": np.array([2, 0])})
    assert y.dtype == values.dtype
    assert y.tolist() == values[[2, 0]].tolist()


def test_initializers_of_4_bits() -> None:
    values = np.arange(6).astype(ml_dtypes.int4)
    given = TensorProto(name="w", data_type=TensorProto.INT4, dims=(6,), raw_data=bytes(3))
    nodes = [
        helper.make_node("Cast", ["w"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "f"], ["y"]),
    ]
    made = models.model(nodes, [models.info("x", [6])], [models.info("y", [6])], [given])
    options = sardonyx.SessionOptions()
    options.add_initializer("w", values)
    (y,) = sardonyx.InferenceSession(made, options).run(None, {"x": np.zeros(6, np.float32)})
    assert y.tolist() == [0, 1, 2, 3, 4, 5]


GOOD = ROWS.tobytes()


@pytest.mark.parametrize(
    ("files", "lengths", "says"),
    [
        ({"w.data": GOOD}, [len(GOOD) + 1], rf"has {len(GOOD)} bytes, and its length is stated"),
        ({"w.data": GOOD}, [-1], "length is stated as -1"),
        ({"w.data": GOOD}, ["7"], "length is stated as '7'"),
        ({"w.data": GOOD}, [], "differ in number: 1, 1, 0"),
        ({"w.data": GOOD, "./w.data": GOOD}, None, "the file ./w.data is added twice"),
        ({"w.data": ROWS.T}, None, r"not contiguous: its strides are \[4, 192\]"),
        ({"w.data": memoryview(GOOD)[::2]}, None, "is not contiguous"),
        ({"w.data": np.array([None, 3], object)}, [16], "an array of objects"),
        ({"w.data": "text"}, [4], "must be a buffer .*, got str"),
        ({"w.data": [1, 2, 3]}, [3], "must be a buffer .*, got list"),
        ({"w.data": DLPack(ROWS, (2, 0))}, [1], "another device than the CPU"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_files_that_are_refused(files: Any, lengths: Any, says: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=says):
        with_files(files, lengths)


def test_a_refusal_adds_nothing() -> None:
    options = sardonyx.SessionOptions()
    with pytest.raises(errors.InvalidArgument):
        options.add_external_initializers_from_files_in_memory(["a", "b"], [b"1", "2"], [1, 1])
    options.add_external_initializers_from_files_in_memory(["a"], [b"1"], [1])
    with pytest.raises(errors.InvalidArgument, match="a is added twice"):
        options.add_external_initializers_from_files_in_memory(["a"], [b"1"], [1])


def test_a_buffer_that_is_too_short() -> None:
    options = with_files({"w.data": GOOD[:-1]})
    with pytest.raises(errors.InvalidGraph, match=rf"has {len(GOOD) - 1} bytes, and the tensor"):
        sardonyx.InferenceSession(LOOKUP, options)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (ROWS.astype(np.float64), r"is f32\[512, 48\], and f64\[512, 48\] was given"),
        (ROWS[:3], r"and f32\[3, 48\] was given"),
        (np.asfortranarray(ROWS), "not contiguous"),
        (np.zeros(ROWS.shape, "datetime64[s]"), r"and datetime64\[s\]\[512, 48\] was given"),
        ({"a": 1}, "must be an array, a tensor or an OrtValue, got dict"),
        (DLPack(ROWS, (2, 0)), "another device than the CPU"),
        (None, "got NoneType"),
    ],
    ids=["type", "shape", "order", "dates", "dict", "device", "none"],
)
def test_initializers_that_are_refused(value: Any, says: str) -> None:
    options = sardonyx.SessionOptions()
    options.add_initializer("table", value)
    with pytest.raises(errors.InvalidArgument, match=says):
        sardonyx.InferenceSession(LOOKUP, options)


@pytest.mark.parametrize(
    ("kind", "stored"), [(TensorProto.BFLOAT16, np.uint16), (TensorProto.FLOAT8E4M3FN, np.uint8)]
)
def test_types_of_onnxruntime_that_numpy_lacks(kind: int, stored: Any) -> None:
    bits = np.arange(1 << 17).astype(stored).reshape(-1, 2)
    value = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, kind)
    given = TensorProto(name="w", data_type=kind, dims=bits.shape, raw_data=bytes(bits.nbytes))
    options = sardonyx.SessionOptions()
    options.add_initializer("w", value)
    nodes = [
        helper.make_node("Cast", ["w"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Gather", ["f", "i"], ["y"]),
    ]
    made = models.model(
        nodes, [models.info("i", ["N"], TensorProto.INT64)], [models.info("y", None)], [given]
    )
    session = sardonyx.InferenceSession(made, options)
    del value, options
    gc.collect()
    wanted = bits.view(helper.tensor_dtype_to_np_dtype(kind))[I].astype(np.float32)
    np.testing.assert_array_equal(session.run(None, FEED)[0], wanted)


def test_tensors_that_cannot_be_read() -> None:
    class Far(Tensor):
        def numpy(self) -> Any:
            raise TypeError("can't convert a tensor that requires grad")

    options = sardonyx.SessionOptions()
    options.add_initializer("table", Far(ROWS))
    with pytest.raises(errors.InvalidArgument, match="cannot be read: can't convert"):
        sardonyx.InferenceSession(LOOKUP, options)


def test_an_initializer_is_given_once() -> None:
    options = sardonyx.SessionOptions()
    options.add_initializer("table", ROWS)
    with pytest.raises(errors.InvalidArgument, match="table is added twice"):
        options.add_initializer("table", ROWS)
    with pytest.raises(errors.InvalidArgument, match="1 names and 2 values"):
        options.add_external_initializers(["other"], [ROWS, ROWS])


def resize(buffer: Any) -> None:
    if isinstance(buffer, bytearray):
        buffer.append(1)
    else:
        buffer.close()


@pytest.mark.parametrize("kind", ["bytearray", "mmap"])
def test_a_buffer_cannot_be_taken_away(kind: str) -> None:
    buffer = BUFFERS[kind](ROWS)
    session = sardonyx.InferenceSession(LOOKUP, with_files({"w.data": buffer}))
    with pytest.raises(BufferError):
        resize(buffer)
    np.testing.assert_array_equal(session.run(None, FEED)[0], ROWS[I])
    del session
    gc.collect()
    resize(buffer)


def test_shared_memory_that_is_closed_stays_mapped() -> None:
    shared = shared_memory.SharedMemory(create=True, size=ROWS.nbytes)
    try:
        shared.buf[: ROWS.nbytes] = ROWS.tobytes()
        options = with_files({"w.data": shared.buf}, [ROWS.nbytes])
        session = sardonyx.InferenceSession(LOOKUP, options)
        with pytest.raises(BufferError):
            shared.close()
        np.testing.assert_array_equal(session.run(None, FEED)[0], ROWS[I])
        del session, options
        gc.collect()
    finally:
        shared.close()
        shared.unlink()


def test_a_session_keeps_its_buffer() -> None:
    options = with_files({"w.data": bytearray(GOOD)})
    session = sardonyx.InferenceSession(LOOKUP, options)
    del options
    gc.collect()
    held = [bytearray(len(GOOD)) for _ in range(4)]
    np.testing.assert_array_equal(session.run(None, FEED)[0], ROWS[I])
    assert len(held) == 4


def test_a_mapped_model_is_not_read_like_a_file() -> None:
    data = mapped(lookup(numpy_helper.from_array(ROWS, "table")).SerializeToString())
    data.seek(7)
    session = sardonyx.InferenceSession(data)
    assert data.tell() == 7
    np.testing.assert_array_equal(session.run(None, FEED)[0], ROWS[I])


def test_an_ort_value_says_what_it_is() -> None:
    ours = sardonyx.OrtValue.ortvalue_from_numpy(ROWS)
    theirs = onnxruntime.OrtValue.ortvalue_from_numpy(ROWS)
    for name in ("shape", "element_type", "data_type", "device_name", "data_ptr", "has_value",
                 "tensor_size_in_bytes", "is_tensor", "is_sparse_tensor",
                 "is_tensor_sequence"):  # fmt: skip
        assert getattr(ours, name)() == getattr(theirs, name)(), name
    np.testing.assert_array_equal(ours.numpy(), ROWS)
    with pytest.raises(errors.InvalidArgument, match="no tensors of datetime64"):
        sardonyx.OrtValue.ortvalue_from_numpy(np.zeros(3, "datetime64[s]"))
    with pytest.raises(errors.InvalidArgument, match="cuda"):
        sardonyx.OrtValue.ortvalue_from_numpy(ROWS, "cuda")
