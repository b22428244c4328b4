"""Packs that are corrupt, stale or hostile, and failing writes."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
from onnx import numpy_helper

import sardonyx
import sardonyx.pack.write
from sardonyx import _native
from sardonyx.cli import main
from sardonyx.errors import Fail, InvalidArgument
from sardonyx.pack.file import HEADER_BYTES, PAGE, PackWriter
from sardonyx.passes.options import PassOptions
from tests.decoder import Decoder
from tests.pack.packs import (
    LAYERS,
    embedded,
    external,
    layers,
    leftovers,
    opened,
    packed,
    random,
    rejected,
    sections,
    uses_pack,
)


def run_python(code: str, *argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *argv]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_a_killed_writer_leaves_nothing(tmp_path: Path) -> None:
    path = embedded(tmp_path)
    code = (
        "import os, signal, sys\n"
        "import sardonyx.pack.file as f\n"
        "blob = f.PackWriter.blob\n"
        "def dying(self, *args):\n"
        "    if len(self.blobs) == 3: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return blob(self, *args)\n"
        "f.PackWriter.blob = dying\n"
        "from sardonyx.cli import main\n"
        "main(['pack', sys.argv[1]])\n"
    )
    assert run_python(code, path).returncode == -signal.SIGKILL
    assert os.listdir(tmp_path) == ["model.onnx"]
    packed(path)
    before = Path(f"{path}.pack").read_bytes()
    assert run_python(code, path).returncode == -signal.SIGKILL
    assert Path(f"{path}.pack").read_bytes() == before
    assert uses_pack(opened(path))


def test_two_writers_at_once(tmp_path: Path) -> None:
    path = embedded(tmp_path)
    command = [sys.executable, "-m", "sardonyx", "pack", path]
    both = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [p.wait() for p in both] == [0, 0]
    assert sorted(os.listdir(tmp_path)) == ["model.onnx", "model.onnx.pack"]
    assert uses_pack(opened(path, pack_verify="1"))


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
"""


def test_disk_full_during_the_command(tmp_path: Path) -> None:
    path = embedded(tmp_path)
    code = LIMITED + "from sardonyx.cli import main\nsys.exit(main(['pack', sys.argv[1]]))"
    ran = run_python(code, path)
    assert ran.returncode == 1
    assert "could not be written" in ran.stderr
    assert os.strerror(errno.EFBIG) in ran.stderr
    assert os.listdir(tmp_path) == ["model.onnx"]


def test_disk_full_during_a_session(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    path = embedded(tmp_path)
    code = LIMITED + (
        "import numpy as np, sardonyx\n"
        "options = sardonyx.SessionOptions()\n"
        "options.add_session_config_entry('sardonyx.pack_cache', sys.argv[2])\n"
        "session = sardonyx.InferenceSession(sys.argv[1], options)\n"
        "print(session.run(None, {'ids': np.arange(12).reshape(2, 6)})[0].shape)\n"
    )
    ran = run_python(code, path, str(cache))
    assert ran.stdout == "(2, 6, 80)\n", ran.stderr
    assert "was not written; the session runs without it" in ran.stderr
    assert os.listdir(cache) == []


def test_disk_full_during_a_saved_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(self: PackWriter, *args: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(PackWriter, "blob", full)
    options = sardonyx.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "o.onnx")
    key = "session.save_external_prepacked_constant_initializers"
    options.add_session_config_entry(key, "1")
    session = sardonyx.InferenceSession(embedded(tmp_path), options)
    session.run(None, LAYERS)
    assert "has no pack" in caplog.text
    assert sorted(os.listdir(tmp_path)) == ["model.onnx", "o.onnx"]


def test_a_named_temporary_file_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing where the system has no unnamed files (O_TMPFILE)."""

    def failing(*args: Any, **options: Any) -> BinaryIO:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = embedded(tmp_path)
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    packed(path)
    assert uses_pack(opened(path))
    monkeypatch.setattr(PackWriter, "finish", failing)
    with pytest.raises(Fail, match="No space left"):
        packed(path)
    assert not leftovers(tmp_path)
    assert uses_pack(opened(path))


def test_pack_of_another_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = embedded(tmp_path)
    packed(path)
    made = layers()
    made.graph.node[0].name = "another"
    embedded(tmp_path, made)
    rejected(path, caplog, "made of another model")


def test_the_model_may_move(tmp_path: Path) -> None:
    path = external(tmp_path)
    packed(path)
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("model.onnx", "model.data", "model.onnx.pack"):
        shutil.copyfile(tmp_path / name, moved / name)
    assert uses_pack(opened(str(moved / "model.onnx")))


@pytest.mark.parametrize("place", [embedded, external])
def test_changed_weights(place: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = place(tmp_path)
    packed(path)
    made = layers()
    weight = next(t for t in made.graph.initializer if t.name == "w")
    weight.raw_data = (random(128, 256, seed=1) + np.float32(1)).tobytes()
    (tmp_path / "model.data").unlink(missing_ok=True)  # else new data is appended to the old
    place(tmp_path, made)
    rejected(path, caplog, "other weights")


def test_a_shrunk_weight_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = external(tmp_path)
    packed(path)
    data = tmp_path / "model.data"
    whole = data.stat().st_size
    os.truncate(data, whole - 1)
    with caplog.at_level(logging.WARNING, "sardonyx"), pytest.raises(sardonyx.errors.InvalidGraph):
        opened(path)
    assert f"has {whole - 1} bytes, and had {whole}" in caplog.text


def test_a_missing_weight_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = external(tmp_path)
    packed(path)
    (tmp_path / "model.data").unlink()
    with caplog.at_level(logging.WARNING, "sardonyx"), pytest.raises(sardonyx.errors.NoSuchFile):
        opened(path)
    assert "is not used: there is no file" in caplog.text


def test_pack_of_another_version(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = embedded(tmp_path)
    packed(path)
    monkeypatch.setattr(_native, "version", "99.0")
    rejected(path, caplog, "it was made with version '0.1.0', now '99.0'")
    assert f"run `sardonyx pack {path}` again" in caplog.text


def test_pack_of_another_layout_version(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = embedded(tmp_path)
    packed(path)
    monkeypatch.setitem(sardonyx.pack.identity.LAYOUT_VERSIONS, "matmul_pack", 2)
    rejected(path, caplog, "it has matmul_pack of version 1, and 2 is used")


def test_pack_of_other_options(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = embedded(tmp_path)
    level = sardonyx.GraphOptimizationLevel.ORT_ENABLE_BASIC
    packed(path, passes=PassOptions(level=level))
    rejected(path, caplog, "it was made with level basic, now all")
    assert f"run `sardonyx pack {path} --optimization-level all` again" in caplog.text
    packed(path)
    options = sardonyx.SessionOptions()
    options.add_free_dimension_override_by_name("batch", 2)
    with caplog.at_level(logging.WARNING, "sardonyx"):
        assert not uses_pack(sardonyx.InferenceSession(path, options))
    assert "dims_by_name" in caplog.text
    assert "sardonyx.pack_cache keeps" in caplog.text


def flip(path: str, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 16]))


def test_flipped_bits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = embedded(tmp_path)
    packed(path)
    pack = f"{path}.pack"
    good = Path(pack).read_bytes()
    (index, _), (graph, _) = sections(good)
    for offset, why in (
        (3, "it is not a pack"),
        (9, "it has format"),
        (17, "its header is damaged"),
        (30, "its header is damaged"),
        (index + 100, "its index is damaged"),
        (graph + 100, "its graph is damaged"),
        (len(good) - 1, "its graph is damaged"),
    ):
        Path(pack).write_bytes(good)
        flip(pack, offset)
        rejected(path, caplog, why)
    Path(pack).write_bytes(good)
    flip(pack, 3 * PAGE)  # in a blob
    rejected(path, caplog, "has other bytes")
    rejected(path, caplog, "has other bytes", pack_verify="1")


@pytest.mark.parametrize("place", [embedded, external])
def test_verify_finds_a_weight_that_was_changed(
    place: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = place(tmp_path)
    packed(path)
    changed = layers()
    weight = next(t for t in changed.graph.initializer if t.name == "w")
    array = numpy_helper.to_array(weight).copy()
    array[0, 0] += 1
    weight.CopyFrom(numpy_helper.from_array(array, "w"))
    (tmp_path / "model.data").unlink(missing_ok=True)  # onnx.save would append to it
    place(tmp_path, changed)
    rejected(path, caplog, "has other weights", pack_verify="1")


def test_verify_command_finds_a_flipped_bit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = embedded(tmp_path)
    packed(path)
    flip(f"{path}.pack", 3 * PAGE)
    assert main(["pack", path, "--verify"]) == 1
    assert "has other bytes" in capsys.readouterr().err


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_truncated(share: float, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = embedded(tmp_path)
    packed(path)
    size = os.path.getsize(f"{path}.pack")
    os.truncate(f"{path}.pack", int(size * share))
    rejected(path, caplog, "too short" if size * share < HEADER_BYTES else "cut short")


def test_a_cached_pack_is_rewritten(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    path = embedded(tmp_path)
    opened(path, pack_cache=str(cache))
    (pack,) = cache.glob("*.pack")
    os.truncate(pack, 100)
    rejected(path, caplog, "too short", pack_cache=str(cache))
    assert uses_pack(opened(path, pack_cache=str(cache), pack_verify="1"))


def test_pack_that_is_not_a_regular_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = embedded(tmp_path)
    os.mkdir(f"{path}.pack")
    rejected(path, caplog, "is not a regular file")
    os.rmdir(f"{path}.pack")
    os.mkfifo(f"{path}.pack")
    rejected(path, caplog, "is not a regular file")


@pytest.mark.parametrize("more", [[], ["--standalone"]])
def test_weights_are_not_overwritten(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = external(tmp_path)
    data = tmp_path / "model.data"
    before = data.read_bytes()
    assert main(["pack", path, "-o", str(data), *more]) == 1
    assert "a file of the model itself" in capsys.readouterr().err
    assert data.read_bytes() == before


@pytest.mark.parametrize("key", ["use_pack", "pack_verify", "grow_in_place"])
def test_switches_are_0_or_1(key: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=f"sardonyx.{key} must be one of 0, 1, got 'true'"):
        opened(embedded(tmp_path), **{key: "true"})


def test_log_severity_hides_pack_warnings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "model.onnx"
    Decoder("qoperator").save(path)
    Path(f"{path}.pack").write_bytes(b"no pack")
    options = sardonyx.SessionOptions()
    options.log_severity_level = 3
    sardonyx.InferenceSession(path, options)
    assert not caplog.records
    sardonyx.InferenceSession(path)
    assert "is not used" in caplog.text
