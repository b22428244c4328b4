"""The verification cache: what is remembered of packs and model files, and where."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sardonyx.errors import InvalidArgument
from sardonyx.pack import verification_cache
from tests.pack.model_files import PLACES, Reads, model_in, retrain, several
from tests.pack.packs import (
    LAYERS,
    embedded,
    external,
    opened,
    rejected,
    uses_pack,
)
from tests.weights.models import settle

pytestmark = pytest.mark.usefixtures("cache_folder")


@pytest.mark.parametrize("place", PLACES)
def test_verified_files_are_not_read_again(place: Any, tmp_path: Path, reads: Reads) -> None:
    path = model_in(tmp_path / "m", place)
    assert reads.taken() >= 4 * (300 * 128 + 128 * 256 + 80 * 256)  # when it was packed
    for _ in range(2):
        assert uses_pack(opened(path))
        assert reads.taken() == 0
    verification_cache._process_cache.clear()  # as in another process
    assert uses_pack(opened(path))
    assert reads.taken() == 0


@pytest.mark.parametrize("place", PLACES)
def test_a_copy_is_compared_once(
    place: Any, tmp_path: Path, reads: Reads, cache_folder: Path
) -> None:
    path = model_in(tmp_path / "m", place)
    there = tmp_path / "copy"
    shutil.copytree(tmp_path / "m", there)
    settle()
    copy = str(there / "model.onnx")
    reads.taken()
    want = opened(path).run(None, LAYERS)[0]
    assert reads.taken() == 0
    got = opened(copy).run(None, LAYERS)[0]
    np.testing.assert_array_equal(got, want)
    assert reads.taken() >= 4 * (300 * 128 + 128 * 256 + 80 * 256)
    verification_cache._process_cache.clear()
    assert uses_pack(opened(copy))
    assert reads.taken() == 0
    # Paths do not count: files keep what they are known by when their folder moves.
    there.rename(tmp_path / "moved")
    verification_cache._process_cache.clear()
    assert uses_pack(opened(str(tmp_path / "moved" / "model.onnx")))
    assert reads.taken() == 0


def test_only_files_that_changed_are_read(tmp_path: Path, reads: Reads) -> None:
    path = model_in(tmp_path / "m", several)
    os.utime(tmp_path / "m" / "w.data")
    settle()
    reads.taken()
    assert uses_pack(opened(path))
    assert reads.taken() == 4 * 128 * 256


def test_a_moved_pack(tmp_path: Path, reads: Reads) -> None:
    path = model_in(tmp_path / "m", external)
    size = os.path.getsize(f"{path}.pack")
    os.rename(f"{path}.pack", tmp_path / "elsewhere")
    shutil.copyfile(tmp_path / "elsewhere", f"{path}.pack")
    settle()
    reads.taken()
    assert uses_pack(opened(path))
    assert 0 < reads.taken() < size  # its blobs; none of the model's weights
    verification_cache._process_cache.clear()
    assert uses_pack(opened(path))
    assert reads.taken() == 0


def test_a_file_just_written_is_compared_and_not_remembered(
    tmp_path: Path, reads: Reads, cache_folder: Path
) -> None:
    """Within a tick of the clock another write would leave no sign."""
    path = model_in(tmp_path / "m", embedded)
    shutil.copyfile(path, tmp_path / "m" / "again.onnx")
    os.rename(tmp_path / "m" / "again.onnx", path)
    remembered = os.listdir(cache_folder)
    reads.taken()
    assert uses_pack(opened(path))
    assert reads.taken() > 0
    assert os.listdir(cache_folder) == remembered


@pytest.mark.parametrize("kept", ["mapped", "copied"])
def test_copied_weights_are_remembered(kept: str, tmp_path: Path, reads: Reads) -> None:
    path = model_in(tmp_path / "m", external)
    reads.taken()
    assert uses_pack(opened(path, weights=kept))
    assert reads.taken() == 0


def unwritable(cache_folder: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of which none can be written to."""
    shutil.rmtree(cache_folder.parent, ignore_errors=True)
    if how == "no folder":
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setenv("HOME", "not-absolute")
    elif how == "a file":
        cache_folder.parent.write_bytes(b"")
    else:
        monkeypatch.setattr(verification_cache.os, "access", lambda *_: False)


@pytest.mark.parametrize("how", ["no folder", "a file", "no right"])
def test_without_a_writable_cache_folder(
    how: str,
    tmp_path: Path,
    reads: Reads,
    cache_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = model_in(tmp_path / "m", external)
    os.utime(tmp_path / "m" / "model.data")
    settle()
    unwritable(cache_folder, how, monkeypatch)
    reads.taken()
    verification_cache._process_cache.clear()
    for _ in range(2):
        caplog.clear()
        assert uses_pack(opened(path))
        assert reads.taken() > 0
        warnings = [r for r in caplog.records if r.levelno >= logging.WARNING]
        assert len(warnings) == 1
        assert "sardonyx.pack_check" in warnings[0].getMessage()
        verification_cache._process_cache.clear()
    caplog.clear()
    for check in ("sampled", "none"):
        assert uses_pack(opened(path, pack_check=check))
        assert reads.taken() == 0
    assert not caplog.records
    assert uses_pack(opened(path, pack_check="full"))
    assert reads.taken() > 0
    assert uses_pack(opened(path))  # this process knows
    assert reads.taken() == 0
    assert not caplog.records


@pytest.mark.parametrize(
    ("check", "at", "finds"),
    [
        ("full", 4, True),
        ("sampled", 4, False),
        ("sampled", 128 * 256 * 2, True),  # in the middle, where a sample is
        ("none", 128 * 256 * 2, False),
    ],
)
def test_what_pack_check_finds(  # noqa: PLR0913
    check: str,
    at: int,
    finds: bool,
    tmp_path: Path,
    cache_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = model_in(tmp_path / "m", external)
    retrain(path, at=at)
    unwritable(cache_folder, "no folder", monkeypatch)
    verification_cache._process_cache.clear()
    if finds:
        rejected(path, caplog, "has other weights", pack_check=check)
    else:
        assert uses_pack(opened(path, pack_check=check))


def test_pack_check_decides_only_where_nothing_is_remembered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = model_in(tmp_path / "m", external)
    retrain(path)
    rejected(path, caplog, "has other weights", pack_check="none")


def test_pack_check_has_three_values(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidArgument, match=r"pack_check must be one of full, sampled, none, got 'some'"
    ):
        opened(embedded(tmp_path), pack_check="some")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda p: p.write_bytes(b""),
    "cut": lambda p: os.truncate(p, p.stat().st_size - 2),
    "longer": lambda p: p.write_bytes(p.read_bytes() + b"\n"),
    "huge": lambda p: os.truncate(p, 1 << 40),
    "no text": lambda p: p.write_bytes(b"\xff" * 200),
    "another outcome": lambda p: p.write_bytes(p.read_bytes().replace(b"equal", b"maybe")),
    "of another": lambda p: p.write_bytes(p.read_bytes().replace(b"[", b"[9, ")),
    "folder": lambda p: (p.unlink(), p.mkdir()),
    "pipe": lambda p: (p.unlink(), os.mkfifo(p)),
    "link": lambda p: (p.rename(p.with_suffix(".x")), p.symlink_to(p.with_suffix(".x"))),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_cache_file(name: str, tmp_path: Path, reads: Reads, cache_folder: Path) -> None:
    path = model_in(tmp_path / "m", external)
    assert uses_pack(opened(path))
    reads.taken()
    (outcome,) = cache_folder.iterdir()
    DAMAGE[name](outcome)
    verification_cache._process_cache.clear()
    assert uses_pack(opened(path))
    assert reads.taken() > 0
    if name != "folder":  # which nothing takes the place of
        verification_cache._process_cache.clear()
        assert uses_pack(opened(path))
        assert reads.taken() == 0


def test_the_cache_is_bounded(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification_cache, "_MAX_FILES", 8)
    outcomes = verification_cache.VerificationCache(None)
    for i in range(40):
        key = verification_cache.cache_key("pack", str(i), [(1, 2, 3, 4, i)])
        outcomes.remember(key, verification_cache.EQUAL)
        assert outcomes.recall(key) == verification_cache.EQUAL
    assert len(os.listdir(cache_folder)) <= 8
    assert len(verification_cache._process_cache) <= 8


def test_a_full_disk_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = model_in(tmp_path / "m", external)
    os.utime(tmp_path / "m" / "model.data")
    settle()

    def full(_: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(verification_cache, "writing", full)
    assert uses_pack(opened(path))
    (record,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert "No space left on device; sardonyx.pack_cache" in record.getMessage()


def test_the_folder_that_the_user_names_comes_first(tmp_path: Path, cache_folder: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    path = model_in(tmp_path / "m", external)
    os.utime(tmp_path / "m" / "model.data")
    settle()
    before = os.listdir(cache_folder)
    assert uses_pack(opened(path, pack_cache=str(cache)))
    assert os.listdir(cache_folder) == before
    assert len(os.listdir(cache / "checked")) == 1
