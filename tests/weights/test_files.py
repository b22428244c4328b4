"""Weight files of all kinds: unaligned, linked, replaced, sparse, truncated, on other disks."""

from __future__ import annotations

import json
import logging
import os
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx import errors
from sardonyx.load import mount_points as mounts
from sardonyx.load import source
from tests.weights import models
from tests.weights.models import ROWS, SQUARE, apart, external, large, lookup, product, settled

I = np.array([3, 500, 0])  # noqa: E741 - the model's input
FEED = {"i": I}


def run(path: Any, feed: Any = FEED, **entries: str) -> np.ndarray:
    options = sardonyx.SessionOptions()
    for key, value in entries.items():
        options.add_session_config_entry(f"sardonyx.{key}", value)
    (y,) = sardonyx.InferenceSession(path, options).run(None, feed)
    return y


@pytest.mark.parametrize("offset", [0, 1, 2, 3, 7, 64, 4097])
@pytest.mark.parametrize("kind", ["f4", "f8", "f2", "i8", "i1", ml_dtypes.bfloat16], ids=str)
def test_tables_at_any_offset(tmp_path: Path, offset: int, kind: Any) -> None:
    table = (ROWS * 50).astype(kind)
    table = np.concatenate([table] * (1 if table.nbytes >= 1 << 16 else 4))
    (tmp_path / "w.data").write_bytes(b"\7" * offset + table.tobytes() + b"\7")
    path = settled(tmp_path / "m.onnx", lookup(external("t", table, "w.data", offset)))
    session = sardonyx.InferenceSession(path)
    (want,) = session._compiled.program.layouts._arrays
    assert want.is_readable_in_place
    assert want.own_bytes == 0
    np.testing.assert_array_equal(session.run(None, FEED)[0], table[I])


@pytest.mark.parametrize("offset", [1, 2, 64])
def test_matmuls_at_any_offset(tmp_path: Path, offset: int) -> None:
    (tmp_path / "w.data").write_bytes(b"\7" * offset + SQUARE.tobytes())
    path = settled(tmp_path / "m.onnx", product(external("w", SQUARE, "w.data", offset)))
    x = np.eye(192, dtype=np.float32)
    np.testing.assert_array_equal(run(path, {"x": x}), SQUARE)


def test_every_gather_reads_in_place(tmp_path: Path) -> None:
    (tmp_path / "w.data").write_bytes(b"\7" + ROWS.tobytes())
    nodes = [
        helper.make_node("Gather", ["t", "i"], ["a"]),
        helper.make_node("GatherND", ["t", "p"], ["b"]),
        helper.make_node("GatherElements", ["t", "e"], ["c"]),
    ]
    inputs = [
        models.info("i", [3], TensorProto.INT64),
        models.info("p", [3, 2], TensorProto.INT64),
        models.info("e", [2, 48], TensorProto.INT64),
    ]
    outputs = [models.info(n, None) for n in "abc"]
    made = models.model(nodes, inputs, outputs, [external("t", ROWS, "w.data", 1)])
    session = sardonyx.InferenceSession(settled(tmp_path / "m.onnx", made))
    assert all(w.is_readable_in_place for w in session._compiled.program.layouts._arrays)
    rng = np.random.default_rng(3)
    feed = {"i": I, "p": rng.integers(0, 48, (3, 2)), "e": rng.integers(0, 512, (2, 48))}
    a, b, c = session.run(None, feed)
    np.testing.assert_array_equal(a, ROWS[I])
    np.testing.assert_array_equal(b, ROWS[feed["p"][:, 0], feed["p"][:, 1]])
    np.testing.assert_array_equal(c, np.take_along_axis(ROWS, feed["e"], 0))


def test_a_hugging_face_cache(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc" / "onnx"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "1111").write_bytes(lookup(external("t", ROWS, "model.onnx_data")).SerializeToString())
    (blobs / "2222").write_bytes(ROWS.tobytes())
    (snapshot / "model.onnx").symlink_to("../../../blobs/1111")
    (snapshot / "model.onnx_data").symlink_to("../../../blobs/2222")
    np.testing.assert_array_equal(run(snapshot / "model.onnx"), ROWS[I])


def test_read_only_files_and_folders(tmp_path: Path) -> None:
    folder = tmp_path / "fixed"
    folder.mkdir()
    (folder / "w.data").write_bytes(ROWS.tobytes())
    path = settled(folder / "m.onnx", lookup(external("t", ROWS, "w.data")))
    for file in (path, folder / "w.data"):
        file.chmod(0o400)
    folder.chmod(0o500)
    before = sorted(os.listdir(folder))
    try:
        for kept in ("mapped", "copied"):
            np.testing.assert_array_equal(run(path, weights=kept), ROWS[I])
        assert sorted(os.listdir(folder)) == before
    finally:
        folder.chmod(0o700)


@pytest.mark.parametrize("kept", ["mapped", "copied"])
def test_a_file_that_is_replaced(tmp_path: Path, kept: str) -> None:
    """The old session goes on with the old bytes, a new one sees the new."""
    options = sardonyx.SessionOptions()
    options.add_session_config_entry("sardonyx.weights", kept)
    data, path = tmp_path / "w.data", tmp_path / "m.onnx"
    data.write_bytes(SQUARE.tobytes())
    settled(path, product(external("w", SQUARE, "w.data")))
    x = np.eye(192, dtype=np.float32)
    old = sardonyx.InferenceSession(path, options)
    (tmp_path / "new").write_bytes((SQUARE * 2).tobytes())
    (tmp_path / "new").rename(data)
    new = sardonyx.InferenceSession(path, options)
    np.testing.assert_array_equal(new.run(None, {"x": x})[0], SQUARE * 2)
    np.testing.assert_array_equal(old.run(None, {"x": x})[0], SQUARE)


def test_a_file_that_is_written_again_at_once(tmp_path: Path) -> None:
    """Its times may be the same as before: what was packed must not be taken for it."""
    path, held = tmp_path / "m.onnx", []
    x = np.eye(192, dtype=np.float32)
    for factor in (1, 2, 3, 4, 5):
        weight = numpy_helper.from_array(SQUARE * np.float32(factor), "w")
        path.write_bytes(product(weight).SerializeToString())
        held.append(sardonyx.InferenceSession(path))
        np.testing.assert_array_equal(held[-1].run(None, {"x": x})[0], SQUARE * factor)


def test_a_file_is_known_once_its_times_are_past(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"1")
    assert source.identity_of(path.stat()) is None
    models.settle()
    assert source.identity_of(path.stat()) is not None


def hole(path: Path, size_bytes: int, *parts: tuple[int, bytes]) -> None:
    """A large file that takes no space on the disk."""
    with path.open("wb") as file:
        file.truncate(size_bytes)
        for offset, data in parts:
            file.seek(offset)
            file.write(data)


def test_a_weight_of_more_than_two_gigabytes(tmp_path: Path) -> None:
    rows, width = 40_000, 1 << 16  # 2.6 GB of bytes
    last = np.arange(width, dtype=np.uint8)
    hole(tmp_path / "w.data", rows * width + 5, ((rows - 1) * width + 5, last.tobytes()))
    table = TensorProto(name="t", data_type=TensorProto.UINT8, dims=(rows, width))
    table.data_location = TensorProto.EXTERNAL
    table.external_data.add(key="location", value="w.data")
    table.external_data.add(key="offset", value="5")
    path = settled(tmp_path / "m.onnx", lookup(table))
    y = run(path, {"i": np.array([rows - 1, 0])})
    np.testing.assert_array_equal(y, [last, np.zeros(width, np.uint8)])


def varint(number: int) -> bytes:
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes((*out, number))


def test_a_model_of_more_than_two_gigabytes(tmp_path: Path) -> None:
    """Written by hand: protobuf's own library cannot."""
    rows, width = 40_000, 1 << 16
    last = np.arange(width, dtype=np.uint8)
    made = lookup(TensorProto(name="t", data_type=TensorProto.UINT8, dims=(rows, width)))
    table = made.graph.initializer.pop()
    graph, rest = made.graph.SerializeToString(), onnx.ModelProto()
    rest.CopyFrom(made)
    rest.ClearField("graph")
    size = rows * width
    tensor = table.SerializeToString() + b"\x4a" + varint(size)  # raw_data
    inner = graph + b"\x2a" + varint(len(tensor) + size) + tensor  # initializer
    head = rest.SerializeToString() + b"\x3a" + varint(len(inner) + size) + inner  # graph
    path = tmp_path / "m.onnx"
    hole(path, len(head) + size, (0, head), (len(head) + size - width, last.tobytes()))
    assert path.stat().st_size > 2 << 30
    y = run(path, {"i": np.array([rows - 1, 0])})
    np.testing.assert_array_equal(y, [last, np.zeros(width, np.uint8)])


def test_safetensors_as_external_data(tmp_path: Path) -> None:
    spans = {"pad": (0, 3), "rows": (3, 3 + ROWS.nbytes)}
    header = {
        "pad": {"dtype": "U8", "shape": [3], "data_offsets": spans["pad"]},
        "rows": {"dtype": "F32", "shape": list(ROWS.shape), "data_offsets": spans["rows"]},
    }
    text = json.dumps(header).encode()
    data = struct.pack("<Q", len(text)) + text + b"\1\2\3" + ROWS.tobytes()
    (tmp_path / "model.safetensors").write_bytes(data)
    at = 8 + len(text) + spans["rows"][0]
    path = settled(tmp_path / "m.onnx", lookup(external("t", ROWS, "model.safetensors", at)))
    np.testing.assert_array_equal(run(path), ROWS[I])


def test_a_file_that_is_shorter_than_its_weights(tmp_path: Path) -> None:
    (tmp_path / "w.data").write_bytes(ROWS.tobytes()[:-1])
    path = settled(tmp_path / "m.onnx", lookup(external("t", ROWS, "w.data")))
    for kept in ("mapped", "copied"):
        with pytest.raises(errors.InvalidGraph, match="cut short or belongs to another model"):
            run(path, weights=kept)


def test_copied_weights_outlive_their_files(tmp_path: Path) -> None:
    (tmp_path / "w.data").write_bytes(ROWS.tobytes())
    path = settled(tmp_path / "m.onnx", lookup(external("t", ROWS, "w.data")))
    code = """
        options = sardonyx.SessionOptions()
        options.add_session_config_entry("sardonyx.weights", "copied")
        session = sardonyx.InferenceSession(given["path"], options)
        for name in ("path", "data"):
            os.truncate(given[name], 0)
        first = session.run(None, {"i": np.array([3])})[0]
        session.set_providers(["CPUExecutionProvider"])  # compiles again
        again = session.run(None, {"i": np.array([3])})[0]
        names = open("/proc/self/maps").read()
        print(json.dumps({
            "first": first.tolist(), "again": again.tolist(), "mapped": given["data"] in names,
        }))
    """
    found = apart(code, path=path, data=tmp_path / "w.data")
    assert found["first"] == found["again"] == ROWS[[3]].tolist()
    assert not found["mapped"]


def test_a_copied_pack_outlives_its_file(tmp_path: Path) -> None:
    path = settled(tmp_path / "m.onnx", product())
    code = """
        from sardonyx.cli import main
        assert main(["pack", given["path"]]) == 0
        options = sardonyx.SessionOptions()
        options.add_session_config_entry("sardonyx.weights", "copied")
        session = sardonyx.InferenceSession(given["path"], options)
        for name in ("", ".pack"):
            os.truncate(given["path"] + name, 0)
        y = session.run(None, {"x": np.eye(192, dtype=np.float32)})[0]
        print(json.dumps({"y": y.tolist(), "stages": list(session._compiled.stages.seconds())}))
    """
    found = apart(code, path=path)
    assert "pack" in found["stages"]
    np.testing.assert_array_equal(np.array(found["y"], np.float32), SQUARE)


def test_copies_are_shared_and_freed(tmp_path: Path) -> None:
    hole(tmp_path / "w.data", 64 << 20)
    table = np.broadcast_to(np.float32(0), (1 << 14, 1024))
    path = settled(tmp_path / "m.onnx", lookup(external("t", table, "w.data")))
    code = """
        def start():
            options = sardonyx.SessionOptions()
            options.add_session_config_entry("sardonyx.weights", "copied")
            return sardonyx.InferenceSession(given["path"], options)
        small = sardonyx.InferenceSession(given["path"])
        before = mb()
        held = [start()]
        one = mb() - before
        held += [start(), start()]
        three = mb() - before
        held.clear()
        print(json.dumps({"one": one, "three": three, "after": mb() - before}))
    """
    found = apart(code, path=path)
    assert 64 <= found["one"] <= 75
    assert found["three"] <= found["one"] * 1.05
    assert found["after"] <= 3


def test_copied_buffers_are_free_to_change() -> None:
    data = bytearray(ROWS.tobytes())
    options = sardonyx.SessionOptions()
    options.add_external_initializers_from_files_in_memory(["w.data"], [data], [len(data)])
    options.add_session_config_entry("sardonyx.weights", "copied")
    session = sardonyx.InferenceSession(
        lookup(external("t", ROWS, "w.data")).SerializeToString(), options
    )
    data[:] = bytes(len(data))
    np.testing.assert_array_equal(session.run(None, FEED)[0], ROWS[I])


def test_wrong_values_of_the_weights_option(tmp_path: Path) -> None:
    path = settled(tmp_path / "m.onnx", product())
    with pytest.raises(errors.InvalidArgument, match="must be one of mapped, copied, got 'both'"):
        run(path, weights="both")


def test_a_file_that_shrinks_while_it_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = settled(tmp_path / "m.onnx", product())
    read = os.preadv

    def shrinking(descriptor: int, buffers: Any, offset: int) -> int:
        n = read(descriptor, [buffers[0][:1000]], offset)
        os.truncate(path, 1000)
        return n

    monkeypatch.setattr(os, "preadv", shrinking)
    with pytest.raises(errors.Fail, match="became shorter while it was read: 1000 of"):
        run(path, weights="copied")


def test_a_file_that_changes_while_it_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = settled(tmp_path / "m.onnx", product())
    read = os.preadv

    def touching(*given: Any) -> int:
        os.utime(path, ns=(1, 1))
        return read(*given)

    monkeypatch.setattr(os, "preadv", touching)
    with pytest.raises(errors.Fail, match="changed while it was read"):
        run(path, weights="copied")


MOUNT = "36 35 {major}:{minor} / /mnt/some\\040where rw,noatime shared:1 - {kind} server:/x rw"


def pretend(folder: Path, patch: pytest.MonkeyPatch, kind: str) -> Path:
    """A model on a file system of a kind, as the system tells of it."""
    path = settled(folder / "m.onnx", product())
    device = path.stat().st_dev
    line = MOUNT.format(major=os.major(device), minor=os.minor(device), kind=kind)
    (folder / "mountinfo").write_text(f"1 2 0:999 / / rw - ext4 disk rw\nbroken\n{line}\n")
    patch.setattr(mounts, "_MOUNTS", str(folder / "mountinfo"))
    patch.setattr(mounts, "_is_network", {})
    patch.setattr(mounts, "_warned", set())
    return path


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "ceph"])
def test_network_file_systems_are_reported_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    path = pretend(tmp_path, monkeypatch, kind)
    x = {"x": np.zeros((1, 192), np.float32)}
    with caplog.at_level(logging.WARNING, "sardonyx"):
        run(path, x, weights="copied")
        assert not caplog.records
        run(path, x)
        run(path, x)
    (record,) = caplog.records
    said = record.getMessage()
    assert f"({kind} at /mnt/some where)" in said
    assert "sardonyx.weights=copied" in said


@pytest.mark.parametrize("kind", ["ext4", "overlay", "tmpfs", "fuse.fuse-overlayfs", "fuseblk"])
def test_local_disks_are_not_reported(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    path = pretend(tmp_path, monkeypatch, kind)
    with caplog.at_level(logging.WARNING, "sardonyx"):
        run(path, {"x": np.zeros((1, 192), np.float32)})
    assert not caplog.records


def test_unknown_mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "_MOUNTS", str(tmp_path / "none"))
    assert mounts.mount_of(1) is None


def test_sessions_of_one_file_share_its_mapping(tmp_path: Path) -> None:
    (tmp_path / "w.data").write_bytes(ROWS.tobytes())
    path = settled(tmp_path / "m.onnx", lookup(external("t", ROWS, "w.data")))
    a, b = sardonyx.InferenceSession(path), sardonyx.InferenceSession(path)
    assert np.shares_memory(large(a), large(b))
