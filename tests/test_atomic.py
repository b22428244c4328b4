"""Files that appear whole or not at all, and what a writer that is killed leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sardonyx.base.atomic_file import SUFFIX, writing

# The process kills itself before or after the n-th call of a function.
DYING = """
import os, signal, sys
path, point, when, named = sys.argv[1:]
if named == "named":
    del os.O_TMPFILE
from sardonyx.base.atomic_file import writing

def dying(call):
    def wrapped(*args, **options):
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        made = call(*args, **options)
        os.kill(os.getpid(), signal.SIGKILL)
    return wrapped

if point != "write":
    setattr(os, point, dying(getattr(os, point)))
with writing(path) as file:
    file.write(b"new")
    if point == "write":
        os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(path: Path, point: str, when: str, named: str) -> None:
    command = [sys.executable, "-c", DYING, str(path), point, when, named]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL


def write(path: Path, data: bytes) -> None:
    with writing(str(path)) as file:
        file.write(data)


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("named", ["unnamed", "named"])
@pytest.mark.parametrize(
    ("point", "when"),
    [
        ("write", "before"),
        ("fsync", "before"),
        ("fsync", "after"),
        ("link", "before"),
        ("link", "after"),
        ("replace", "before"),
        ("replace", "after"),
    ],
)
def test_a_killed_writer_leaves_no_file(
    point: str, when: str, named: str, there: bool, tmp_path: Path
) -> None:
    """Old bytes or new ones; a temporary file stays only where the file was there before."""
    path = tmp_path / "file"
    if there:
        write(path, b"old")
    is_called = {"link": named == "unnamed", "replace": named == "named" or there}
    if not is_called.get(point, True):
        pytest.skip(f"os.{point} has no part in it")
    killed(path, point, when, named)
    named_by = "replace" if named == "named" or there else "link"  # from then on it is there
    is_new = (point, when) == (named_by, "after")
    left = [n for n in os.listdir(tmp_path) if n.endswith(SUFFIX)]
    assert not left or named == "named" or there
    if is_new:
        assert path.read_bytes() == b"new"
    elif there:
        assert path.read_bytes() == b"old"
    else:
        assert not path.exists()
    write(tmp_path / "another", b"x")  # any write in the folder cleans up
    write(path, b"newer")
    assert sorted(os.listdir(tmp_path)) == ["another", "file"]
    assert path.read_bytes() == b"newer"


@pytest.mark.parametrize("named", [False, True])
def test_files_of_running_writers_are_kept(
    named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    if named:
        monkeypatch.delattr(os, "O_TMPFILE")
    with writing(str(path)) as file:
        file.write(b"slow")
        write(tmp_path / "other", b"quick")
        write(path, b"quick")
    assert path.read_bytes() == b"slow"
    assert sorted(os.listdir(tmp_path)) == ["file", "other"]


def test_only_leftovers_of_our_own_are_removed(tmp_path: Path) -> None:
    mine = tmp_path / f"file.0123456789abcdef{SUFFIX}"
    notes, link, folder = (tmp_path / n for n in ("notes.tmp", f"l{SUFFIX}", f"f{SUFFIX}"))
    mine.write_bytes(b"half")
    notes.write_bytes(b"mine")
    link.symlink_to(notes)
    folder.mkdir()
    write(tmp_path / "file", b"x")
    assert sorted(os.listdir(tmp_path)) == sorted(["file", notes.name, link.name, folder.name])


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write(path, b"old")
    with pytest.raises(TypeError), writing(str(path)) as file:
        file.write("new")  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == ["file"]
    assert path.read_bytes() == b"old"
