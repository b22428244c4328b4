"""The command line as a whole: help, versions, exit statuses, terminals."""

from __future__ import annotations

import io
import os
import pathlib
import subprocess
import sys
import time
from typing import Any

import pytest

import sardonyx
from sardonyx.base import progress
from sardonyx.base.units import format_bytes, format_seconds
from sardonyx.cli import console, main
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


def test_file_that_is_not_a_model(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"no model at all")
    assert main(["info", str(path)]) == 1
    assert "is not an ONNX model" in capsys.readouterr().err


def test_control_characters_in_names_are_escaped(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "\x1b[2Jm.onnx"
    assert main(["info", str(path)]) == 1
    assert "\\x1b[2J" in capsys.readouterr().err


def test_interrupt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stop(*_: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("sardonyx.cli.run.start_session", stop)
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


def _terminal(monkeypatch: pytest.MonkeyPatch) -> _Terminal:
    """Replace standard output and standard error by a terminal with colours."""
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "COLORTERM", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    shown = _Terminal()
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setattr(sys, "stderr", shown)
    return shown


def test_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _terminal(monkeypatch)
    console.heading("title", "remark")
    assert "\x1b[1mtitle" in terminal.getvalue()
    assert "\x1b[2mremark" in terminal.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    console.say("plain", "bold red")
    assert terminal.getvalue().endswith("\nplain\n")


def test_characters_that_the_encoding_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "ascii", write_through=True))
    console.say("2.50 µs")
    assert raw.getvalue() == b"2.50 ?s\n"


def test_progress_only_when_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _terminal(monkeypatch)
    with console.activity("fast"):
        pass
    assert terminal.getvalue() == ""
    monkeypatch.setattr(progress, "DELAY_S", 0.0)
    with console.activity("slow") as line:
        _wait_for("slow", terminal)
        line.describe("slower")
        line.update(30, 40)
        _wait_for("slower", terminal)
        _wait_for("30 B of 40 B", terminal)
        with progress.track("[inner]") as inner:  # as the core reports it
            inner.update(1, 2)
            _wait_for("[inner]", terminal)
    assert terminal.getvalue().endswith("\x1b[2K")


def _wait_for(text: str, terminal: _Terminal) -> None:
    end = time.monotonic() + 10
    while text not in terminal.getvalue():
        assert time.monotonic() < end, terminal.getvalue()
        time.sleep(0.01)


def test_no_progress_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "DELAY_S", 0.0)
    with console.activity("slow") as line, progress.track("inner") as inner:
        line.update(1, 2)
        inner.update(1, 2)
        time.sleep(0.05)
    assert capsys.readouterr() == ("", "")


def test_progress_without_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line that programs show while weights are loaded; it needs no rich."""
    terminal = _terminal(monkeypatch)
    monkeypatch.setattr(progress, "DELAY_S", 0.0)
    with progress.track("loading") as line:
        line.update(5_000, 20_000)
    assert terminal.getvalue() == "\r\x1b[Kloading: 25% of 20.0 KB\r\x1b[K"


def test_sessions_import_no_command_line() -> None:
    code = (
        "import sys, numpy, sardonyx\n"
        "from sardonyx.models import DIGITS\n"
        "session = sardonyx.InferenceSession(DIGITS)\n"
        "session.run(None, {'image': numpy.zeros((1, 1, 8, 8), numpy.float32)})\n"
        "import sardonyx.weights.loading\n"
        "print({'rich', 'sardonyx.cli'} & sys.modules.keys())\n"
        "from sardonyx.cli import main\n"
        "main(['run', '--help'])\n"
        "print('rich' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert (lines[0], lines[-1]) == ("set()", "False")


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.00 KB"), (346_000_000, "346 MB"), (2.5e12, "2.50 TB")],
)
def test_sizes(n_bytes: float, text: str) -> None:
    assert format_bytes(n_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5e-6, "2.50 µs"), (0.0123, "12.3 ms"), (1.0, "1.00 s"), (120, "120 s")]
)
def test_durations(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("cuad", "did you mean CUDAExecutionProvider?"),
        ("CPUExecutionProvidr", "did you mean CPUExecutionProvider?"),
        ("xyz", "cpu, cuda, torch or a full name"),
    ],
)
def test_a_wrong_provider_is_refused_at_once(
    name: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "there-is-no-such-file.onnx", "--provider", name]) == 2
    assert hint in capsys.readouterr().err
