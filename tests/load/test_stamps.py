"""By what files are known again without reading them, and what happens when they change."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

import sardonyx
from sardonyx import errors
from sardonyx.load import mount_points as mounts
from sardonyx.load import source
from sardonyx.load.source import is_as_opened, map_file, stamp_of
from sardonyx.weights import reading
from tests.weights.models import SQUARE, product, settle, settled

SECOND = 1_000_000_000
NOW = 1_700_000_000 * SECOND + 123


def status(mtime_ns: int, ctime_ns: int) -> Any:
    return SimpleNamespace(
        st_dev=5, st_ino=6, st_size=7, st_mtime_ns=mtime_ns, st_ctime_ns=ctime_ns
    )


@pytest.mark.parametrize(
    ("mtime_ns", "ctime_ns", "network", "is_known"),
    [
        (NOW - 30_000_000, NOW - 30_000_000, False, True),
        (NOW - 10_000_000, NOW - 10_000_000, False, False),  # the tick may not be over
        (0, NOW - 10_000_000, False, False),  # a time that was set back says nothing
        (NOW - 10_000_000, NOW - 30_000_000, False, False),
        (NOW + SECOND, NOW - SECOND, False, False),  # of the future
        (NOW // SECOND * SECOND - SECOND, NOW // SECOND * SECOND - SECOND, False, False),  # coarse
        (NOW // SECOND * SECOND - 3 * SECOND, NOW // SECOND * SECOND - 3 * SECOND, False, True),
        (NOW // SECOND * SECOND - SECOND, NOW - SECOND, False, True),  # set by `touch -d`
        (NOW - SECOND, NOW - SECOND, True, False),  # by another machine's clock
        (NOW - 3 * SECOND, NOW - 3 * SECOND, True, True),
    ],
)
def test_a_file_has_a_stamp_once_every_write_would_change_its_times(
    mtime_ns: int, ctime_ns: int, network: bool, is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: NOW)
    monkeypatch.setattr(mounts, "_is_network", {5: network})
    made = stamp_of(status(mtime_ns, ctime_ns))
    assert (made is not None) == is_known
    assert made is None or made == (5, 6, 7, mtime_ns, ctime_ns)


def rewrite(path: Path, data: bytes) -> None:
    """Other bytes in place, the time of writing as before."""
    before = path.stat()
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize("kept", ["mapped", "copied"])
def test_a_file_rewritten_in_place_while_a_session_has_it(kept: str, tmp_path: Path) -> None:
    """Nothing that the first session has, mapped or packed, serves the second."""
    options = sardonyx.SessionOptions()
    options.add_session_config_entry("sardonyx.weights", kept)
    path = settled(tmp_path / "m.onnx", product())
    x = {"x": np.eye(192, dtype=np.float32)}
    first = sardonyx.InferenceSession(path, options)
    np.testing.assert_array_equal(first.run(None, x)[0], SQUARE)
    weight = numpy_helper.from_array(SQUARE * np.float32(2), "w")
    rewrite(path, product(weight).SerializeToString())
    settle()
    second = sardonyx.InferenceSession(path, options)
    np.testing.assert_array_equal(second.run(None, x)[0], SQUARE * 2)
    np.testing.assert_array_equal(first.run(None, x)[0], SQUARE)  # it had packed its own


def test_a_file_whose_time_is_set_back_while_it_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = settled(tmp_path / "m.onnx", product())
    plain = source._read_all

    def changing(*args: Any) -> None:
        plain(*args)
        rewrite(path, b"other")

    monkeypatch.setattr(source, "_read_all", changing)
    with pytest.raises(errors.Fail, match="changed while it was read"):
        map_file(str(path), "m", copies=True)


def test_a_file_whose_time_is_set_back_before_a_device_reads_it(tmp_path: Path) -> None:
    path = settled(tmp_path / "m.onnx", product())
    mapped = map_file(str(path), "m")
    assert mapped.file is not None
    settle()
    rewrite(path, b"other")
    opened = reading.reopened(mapped.file)
    assert opened is not None
    try:
        with pytest.raises(errors.Fail, match="changed since the model was opened"):
            opened.check()
    finally:
        opened.close()


def test_replaced_and_rewritten_mapped_files_are_detected(tmp_path: Path) -> None:
    path = settled(tmp_path / "m.onnx", product())
    mapped, copied = map_file(str(path), "m"), map_file(str(path), "m", copies=True)
    assert is_as_opened(mapped)
    settle()
    rewrite(path, b"other")
    assert is_as_opened(mapped) is False
    assert is_as_opened(copied)
    os.replace(path, tmp_path / "away")
    assert is_as_opened(mapped) is None
    path.write_bytes(b"another")
    assert is_as_opened(mapped) is None


def _smaps() -> Iterator[str]:
    """Yield the lines that describe the mappings of this process; names of files are any bytes."""
    yield from Path("/proc/self/smaps").read_text(errors="replace").splitlines()


def resident_kb(path: Path) -> int:
    """Return the resident kilobytes of a file's mappings."""
    lines = _smaps()
    total = 0
    for line in lines:
        if line.endswith(str(path)):
            total += next(int(s.split()[1]) for s in lines if s.startswith("Rss:"))
    return total


def test_pages_of_a_new_file_are_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mapping of our own, though the file cannot be known again yet."""
    import mmap

    path = tmp_path / "w.data"
    path.write_bytes(bytes(range(256)) * 4096)
    monkeypatch.setattr(source, "_unsettled_ns", lambda _: 1)  # however slow the machine is
    mapped = map_file(str(path), "w")
    assert mapped.stamp is None
    assert sum(mapped.data[::4096]) == 0
    assert resident_kb(path) >= 1024
    mapped.advise(mmap.MADV_DONTNEED)
    assert resident_kb(path) == 0


def advice(path: Path) -> list[str]:
    """Return the read-ahead advice of a file's mappings, in the order of their addresses."""
    lines = _smaps()
    return [
        "random" if " rr" in next(s for s in lines if s.startswith("VmFlags:")) else "ahead"
        for line in lines
        if line.endswith(str(path))
    ]


def test_sequential_reads_use_readahead(tmp_path: Path) -> None:
    """Else a cold file comes page by page, at a fifth of the disk's speed."""
    path = tmp_path / "w.data"
    path.write_bytes(bytes(1 << 20))
    mapped = map_file(str(path), "w")
    assert advice(path) == ["random"]
    mapped.fetch(1 << 18, 1 << 18)
    assert advice(path) == ["random", "ahead", "random"]
    source.read_ahead(mapped)
    assert advice(path) == ["ahead"]
