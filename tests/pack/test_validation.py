"""Packs and their model files: every change is detected."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import sardonyx
from sardonyx.cli import main
from sardonyx.errors import Fail, ModelLoadCanceled
from sardonyx.graph.const import Source
from sardonyx.pack import checksums, validate, verification_cache
from sardonyx.pack.checksums import BLOCK, FileRange, split_blocks
from sardonyx.pack.file import PAGE, PackFile
from tests.pack.model_files import PLACES, Reads, model_in, retrain
from tests.pack.packs import (
    LAYERS,
    embedded,
    external,
    forged,
    model,
    opened,
    packed,
    random,
    rejected,
    setting,
    uses_pack,
)
from tests.weights.models import settle

pytestmark = pytest.mark.usefixtures("cache_folder")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["w", "v"])
def test_a_retrained_model_does_not_answer_from_its_pack(
    name: str, place: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, reads: Reads
) -> None:
    path = model_in(tmp_path / "m", place)
    old = opened(path).run(None, LAYERS)[0]
    retrain(path, name)
    reads.taken()
    rejected(path, caplog, "has other weights")
    assert f"run `sardonyx pack {path}` again" in caplog.text
    assert reads.taken() > 0
    verification_cache._process_cache.clear()
    rejected(path, caplog, "has other weights")
    assert reads.taken() == 0  # it is remembered that they differ
    new = opened(path).run(None, LAYERS)[0]
    assert not np.array_equal(old, new)
    want = opened(path, use_pack="0").run(None, LAYERS)[0]
    np.testing.assert_array_equal(new, want)


def test_a_weight_that_is_optimized_away_counts_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No constant of the lowered graph refers to a factor of one."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Mul", ["a", "one"], ["y"]),
    ]
    weights = {"w": random(128, 256), "one": np.float32(1)}
    path = external(tmp_path, model(nodes, weights, {"x": ["n", 128]}, ["y"]))
    settle()
    packed(path)
    feeds = {"x": random(2, 128)}
    old = opened(path).run(None, feeds)[0]
    with open(tmp_path / "model.data", "r+b") as file:
        file.seek(file.read().find(np.float32(1).tobytes(), 128 * 256 * 4))
        file.write(np.float32(3).tobytes())
    session = opened(path)
    assert not uses_pack(session)
    assert "has other weights" in caplog.text
    np.testing.assert_allclose(session.run(None, feeds)[0], 3 * old, 1e-5)


def test_bytes_are_compared_each_time(
    tmp_path: Path, reads: Reads, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    path = model_in(tmp_path / "m", embedded)
    data = Path(path).read_bytes()
    opened(data, pack_cache=str(cache))
    for _ in range(2):
        reads.taken()
        assert uses_pack(opened(data, pack_cache=str(cache)))
        assert reads.taken() >= 4 * (300 * 128 + 128 * 256 + 80 * 256)
    assert uses_pack(opened(data, pack_cache=str(cache), pack_check="none"))
    assert reads.taken() == 0
    retrain(path)
    other = opened(Path(path).read_bytes(), pack_cache=str(cache))
    assert "has other weights" in caplog.text
    want = opened(path, use_pack="0").run(None, LAYERS)[0]
    np.testing.assert_array_equal(other.run(None, LAYERS)[0], want)


@pytest.mark.parametrize("how", ["in place", "replaced"])
def test_a_damaged_blob(how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = model_in(tmp_path / "m", embedded)
    want = opened(path).run(None, LAYERS)[0]
    pack = Path(f"{path}.pack")
    data = bytearray(pack.read_bytes())
    data[3 * PAGE] ^= 16
    if how == "replaced":
        pack.unlink()
    pack.write_bytes(data)
    settle()
    for _ in range(2):
        rejected(path, caplog, "has other bytes")
    np.testing.assert_array_equal(opened(path).run(None, LAYERS)[0], want)
    packed(path)
    assert uses_pack(opened(path))


def test_a_standalone_model_is_compared_once(
    tmp_path: Path, reads: Reads, caplog: pytest.LogCaptureFixture
) -> None:
    alone = str(tmp_path / "alone.onnx")
    assert main(["pack", embedded(tmp_path), "--standalone", "-o", alone]) == 0
    reads.taken()
    verification_cache._process_cache.clear()
    assert uses_pack(opened(alone))
    assert reads.taken() == 0
    os.utime(f"{alone}.pack")
    settle()
    assert uses_pack(opened(alone))
    assert reads.taken() > 4 * (300 * 128 + 128 * 256 + 80 * 256)
    assert uses_pack(opened(alone))
    assert reads.taken() == 0


def test_an_old_format(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = model_in(tmp_path / "m", embedded)
    with open(f"{path}.pack", "r+b") as file:
        file.seek(8)
        file.write((1).to_bytes(4, "little"))
    rejected(path, caplog, "it has format 1; this version reads 3")
    assert f"run `sardonyx pack {path}` again" in caplog.text


def test_verify_reads_what_is_known(
    tmp_path: Path, reads: Reads, capsys: pytest.CaptureFixture[str]
) -> None:
    path = model_in(tmp_path / "m", external)
    reads.taken()
    for _ in range(2):
        assert main(["pack", path, "--verify"]) == 0
        assert reads.taken() > os.path.getsize(tmp_path / "m" / "model.data")
    retrain(path)
    assert main(["pack", path, "--verify"]) == 1
    assert "has other weights" in capsys.readouterr().err


def replaced_while(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], module: Any = validate
) -> None:
    """Does something while weights are compared."""
    plain = module.first_mismatch

    def acting(*args: Any) -> Any:
        found = plain(*args)
        act()
        return found

    monkeypatch.setattr(module, "first_mismatch", acting)


def test_a_file_written_to_while_it_is_compared(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    cache_folder: Path,
) -> None:
    path = model_in(tmp_path / "m", external)
    data = tmp_path / "m" / "model.data"
    os.utime(data)
    settle()
    before = os.listdir(cache_folder)
    replaced_while(monkeypatch, lambda: os.utime(data))
    rejected(path, caplog, "changed while it was compared")
    assert os.listdir(cache_folder) == before


def test_a_file_replaced_while_it_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: Reads, cache_folder: Path
) -> None:
    """The session has the old one, which is right; nothing is remembered of either."""
    path = model_in(tmp_path / "m", external)
    data, new = tmp_path / "m" / "model.data", tmp_path / "new"
    os.utime(data)
    shutil.copyfile(data, new)
    settle()
    before = os.listdir(cache_folder)
    with monkeypatch.context() as patch:
        replaced_while(patch, lambda: os.path.exists(new) and os.replace(new, data))
        assert uses_pack(opened(path))
    assert os.listdir(cache_folder) == before
    settle()
    reads.taken()
    assert uses_pack(opened(path))
    assert reads.taken() > 0


def test_a_file_changed_while_it_is_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = external(tmp_path)
    settle()
    plain = checksums.compute_digests

    def changing(*args: Any) -> list[str]:
        found = plain(*args)
        os.utime(tmp_path / "model.data")
        return found

    monkeypatch.setattr("sardonyx.pack.write.compute_digests", changing)
    with pytest.raises(Fail, match=r"model.data changed while it was packed"):
        packed(path)
    assert not os.path.exists(f"{path}.pack")


def test_a_load_can_be_cancelled_while_weights_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = model_in(tmp_path / "m", external)
    os.utime(tmp_path / "m" / "model.data")
    options = sardonyx.SessionOptions()
    plain = checksums._digest

    def cancelling(place: FileRange) -> str:
        options.set_load_cancellation_flag(True)
        return plain(place)

    monkeypatch.setattr(checksums, "_digest", cancelling)
    with pytest.raises(ModelLoadCanceled):
        sardonyx.InferenceSession(path, options)
    assert "is not used" not in caplog.text


def test_hostile_lists(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = model_in(tmp_path / "m", external)
    good = Path(f"{path}.pack").read_bytes()
    listed = PackFile(f"{path}.pack").document["weights"]
    for change, why in (
        (setting("weights", to=[*listed, listed[0]]), "out of order"),
        (setting("weights", to=[[1, 0, 1 << 40, "x"]]), "not a number"),
        (setting("weights", to=[[9, 0, 1, "x"]]), "not a number"),
        (setting("weights", to=[[1, 0, 1, 5]]), "not a string"),
        (setting("weights", to=3), "not a list"),
        (setting("files", 1, 2, to=[1, 2]), "not a list of 5"),
        (setting("files", 1, 2, to="x"), "not a list of 5"),
        (setting("files", 1, 2, to=[1, 2, 3, 4, 1.5]), "not a number"),
        (setting("blocks", to=[]), "not a list of 1"),
        (setting("blocks", to=[3]), "not a string"),
    ):
        Path(f"{path}.pack").write_bytes(good)
        forged(f"{path}.pack", index=change)
        os.utime(tmp_path / "m" / "model.data")
        rejected(path, caplog, why)


def test_blocks_hold_each_byte_once() -> None:
    size = 3 * BLOCK
    one, two = (Source(memoryview(bytes(8)), name) for name in "ab")
    places = [
        FileRange(one, size, 5),
        FileRange(one, 0, 10),
        FileRange(two, 7, 1),
        FileRange(one, 4, 100),
        FileRange(one, 104 + 4000, 10),
        FileRange(one, 200_000, size - 200_000),
        FileRange(one, 300_000, 0),
    ]
    assert split_blocks(places) == [
        FileRange(one, 0, 4114),
        FileRange(one, 200_000, BLOCK),
        FileRange(one, 200_000 + BLOCK, BLOCK),
        FileRange(one, 200_000 + 2 * BLOCK, size + 5 - 200_000 - 2 * BLOCK),
        FileRange(two, 7, 1),
    ]


def test_digests_by_threads_are_those_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from hashlib import sha256

    data = np.random.default_rng(0).bytes(10 << 20)
    source = Source(memoryview(data), "x")
    places = [
        FileRange(source, at, min(3 << 20, len(data) - at)) for at in range(0, len(data), 3 << 20)
    ]
    want = [sha256(data[p.start : p.start + p.length]).hexdigest() for p in places]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(4))
    done: list[int] = []
    assert checksums.compute_digests(places, done.append) == want
    assert sum(done) == len(data)
    blocks = [checksums.BlockDigest(p, s) for p, s in zip(places, want, strict=True)]
    assert checksums.first_mismatch(blocks, done.append) is None
    blocks[2] = blocks[2]._replace(digest="")
    assert checksums.first_mismatch(blocks, done.append) == places[2]


def test_progress_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    path = model_in(tmp_path / "m", external)
    os.utime(tmp_path / "m" / "model.data")
    monkeypatch.setattr("sardonyx.base.progress.DELAY_S", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    plain = checksums._digest

    def slow(place: FileRange) -> str:
        time.sleep(0.15)
        return plain(place)

    monkeypatch.setattr(checksums, "_digest", slow)
    assert uses_pack(opened(path))
    assert "comparing weights with their pack" in capsys.readouterr().err
