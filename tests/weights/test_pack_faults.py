"""Packs that are broken, stale or hostile, and writing that goes wrong."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

import sardonyx
import sardonyx.weights.pack.write
from sardonyx import _native
from sardonyx.cli import main
from sardonyx.errors import Fail
from sardonyx.pass_options import PassOptions
from sardonyx.weights.pack.file import _HEAD, _SECTION, PAGE, Writer, checksum
from tests.weights.packs import (
    LAYERS,
    embedded,
    external,
    layers,
    leftovers,
    opened,
    packed,
    random,
    stages,
    uses_pack,
)

Change = Callable[[Any], Any]


def run_python(code: str, *argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *argv]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def sections(data: bytes) -> list[tuple[int, Any]]:
    """Where the index and the graph begin, and what they say."""
    found = []
    for i in range(2):
        start, length, _ = _SECTION.unpack_from(data, _HEAD.size + i * _SECTION.size)
        found.append((start, json.loads(data[start : start + length])))
    return found


def forged(path: str, index: Change | None = None, graph: Change | None = None) -> None:
    """Changes what a pack says, checksums included, as somebody would who means ill."""
    data = Path(path).read_bytes()
    (start, said), (_, drawn) = sections(data)
    texts = []
    for document, change in ((said, index), (drawn, graph)):
        made = document if change is None else change(document)
        texts.append(made if isinstance(made, bytes) else json.dumps(made).encode())
    table, body, at = b"", b"", start
    for text in texts:
        table += _SECTION.pack(at, len(text), checksum(text))
        padding = bytes(-len(text) % 64)
        body += text + padding
        at += len(text) + len(padding)
    magic, version, count, _ = _HEAD.unpack_from(data)
    header = _HEAD.pack(magic, version, count, start + len(body)) + table
    head = (header + checksum(header)).ljust(PAGE, b"\0")
    Path(path).write_bytes(head + data[PAGE:start] + body)


def setting(*keys: Any, to: Any) -> Change:
    """Sets one place in a document."""

    def change(document: Any) -> Any:
        place = document
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = to
        return document

    return change


def rejected(path: str, caplog: pytest.LogCaptureFixture, why: str, **entries: str) -> None:
    """The session works without the pack, and a warning says why."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, "sardonyx"):
        session = opened(path, **entries)
    assert not uses_pack(session) or "write_pack" in stages(session)
    assert why in caplog.text
    assert "is not used" in caplog.text
    session.run(None, LAYERS)


def test_a_killed_writer_leaves_nothing(tmp_path: Path) -> None:
    path = embedded(tmp_path)
    code = (
        "import os, signal, sys\n"
        "import sardonyx.weights.pack.file as f\n"
        "blob = f.Writer.blob\n"
        "def dying(self, *args):\n"
        "    if len(self.blobs) == 3: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return blob(self, *args)\n"
        "f.Writer.blob = dying\n"
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


def test_no_room_for_the_command(tmp_path: Path) -> None:
    path = embedded(tmp_path)
    code = LIMITED + "from sardonyx.cli import main\nsys.exit(main(['pack', sys.argv[1]]))"
    ran = run_python(code, path)
    assert ran.returncode == 1
    assert "could not be written" in ran.stderr
    assert os.strerror(errno.EFBIG) in ran.stderr
    assert os.listdir(tmp_path) == ["model.onnx"]


def test_no_room_for_a_session(tmp_path: Path) -> None:
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
    assert "was not written, and the session does without" in ran.stderr
    assert os.listdir(cache) == []


def test_no_room_for_a_saved_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(self: Writer, *args: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Writer, "blob", full)
    options = sardonyx.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "o.onnx")
    key = "session.save_external_prepacked_constant_initializers"
    options.add_session_config_entry(key, "1")
    session = sardonyx.InferenceSession(embedded(tmp_path), options)
    session.run(None, LAYERS)
    assert "has no pack" in caplog.text
    assert sorted(os.listdir(tmp_path)) == ["model.onnx", "o.onnx"]


def test_a_named_temporary_file_goes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system has no files without a name."""

    def failing(*args: Any, **options: Any) -> BinaryIO:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = embedded(tmp_path)
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    packed(path)
    assert uses_pack(opened(path))
    monkeypatch.setattr(Writer, "finish", failing)
    with pytest.raises(Fail, match="No space left"):
        packed(path)
    assert not leftovers(tmp_path)
    assert uses_pack(opened(path))


def test_another_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
    (tmp_path / "model.data").unlink(missing_ok=True)  # else what is new goes behind what is old
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


def test_another_version(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = embedded(tmp_path)
    packed(path)
    monkeypatch.setattr(_native, "version", "99.0")
    rejected(path, caplog, "it was made with version '0.1.0', and here is '99.0'")


def test_another_layout(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = embedded(tmp_path)
    packed(path)
    monkeypatch.setitem(sardonyx.weights.pack.identity.LAYOUTS, "matmul_pack", 2)
    rejected(path, caplog, "it has matmul_pack of version 1, and 2 is used")


def test_other_options(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = embedded(tmp_path)
    level = sardonyx.GraphOptimizationLevel.ORT_ENABLE_BASIC
    packed(path, passes=PassOptions(level=level))
    rejected(path, caplog, "it was made with level 1, and here is 99")
    packed(path)
    options = sardonyx.SessionOptions()
    options.add_free_dimension_override_by_name("batch", 2)
    with caplog.at_level(logging.WARNING, "sardonyx"):
        assert not uses_pack(sardonyx.InferenceSession(path, options))
    assert "dims_by_name" in caplog.text


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
        (3, "it is no pack"),
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
    assert uses_pack(opened(path))
    rejected(path, caplog, "has other bytes", pack_verify="1")


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
    rejected(path, caplog, "too short" if size * share < PAGE else "cut short")


def test_a_cached_pack_is_made_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    path = embedded(tmp_path)
    opened(path, pack_cache=str(cache))
    (name,) = os.listdir(cache)
    os.truncate(cache / name, 100)
    rejected(path, caplog, "too short", pack_cache=str(cache))
    assert uses_pack(opened(path, pack_cache=str(cache), pack_verify="1"))


def test_a_folder_and_a_pipe_for_a_pack(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = embedded(tmp_path)
    os.mkdir(f"{path}.pack")
    rejected(path, caplog, "is not a regular file")
    os.rmdir(f"{path}.pack")
    os.mkfifo(f"{path}.pack")
    rejected(path, caplog, "is not a regular file")


def deep(document: Any) -> bytes:
    return b"[" * 100_000


def overlapping(document: Any) -> Any:
    document["blobs"][1][0] = document["blobs"][0][0]
    return document


def entry_of(kind: str, position: int, to: Any) -> Change:
    """Changes the first entry of its kind in the table of constants."""

    def change(document: Any) -> Any:
        entry = next(e for e in document["constants"] if e[0] == kind)
        entry[position] = to
        return document

    return change


HOSTILE_INDEX: dict[str, tuple[Change, str]] = {
    "no table": (lambda d: [], "no table"),
    "no json": (lambda d: b"{", "not readable"),
    "nan": (lambda d: json.dumps({**d, "samples": [float("nan")]}).encode(), "no number"),
    "deep": (deep, "not readable"),
    "missing": (lambda d: {k: v for k, v in d.items() if k != "files"}, "lacks"),
    "huge blob": (setting("blobs", 0, 1, to=1 << 61), "no number"),
    "huge digits": (lambda d: b'{"blobs": ' + b"9" * 100_000 + b"}", "not readable"),
    "blob behind": (setting("blobs", 0, 0, to=1 << 40), "no number"),
    "negative": (setting("blobs", 0, 0, to=-64), "no number"),
    "unaligned": (setting("blobs", 0, 0, to=PAGE + 1), "begins at"),
    "overlapping": (overlapping, "lies where it cannot"),
    "blob in header": (setting("blobs", 0, 0, to=0), "no number"),
    "text for a number": (setting("blobs", 0, 1, to="9"), "no number"),
    "truth for a number": (setting("blobs", 0, 1, to=True), "no number"),
    "float for a number": (setting("blobs", 0, 1, to=64.0), "no number"),
    "a million blobs": (setting("blobs", to=[[PAGE, 64, ""]] * 1_000_000), "where it cannot"),
    "file outside": (setting("files", 0, 0, to="../../etc/passwd"), "leads out"),
    "absolute file": (setting("files", 0, 0, to="/etc/passwd"), "relative path"),
    "file size": (setting("files", 0, 1, to=5), "bytes, and had 5"),
    "sample behind": (setting("samples", to=[[0, 1 << 40, 10, "x"]]), "no number"),
    "sample of no file": (setting("samples", to=[[7, 0, 10, "x"]]), "no number"),
    "ref behind": (entry_of("file", 4, 1 << 40), "no number"),
    "ref of no file": (entry_of("file", 3, 9), "no number"),
    "ref of a length": (entry_of("file", 5, 4), "a constant of"),
    "blob of a shape": (entry_of("blob", 2, [1 << 30, 1 << 30]), "a constant of"),
    "shape too large": (entry_of("blob", 2, [1 << 59] * 9), "a shape"),
    "negative shape": (entry_of("blob", 2, [-1]), "no number"),
    "no such blob": (entry_of("blob", 3, 9999), "no number"),
    "no such type": (entry_of("blob", 1, "f99"), "no element type"),
    "strings": (entry_of("blob", 1, "str"), "strings as bytes"),
    "no kind": (entry_of("blob", 0, "pickle"), "no constant"),
    "recipe of itself": (entry_of("recipe", 5, [9999, 9999]), "no number"),
    "recipe of no op": (entry_of("recipe", 4, "Format"), "a constant made by"),
    "recipe of a loop": (entry_of("recipe", 4, "Loop"), "a constant made by"),
    "form of no constant": (setting("forms", 0, 0, to=99999), "no number"),
    "form of no blob": (setting("forms", 0, 4, to=99999), "no number"),
}


@pytest.mark.parametrize("name", HOSTILE_INDEX)
def test_hostile_index(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = embedded(tmp_path)
    packed(path)
    change, why = HOSTILE_INDEX[name]
    forged(f"{path}.pack", index=change)
    rejected(path, caplog, why)


def test_a_form_of_another_size_is_not_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Kernels have no checks: what lowering wants decides, not what a pack has."""
    path = embedded(tmp_path)
    want = opened(path).run(None, LAYERS)
    packed(path)

    def shorter(document: Any) -> Any:
        document["blobs"][document["forms"][0][4]][1] -= 64
        return document

    forged(f"{path}.pack", index=shorter)
    got = opened(path).run(None, LAYERS)
    assert "it is packed again" in caplog.text
    assert got[0].tobytes() == want[0].tobytes()


def node_of(name: str, position: int, to: Any) -> Change:
    def change(document: Any) -> Any:
        nodes = document["graph"]["nodes"]
        number = next(i for i, (_, n) in enumerate(document["ops"]) if n == name)
        next(n for n in reversed(nodes) if n[0] == number)[position] = to
        return document

    return change


INSTRUCTION = ["instruction", "", "Add", [0, 7], "f32", ["tuple"]]
HOSTILE_GRAPH: dict[str, tuple[Change, str]] = {
    "no table": (lambda d: [], "no table"),
    "empty": (lambda d: {}, "KeyError"),
    "no op": (setting("ops", 0, to=["", "Nothing"]), "there is no op"),
    "op beyond": (setting("graph", "nodes", 0, 0, to=99), "no number"),
    "value beyond": (setting("graph", "nodes", 0, 2, to=[999]), "no number"),
    "its own output": (setting("graph", "nodes", 0, 2, to=[1, 1]), "no number"),
    "constant beyond": (setting("graph", "nodes", 0, 2, to=[-999]), "no number"),
    "no outputs": (setting("graph", "nodes", 0, 3, to=[]), "makes 0"),
    "too many outputs": (setting("graph", "nodes", 0, 3, to=["a"] * 9), "makes 9"),
    "unknown attribute": (setting("graph", "nodes", 0, 4, to={"x": 1}), "has no attribute"),
    "wrong attribute": (setting("graph", "nodes", 0, 4, to={"axis": ["bytes", "a"]}), "attribute"),
    "far axis": (setting("graph", "nodes", 0, 4, to={"axis": 77}), "the graph: "),
    "formula for an input": (
        setting("graph", "inputs", 0, 1, 2, to=[[[2, "batch"]], "n"]), "has the size",
    ),
    "name of a fresh size": (setting("graph", "inputs", 0, 1, 2, to=["cut#0", "n"]), "the size"),
    "input without a type": (setting("graph", "inputs", 0, 1, to=None), "has no type"),
    "other outputs": (setting("outputs", to=[]), "differ in number"),
    "other inputs": (setting("inputs", 0, 0, to="z"), "differ in names"),
    "code reads beyond": (
        node_of("MatMul", 4, {"code": ["tuple", INSTRUCTION]}), "reads what is not there",
    ),
    "code of another type": (
        node_of("MatMul", 4, {"code": ["tuple", ["instruction", "", "Relu", [0], "f64",
                                                 ["tuple"]]]}), "gives another type",
    ),
    "code of no op": (
        node_of("MatMul", 4, {"code": ["tuple", ["instruction", "", "Loop", [0], "f32",
                                                 ["tuple"]]]}), "no elementwise op",
    ),
    "code that is none": (node_of("MatMul", 4, {"code": 3}), "cannot be understood"),
    "guard of no kind": (
        setting("graph", "guards", to=[["x", 1, 2, "", ""]]), "no kind of guard",
    ),
    "guard on unknown sizes": (
        setting("graph", "guards", to=[["equal", "q", 2, "", ""]]), "a guard on",
    ),
    "deep size": (
        setting("graph", "guards", to=[["equal", [[1, ["div", [[1, "batch"]], "text"]]] , 1, "",
                                        ""]]), "a guard on",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE_GRAPH)
def test_hostile_graph(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = embedded(tmp_path)
    packed(path)
    change, why = HOSTILE_GRAPH[name]
    forged(f"{path}.pack", graph=change)
    rejected(path, caplog, why)
