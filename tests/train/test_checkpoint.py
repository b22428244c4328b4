"""Checkpoint files: round trips, other programs' files, damage, full disks and killed writers."""

from __future__ import annotations

import json
import os
import resource
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sardonyx.errors import Fail, InvalidArgument, NoSuchFile
from sardonyx.train.checkpoint import CheckpointFolder, load_tensors, save_tensors

TYPES = [
    *("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?", "c8"),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
]


def tensors_of_all_types() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {str(np.dtype(t)): (rng.standard_normal((3, 5)) * 9).astype(t) for t in TYPES}


def test_round_trip(tmp_path: Path) -> None:
    written: dict[str, Any] = tensors_of_all_types()
    written |= {"scalar": np.float32(3), "empty": np.empty((0, 7)), "strided": np.eye(4)[::2].T}
    metadata = {"step": 12, "seed": [1, 2**70], "nested": {"ä": None, "x": 0.1}}
    save_tensors(tmp_path / "a.safetensors", written, metadata)
    read = load_tensors(tmp_path / "a.safetensors")
    assert read.metadata == metadata
    assert read.tensors.keys() == written.keys()
    for name, array in written.items():
        got = read.tensors[name]
        assert (got.dtype, got.shape) == (np.asarray(array).dtype, np.shape(array)), name
        assert got.tobytes() == np.asarray(array).tobytes(), name
        assert got.flags.aligned
        assert not got.flags.writeable


def test_big_endian_is_converted(tmp_path: Path) -> None:
    save_tensors(tmp_path / "a", {"x": np.array([1, 2], ">i4")})
    assert load_tensors(tmp_path / "a").tensors["x"].tolist() == [1, 2]


def test_the_safetensors_library_agrees(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy")
    arrays = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.arange(3, dtype=np.int8)}
    save_tensors(tmp_path / "ours", arrays, {"step": 1})
    assert {n: a.tolist() for n, a in library.load_file(tmp_path / "ours").items()} == {
        n: a.tolist() for n, a in arrays.items()
    }
    library.save_file(arrays, tmp_path / "theirs", metadata={"format": "np"})
    read = load_tensors(tmp_path / "theirs")
    assert read.metadata == {"format": "np"}
    assert read.tensors["w"].tolist() == arrays["w"].tolist()


@pytest.mark.parametrize("what", ["strings", "objects", "int4"])
def test_types_that_the_format_lacks(what: str, tmp_path: Path) -> None:
    arrays = {
        "strings": np.array(["a"]),
        "objects": np.array([None]),
        "int4": np.zeros(2, ml_dtypes.int4),
    }
    with pytest.raises(InvalidArgument, match="the tensor x has the type"):
        save_tensors(tmp_path / "a", {"x": arrays[what]})
    with pytest.raises(InvalidArgument, match="cannot be written as JSON"):
        save_tensors(tmp_path / "a", {}, {"x": object()})
    with pytest.raises(InvalidArgument, match="reserved"):
        save_tensors(tmp_path / "a", {"__metadata__": np.zeros(1)})
    assert not os.listdir(tmp_path)


def hostile(header: Any, body: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def entry(**changes: Any) -> dict[str, Any]:
    return {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}


HOSTILE = {
    "empty": b"",
    "short": b"\0" * 7,
    "long header": hostile({}, length=2**63),
    "header after the end": hostile({}, length=3),
    "not text": hostile(b"\xff\xfe{}"),
    "not json": hostile(b"{"),
    "deep json": hostile(b"[" * 100_000),
    "no object": hostile([]),
    "duplicates": hostile(b'{"a": 1, "a": 1}'),
    "entry": hostile({"x": 1}),
    "no shape": hostile({"x": {"dtype": "F32", "data_offsets": [0, 8]}}, b"\0" * 8),
    "type": hostile(entry(dtype="Q9"), b"\0" * 8),
    "type of a type": hostile(entry(dtype=[]), b"\0" * 8),
    "negative": hostile(entry(shape=[-2]), b"\0" * 8),
    "float": hostile(entry(shape=[2.0]), b"\0" * 8),
    "bool": hostile(entry(shape=[True, 2]), b"\0" * 8),
    "overflow": hostile(entry(shape=[2**62, 4, 2]), b"\0" * 8),
    "many dims": hostile(entry(shape=[1] * 99 + [2]), b"\0" * 8),
    "outside": hostile(entry(data_offsets=[4, 12]), b"\0" * 8),
    "reversed": hostile(entry(data_offsets=[8, 0]), b"\0" * 8),
    "size": hostile(entry(data_offsets=[0, 4]), b"\0" * 4),
    "gap": hostile(entry(data_offsets=[4, 12]), b"\0" * 12),
    "rest": hostile(entry(), b"\0" * 9),
    "overlap": hostile(entry() | {"y": entry()["x"]}, b"\0" * 8),
    "metadata": hostile({"__metadata__": {"a": 1}}),
    "own metadata": hostile({"__metadata__": {"sardonyx": "{"}}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files(name: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(HOSTILE[name])
    with pytest.raises(InvalidArgument, match="truncated or not a safetensors file"):
        load_tensors(tmp_path / "a")


def test_every_truncation_is_an_error(tmp_path: Path) -> None:
    save_tensors(tmp_path / "a", {"x": np.arange(3), "y": np.ones(2, np.int8)}, {"k": 1})
    whole = (tmp_path / "a").read_bytes()
    for size in range(len(whole)):
        (tmp_path / "b").write_bytes(whole[:size])
        with pytest.raises(InvalidArgument, match="truncated or not a safetensors file"):
            load_tensors(tmp_path / "b")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(NoSuchFile):
        load_tensors(tmp_path / "a")


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.save(1, {"x": np.arange(4)})
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    blocked = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limit[1]))
    try:
        with pytest.raises(Fail, match="cannot be written: File too large"):
            folder.save(2, {"x": np.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, blocked)
    assert os.listdir(tmp_path) == ["step-00000001.safetensors"]
    latest = folder.load_latest()
    assert latest is not None
    assert (latest.metadata, latest.tensors["x"].tolist()) == ({"step": 1}, [0, 1, 2, 3])


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "inside"):
        for write in (CheckpointFolder.create, lambda folder: folder.save(1, {})):
            with pytest.raises(Fail, match="cannot be created: a file is in its place"):
                write(CheckpointFolder(path))
    with pytest.raises(Fail, match="cannot be created: No such file"):
        CheckpointFolder("/proc/none/inside").create()
    with pytest.raises(Fail, match="/proc/self cannot be written to"):
        CheckpointFolder("/proc/self").create()


def test_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "new", keep=2)
    assert folder.latest() is None
    assert folder.load_latest() is None
    for step in (1, 2, 9, 10):
        path = folder.save(step, {"x": np.array(step)})
    assert list(folder.steps()) == [9, 10]
    assert folder.latest() == path
    with pytest.raises(InvalidArgument, match="keep must be at least 1, got 0"):
        CheckpointFolder(tmp_path, keep=0)


def test_all_checkpoints_are_kept(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=None)
    for step in range(5):
        folder.save(step, {})
    assert list(folder.steps()) == list(range(5))


def test_a_damaged_checkpoint_is_skipped(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=3)
    for step in (1, 2, 3):
        folder.save(step, {"x": np.array(step)})
    for step in (2, 3):
        path = folder.steps()[step]
        os.truncate(path, os.path.getsize(path) - 1)
    latest = folder.load_latest()
    assert latest is not None
    assert latest.metadata["step"] == 1
    # A run that resumes from it abandons the steps after it.
    folder.save(2, {"x": np.array(2)})
    assert list(folder.steps()) == [1, 2]
    for path in folder.steps().values():
        os.truncate(path, 9)
    with pytest.raises(InvalidArgument, match="truncated or not"):
        folder.load_latest()


WRITER = """
import sys, numpy as np
from sardonyx.train.checkpoint import CheckpointFolder
folder = CheckpointFolder(sys.argv[1], keep=2)
step = max(folder.steps(), default=0)
print("ready", flush=True)
while True:
    step += 1
    folder.save(step, {"x": np.full(20_000, step)})
"""


def test_killed_writers_leave_whole_checkpoints(tmp_path: Path) -> None:
    folder, last = CheckpointFolder(tmp_path), 0
    for pause in (0.01, 0.05, 0.12):
        command = [sys.executable, "-c", WRITER, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(pause)
            process.kill()
        for step, path in folder.steps().items():
            assert (load_tensors(path).tensors["x"] == step).all()
        last, before = max(folder.steps(), default=0), last
        assert last >= before
    assert last > 0
