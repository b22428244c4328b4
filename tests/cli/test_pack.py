"""`sardonyx pack`: what it says, and what it refuses to write over."""

from __future__ import annotations

import json
import os
import pathlib

import pytest

from sardonyx.cli import main
from tests.pack.packs import embedded, external


def test_a_standalone_model_is_its_own_pack(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = embedded(tmp_path), str(tmp_path / "out.onnx")
    for _ in range(2):  # another of its kind may be replaced
        assert main(["pack", path, "--standalone", "-o", out]) == 0
    capsys.readouterr()
    assert main(["pack", out, "--verify"]) == 0
    assert "of a standalone model, every byte" in capsys.readouterr().out
    assert main(["pack", out, "--verify", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["is_standalone"] is True
    assert main(["pack", out]) == 1
    assert "is a standalone model, its own pack" in capsys.readouterr().err


@pytest.mark.parametrize("standalone", [[], ["--standalone"]])
def test_only_packs_are_overwritten(
    standalone: list[str], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = embedded(tmp_path)
    notes, pipe, link = (tmp_path / n for n in ("notes.txt", "pipe", "link"))
    notes.write_text("mine")
    os.mkfifo(pipe)
    link.symlink_to("nowhere")
    for target, what in (
        (notes, "a file that is not "),
        (pipe, "a pipe"),
        (link, "a link that leads nowhere"),
        (tmp_path, "a folder"),
        (pathlib.Path("/dev/null"), "a device"),
        (pathlib.Path(path), "is"),
    ):
        assert main(["pack", path, *standalone, "-o", str(target)]) != 0
        assert f"{target} is {what.removeprefix('is')}" in capsys.readouterr().err
    assert notes.read_text() == "mine"
    assert pipe.is_fifo()
    assert not (tmp_path / "nowhere").exists()


def test_pack_of_a_standalone_model_does_not_overwrite_other_files(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, notes = embedded(tmp_path), tmp_path / "out.onnx.pack"
    notes.write_text("mine")
    assert main(["pack", path, "--standalone", "-o", str(tmp_path / "out.onnx")]) == 1
    assert "is a file that is not a pack" in capsys.readouterr().err
    assert notes.read_text() == "mine"
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("option", ["--outputs", "--profile"])
@pytest.mark.parametrize("name", ["model.onnx", "model.data", "model.onnx.pack"])
def test_run_does_not_overwrite_the_model(
    option: str, name: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = external(tmp_path)
    assert main(["pack", path]) == 0
    before = (tmp_path / name).read_bytes()
    assert main(["run", path, "--seconds", "0", option, str(tmp_path / name)]) == 2
    assert "is read by this command" in capsys.readouterr().err
    assert (tmp_path / name).read_bytes() == before
