"""Stored graphs take a limited space: the least recently used ones of ours are removed."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import pytest

from sardonyx.dynamo import cache_limit

SIZE = 1000
DAY = 86400


def stored(
    folder: Path, name: str, age: float, read: float | None = None, ours: bool = True
) -> Path:
    """An entry that was written, and read, these seconds ago."""
    path = folder / f"key-{name}" / "entry"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((cache_limit._MARK if ours else b"inductor").ljust(SIZE, b"."))
    now = time.time()
    os.utime(path, (now - (age if read is None else read), now - age))
    os.utime(path.parent, (now - age, now - age))
    return path


def names(folder: Path) -> set[str]:
    return {path.parent.name.removeprefix("key-") for path in folder.glob("*/entry")}


def test_least_recently_used_entries_are_removed(tmp_path: Path) -> None:
    for i in range(10):
        stored(tmp_path, str(i), age=i * DAY)
    cache_limit.trim(tmp_path, 10 * SIZE)
    assert len(names(tmp_path)) == 10
    cache_limit.trim(tmp_path, 9 * SIZE)
    assert names(tmp_path) == set("0123456")  # down to 80 % of the limit
    assert not (tmp_path / "key-9").exists()
    assert (tmp_path / "key-0").exists()


def test_recently_read_entries_are_kept(tmp_path: Path) -> None:
    stored(tmp_path, "read", age=9 * DAY, read=0)
    stored(tmp_path, "new", age=1 * DAY)
    stored(tmp_path, "old", age=2 * DAY)
    cache_limit.trim(tmp_path, int(2.5 * SIZE))
    assert names(tmp_path) == {"read", "new"}
    cache_limit.trim(tmp_path, int(1.5 * SIZE))  # looking at them was not a use
    assert names(tmp_path) == {"read"}


def test_entries_of_other_compilers_are_kept(tmp_path: Path) -> None:
    for i in range(5):
        stored(tmp_path, f"other{i}", age=9 * DAY, ours=False)
    mine = stored(tmp_path, "mine", age=0)
    cache_limit.trim(tmp_path, 2 * SIZE)
    assert mine.exists()
    cache_limit.trim(tmp_path, 0)
    assert names(tmp_path) == {f"other{i}" for i in range(5)}


def test_files_and_folders_in_use_are_kept(tmp_path: Path) -> None:
    """One that is being written, and a folder that another process may be about to write into."""
    path = stored(tmp_path, "new", age=0)
    unfinished = path.with_name(".123.tmp")
    unfinished.write_bytes(b"." * SIZE)
    cache_limit.trim(tmp_path, 0)
    assert not path.exists()
    assert unfinished.exists()
    stored(tmp_path, "alone", age=0)
    cache_limit.trim(tmp_path, 0)
    assert (tmp_path / "key-alone").exists()


def test_missing_folders(tmp_path: Path) -> None:
    cache_limit.trim(tmp_path / "none", 0)
    (tmp_path / "file").write_text("in the place of a folder")
    cache_limit.trim(tmp_path / "file", 0)
    cache_limit.trim(tmp_path, 0)


def _store_and_trim(folder: Path, worker: int) -> None:
    for i in range(40):
        stored(folder, f"{worker}-{i}", age=0)
        cache_limit.trim(folder, 20 * SIZE)


def test_concurrent_processes(tmp_path: Path) -> None:
    workers = [
        multiprocessing.get_context("spawn").Process(target=_store_and_trim, args=(tmp_path, i))
        for i in range(3)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    cache_limit.trim(tmp_path, 20 * SIZE)
    assert 1 <= len(names(tmp_path)) <= 20


@pytest.mark.parametrize(
    ("text", "expected"), [("", 1024), ("3", 3), ("0", 0), ("many", 1024), ("-1", 1024)]
)
def test_the_limit_is_an_environment_variable(
    text: str, expected: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(cache_limit.VARIABLE, text)
    with caplog.at_level("WARNING"):
        assert cache_limit.limit_bytes() == expected * 1_000_000
    assert ("not a number" in caplog.text) == (text in ("many", "-1"))
