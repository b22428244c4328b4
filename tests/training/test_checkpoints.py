"""Checkpoints: of Sardonyx and of onnxruntime-training, damaged ones and hostile ones."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from sardonyx.base.flatbuffer import InvalidFlatBuffer
from sardonyx.base.flatbuffer_writer import Scalar, file, table, tables, text
from sardonyx.errors import InvalidArgument, NoSuchFile, NotImplemented, SardonyxError
from sardonyx.train.checkpoint import load_tensors, save_tensors
from sardonyx.training.checkpoint import load_state, save_ort_checkpoint, save_state
from sardonyx.training.ort_checkpoint import read_ort_checkpoint
from sardonyx.training.state import DEFAULT_RATE, OptimizerState, ParameterState, TrainingState

GOLDEN = Path(__file__).parent / "golden"
HALF = GOLDEN / "mlp" / "half"


def small_state() -> TrainingState:
    state = TrainingState()
    state.add(ParameterState("a/b", True, np.arange(6, dtype=np.float32).reshape(2, 3)))
    state.add(ParameterState("scale", False, np.array(2.5, np.float16)))
    moments = {"a/b": {"momentum0": np.ones((2, 3), np.float32)}}
    state.groups["group0"] = OptimizerState(7, 0.5, 0.25, moments)
    state.set_property("n", 3)
    state.set_property("rate", 0.1)
    state.set_property("note", "ä")
    return state


def test_round_trip(tmp_path):
    state = small_state()
    save_state(state, tmp_path / "c", include_optimizer_state=True)
    loaded = load_state(tmp_path / "c")
    assert [p.name for p in loaded.parameters.values()] == ["a/b", "scale"]
    assert [p.requires_grad for p in loaded.parameters.values()] == [True, False]
    for name, parameter in state.parameters.items():
        data = loaded.parameters[name].data
        assert data.dtype == parameter.data.dtype
        assert data.shape == parameter.data.shape
        assert data.tobytes() == parameter.data.tobytes()
        assert data.flags.writeable
    group = loaded.groups["group0"]
    assert (group.step, group.initial_rate, group.rate) == (7, 0.5, 0.25)
    assert group.moments["a/b"]["momentum0"].tolist() == [[1, 1, 1], [1, 1, 1]]
    assert loaded.properties == {"n": 3, "rate": float(np.float32(0.1)), "note": "ä"}


def test_the_optimizer_state_is_optional(tmp_path):
    save_state(small_state(), tmp_path / "c")
    assert load_state(tmp_path / "c").groups == {}
    assert set(load_tensors(tmp_path / "c").tensors) == {"parameter/a/b", "parameter/scale"}


def test_checkpoints_of_onnxruntime():
    state = load_state(HALF)
    assert {n: p.requires_grad for n, p in state.parameters.items()} == {
        "fc1.weight": True, "fc1.bias": False, "fc2.weight": True, "fc2.bias": True,
    }  # fmt: skip
    assert state.parameters["fc1.weight"].data.shape == (16, 6)
    assert state.groups["group0"].step == 25
    assert state.groups["group0"].moments["fc2.bias"]["momentum1"].shape == (4,)
    assert state.properties == {"step": 25, "note": "half", "rate": float(np.float32(0.1))}
    assert not state.is_nominal


def test_nominal_checkpoints_of_onnxruntime(tmp_path):
    state = load_state(GOLDEN / "nominal" / "nominal_checkpoint")
    assert state.is_nominal
    assert len(state.parameters) == 4
    assert all(p.data is None for p in state.parameters.values())
    save_state(state, tmp_path / "c")
    assert load_state(tmp_path / "c").is_nominal


def test_truncated_files():
    data = HALF.read_bytes()
    for size in range(0, len(data), 7):
        with pytest.raises(SardonyxError):
            read_ort_checkpoint(memoryview(data[:size]), "half")


def test_a_truncated_file_says_what_is_missing(tmp_path):
    (tmp_path / "half").write_bytes(HALF.read_bytes()[:1000])
    with pytest.raises(InvalidFlatBuffer, match=r"half is not a valid checkpoint: bytes .* it has"):
        load_state(tmp_path / "half")


def test_damaged_files():
    """Any bytes give a state or an error of ours, never another exception."""
    data, rng = HALF.read_bytes(), np.random.default_rng(0)
    for _ in range(1500):
        damaged = bytearray(data)
        for at in rng.integers(0, len(data), rng.integers(1, 8)):
            damaged[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, int(rng.integers(256))))
        try:
            state = read_ort_checkpoint(memoryview(damaged), "half")
        except SardonyxError:
            continue
        assert sum(p.data.nbytes for p in state.parameters.values() if p.data is not None) < 1e5


def test_entries_that_share_bytes_are_refused():
    """100 properties that refer to one string of 10 kB are not read as 1 MB."""
    positions = []

    def recorded(out: bytearray) -> int:
        values = ["x"] * 99 + ["x" * 10_000]
        properties = [table([text(f"p{i}"), text(value)]) for i, value in enumerate(values)]
        positions.append(tables(properties)(out))
        return positions[-1]

    bag = table([tables([]), tables([]), recorded])
    data = file(table([Scalar("<i", 2), None, tables([]), bag]), b"ODTC")
    assert len(read_ort_checkpoint(memoryview(data), "c").properties) == 100
    begin = positions[0] + 4
    last = begin + 4 * 99
    end = last + struct.unpack_from("<I", data, last)[0]
    for i in range(100):
        struct.pack_into("<I", data, begin + 4 * i, end - (begin + 4 * i))
    with pytest.raises(InvalidFlatBuffer, match="refer to the same bytes"):
        read_ort_checkpoint(memoryview(data), "c")


def test_onnxruntime_reads_our_checkpoints(tmp_path):
    state = small_state()
    save_ort_checkpoint(state, tmp_path / "c", include_optimizer_state=True)
    loaded = load_state(tmp_path / "c")
    for name, parameter in state.parameters.items():
        assert loaded.parameters[name].data.tobytes() == parameter.data.tobytes()
        assert loaded.parameters[name].requires_grad == parameter.requires_grad
    group = loaded.groups["group0"]
    assert (group.step, group.initial_rate, group.rate) == (7, 0.5, DEFAULT_RATE)
    assert group.moments["a/b"]["momentum0"].tolist() == [[1, 1, 1], [1, 1, 1]]
    assert loaded.properties == state.properties


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*/half")), ids=lambda p: p.parent.name)
def test_onnxruntimes_contents_are_written_unchanged(path, tmp_path):
    state = load_state(path)
    save_ort_checkpoint(state, tmp_path / "c", include_optimizer_state=True)
    assert str(load_state(tmp_path / "c")) == str(state)


def test_an_unknown_version(tmp_path):
    data = bytearray(HALF.read_bytes())
    root = struct.unpack_from("<I", data)[0]
    vtable = root - struct.unpack_from("<i", data, root)[0]
    version = root + struct.unpack_from("<H", data, vtable + 4)[0]
    data[version : version + 4] = struct.pack("<i", 99)
    (tmp_path / "c").write_bytes(data)
    with pytest.raises(NotImplemented, match="version 99 of onnxruntime's checkpoint format"):
        load_state(tmp_path / "c")


def test_files_that_are_no_checkpoints(tmp_path):
    with pytest.raises(NoSuchFile, match=r"there is no file .*missing"):
        load_state(tmp_path / "missing")
    (tmp_path / "text").write_text("hello, this is not a checkpoint")
    with pytest.raises(InvalidArgument, match="text is truncated or not a safetensors file"):
        load_state(tmp_path / "text")
    save_tensors(tmp_path / "other", {"w": np.ones(2)})
    with pytest.raises(InvalidArgument, match="other is a safetensors file, and not a checkpoint"):
        load_state(tmp_path / "other")


@pytest.mark.parametrize(
    "change",
    [
        {"parameters": [["missing", True]]},
        {"parameters": 3},
        {"groups": {"g": [1]}},
        {"groups": {"g": ["x", 0, 0]}},
        {"properties": {"p": [1]}},
        {"properties": {"p": 2**70}},
    ],
)
def test_metadata_that_does_not_fit(change, tmp_path):
    save_state(small_state(), tmp_path / "c")
    file = load_tensors(tmp_path / "c")
    save_tensors(tmp_path / "d", file.tensors, {**file.metadata, **change})
    with pytest.raises(InvalidArgument):
        load_state(tmp_path / "d")


def test_a_failed_save_leaves_the_file(tmp_path):
    save_state(small_state(), tmp_path / "c")
    before = (tmp_path / "c").read_bytes()
    state = small_state()
    state.parameters["scale"].data = np.array(["text"], object)
    with pytest.raises(InvalidArgument, match=r"parameter/scale has the type object"):
        save_state(state, tmp_path / "c")
    assert (tmp_path / "c").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["c"]
