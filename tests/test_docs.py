"""What the documentation says, done: code blocks run, commands exist, examples run."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sardonyx.cli import main
from tests.decoder import Decoder

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
EXAMPLES = sorted(ROOT.glob("examples/*.py"))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Pages whose Python stands on its own; others quote pieces of code.
RUNNABLE = (
    "README.md",
    "docs/custom_ops.md",
    "docs/api.md",
    "docs/gpu.md",
    "docs/language_models.md",
    "docs/memory.md",
    "docs/order.md",
    "docs/plan.md",
    "docs/profile.md",
    "docs/pytorch.md",
    "docs/quantization.md",
    "docs/quantized.md",
    "docs/strings.md",
    "docs/training.md",
    "docs/weight_only.md",
)
FRESH = ("docs/drop_in.md",)  # pages whose Python changes what a process imports


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a page that are in a language."""
    return [text for kind, text in BLOCK.findall(page.read_text()) if kind == language]


@pytest.mark.parametrize("name", RUNNABLE)
def test_python_blocks_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Decoder("qoperator").save(tmp_path / "model.onnx")  # for pages that speak of one
    page, printed = ROOT / name, io.StringIO()
    if "import torch" in page.read_text():
        pytest.importorskip("torch")
    namespace: dict[str, Any] = {"__name__": name}
    with contextlib.redirect_stdout(printed):
        for number, block in enumerate(blocks(page, "python")):
            exec(compile(block, f"{name} block {number}", "exec"), namespace)
    for shown in blocks(page, ""):  # a block without a language is what the code above it prints
        assert shown in printed.getvalue()


@pytest.mark.parametrize("name", FRESH)
def test_python_blocks_run_in_a_fresh_process(name: str, tmp_path: Path) -> None:
    code = "\n".join(blocks(ROOT / name, "python"))
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "".join(blocks(ROOT / name, "")) == done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_exist(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for block in blocks(page, "sh"):
        for command in re.split(r"&&|\n", block):
            words = shlex.split(command, comments=True)
            if words and Path(words[0]).name == "sardonyx":
                _check_command(words[1:], capsys)
            elif words and (ROOT / words[0]).suffix in (".py", ".sh"):
                assert (ROOT / words[0]).exists(), words[0]


def _check_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A command of ours and every option that it is shown with are known to `--help`."""
    assert main([words[0], "--help"]) == 0
    text = capsys.readouterr().out
    for option in (w for w in words if w.startswith("--")):
        assert option in text, f"{words[0]} has no {option}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_examples_run(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out.strip()
