"""The command line as a whole: help, versions, exit statuses, terminals."""

from __future__ import annotations

import io
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

import sardonyx
from sardonyx.cli import main, term
from tests.cli import models


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"sardonyx {sardonyx.__version__}\n"


@pytest.mark.parametrize("command", [[], ["run"], ["info"], ["bench"]])
def test_help_has_examples(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--help"]) == 0
    assert "examples:" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["fly"],
        ["info"],
        ["run", "m.onnx", "--dims", "batch"],
        ["run", "m.onnx", "--dims", "batch=-1"],
        ["run", "m.onnx", "--dims", "batch=99999999999999999999"],
        ["run", "m.onnx", "--shapes", "x=1x-3"],
        ["run", "m.onnx", "--seconds", "nan"],
        ["run", "m.onnx", "--threads", "0"],
        ["bench", "m.onnx", "--rivals", "os; import x"],
    ],
)
def test_bad_arguments(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    said = capsys.readouterr()
    assert "error:" in said.err
    assert said.out == ""


@pytest.mark.parametrize("command", ["run", "info", "bench"])
def test_missing_file(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "nowhere.onnx"]) == 1
    said = capsys.readouterr()
    assert said.err == "sardonyx: there is no file nowhere.onnx\n"
    assert said.out == ""


def test_no_model(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"no model at all")
    assert main(["info", str(path)]) == 1
    assert "is not an ONNX model" in capsys.readouterr().err


def test_names_cannot_steer_the_terminal(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "\x1b[2Jm.onnx"
    assert main(["info", str(path)]) == 1
    assert "\\x1b[2J" in capsys.readouterr().err


def test_interrupt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stop(*_: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("sardonyx.cli.run.begin", stop)
    assert main(["run", "m.onnx"]) == 130
    assert capsys.readouterr().err == "sardonyx: interrupted\n"


def test_module_and_closed_pipe(tmp_path: pathlib.Path) -> None:
    path = models.sums(tmp_path / "m.onnx")
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "sardonyx", "info", path],
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writing)
    assert done.returncode == 141
    assert done.stderr == b""


class _Terminal(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


def test_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert term.has_colour(_Terminal())
    assert not term.has_colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not term.has_colour(_Terminal())


def test_progress_only_when_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with term.Progress("quick"):
        pass
    assert terminal.getvalue() == ""
    monkeypatch.setattr(term, "PATIENCE", 0.0)
    with term.Progress("slow") as progress:
        while "slow" not in terminal.getvalue():
            progress._over.wait(0.01)
    assert terminal.getvalue().endswith("\r\x1b[K")


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.00 KB"), (346_000_000, "346 MB"), (2.5e12, "2.50 TB")],
)
def test_sizes(n_bytes: float, text: str) -> None:
    assert term.size(n_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5e-6, "2.50 µs"), (0.0123, "12.3 ms"), (1.0, "1.00 s"), (120, "120 s")]
)
def test_durations(seconds: float, text: str) -> None:
    assert term.duration(seconds) == text
