"""Documentation: code blocks run, commands and paths exist, examples run."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sardonyx.cli import main
from sardonyx.models import DIGITS
from sardonyx.passes.pipeline import LOWER_CPU, OPTIMIZE
from tests.decoder import Decoder

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
EXAMPLES = sorted(ROOT.glob("examples/*.py"))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FRESH = ("docs/drop_in.md",)  # pages whose Python changes what a process imports
QUOTING = ("ARCHITECTURE.md", "CONTRIBUTING.md")  # their Python is pieces of the code
RUNNABLE = [
    name
    for name in (str(page.relative_to(ROOT)) for page in PAGES)
    if name not in (*FRESH, *QUOTING) and "```python\n" in (ROOT / name).read_text()
]
# Results, generated pages and tables may be longer, and need not begin with a block.
LONG = ("results.md", "lab_book.md")
LOOKED_UP = (*LONG, "ops.md", "aten.md", "packages.md", "index.md")
STARTING = [  # pages whose first block is run as it stands
    page for page in sorted(ROOT.glob("docs/*.md")) if page.name not in LOOKED_UP
]
MODEL = re.compile(r"[\w/]+\.onnx")
TOPS = (".ci", "bench", "cmake", "deploy", "docs", "examples", "native", "src", "tests", "tools")
GUIDES = ("ARCHITECTURE.md", "CONTRIBUTING.md")


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


@pytest.mark.parametrize("page", STARTING, ids=lambda p: p.stem)
def test_a_page_begins_with_a_block(page: Path) -> None:
    assert "```" in page.read_text().split("\n## ", 1)[0], "no block before the first section"


@pytest.mark.parametrize("page", STARTING, ids=lambda p: p.stem)
def test_commands_of_the_first_block_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Models that the commands name are the built-in one, data its samples."""
    monkeypatch.chdir(tmp_path)
    kind, block = BLOCK.findall(page.read_text())[0]
    commands = [shlex.split(line, comments=True) for line in block.splitlines() * (kind == "sh")]
    for words in (w for w in commands if w and w[0] == "sardonyx" and w[1] != "serve"):
        for name in filter(MODEL.fullmatch, words):
            if not Path(name).exists() and words[words.index(name) - 1] != "-o":
                shutil.copy(DIGITS, name)
        status = main(words[1:])
        assert status == 0, (words, capsys.readouterr().err)


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/*.md")), ids=lambda p: p.stem)
def test_pages_are_short(page: Path) -> None:
    """Tables and code are looked up; prose is read."""
    prose = [x for x in BLOCK.sub("", page.read_text()).splitlines() if not x.startswith("|")]
    n_words = sum(len(line.split()) for line in prose)
    assert n_words <= 1200 or page.name in LONG, f"{n_words} words"


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    listed = re.findall(r"^ +- ([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = {str(p.relative_to(ROOT / "docs")) for p in ROOT.glob("docs/**/*.md")}
    made = {"examples.md", "cli.md", *(f"{p.stem.lower()}.md" for p in ROOT.glob("*.md"))}
    assert pages <= set(listed), "add these to nav in mkdocs.yml"
    assert set(listed) <= pages | made
    assert len(listed) == len(set(listed))


def test_figures_are_drawn_from_the_results() -> None:
    """After a change of docs/results.md: python tools/figures.py."""
    command = [sys.executable, str(ROOT / "tools" / "figures.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("claim", "measured"),
    [
        ("2036 of 2036", "2036 of 2036 cases"),
        (
            "Over 28 networks at batch 8 a run allocates 0.40x",
            "The geometric mean over the 28 models",
        ),
        ("a run allocates 0.40x", "run adds more than 5 MB is 0.40"),
        ("74 packages from PyPI give the same answers", "that import onnxruntime | 74 |"),
        ("starts in 0.1 s and 6 MB", "| 0.09 to 0.11 s | 6 MB |"),
        ("takes 3 to 18 s", "| 13 to 18 s | 4290 MB |"),
    ],
)
def test_claims_of_the_readme_are_measured(claim: str, measured: str) -> None:
    readme, results = (
        " ".join((ROOT / name).read_text().split()) for name in ("README.md", "docs/results.md")
    )
    assert claim in readme
    assert measured in results


def _tree() -> str:
    """Files and folders of the tree, a line each, as `/native/exec/`."""
    tops = (ROOT / name for name in TOPS)
    paths = [p for top in tops for p in (top, *top.rglob("*")) if "__pycache__" not in p.parts]
    return "\n".join(f"/{p.relative_to(ROOT)}{'/' * p.is_dir()}" for p in paths) + "\n"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_paths_lead_somewhere(page: Path) -> None:
    """Guides abbreviate paths to their ends; other pages also name files of their readers."""
    tree = _tree()
    for path in re.findall(r"`([\w./-]*/[\w./-]*|\w+\.(?:py|cc|h|inc))`", page.read_text()):
        if page.name in GUIDES or path.startswith(tuple(f"{top}/" for top in TOPS)):
            assert re.search(rf"/{re.escape(path)}/?$", tree, re.MULTILINE), path


@pytest.mark.parametrize("name", GUIDES)
def test_names_are_in_the_files_that_have_them(name: str) -> None:
    named = re.findall(
        r"`(\w[\w.]*)`(?: and `\w+`)?\s+of\s+`([\w/]+\.py)`", (ROOT / name).read_text()
    )
    assert named
    for word, path in named:
        (file,) = {p for p in (ROOT / path, ROOT / "src/sardonyx" / path) if p.exists()}
        assert re.search(rf"\b{word.rpartition('.')[2]}\b", file.read_text()), (word, path)


def test_the_passes_of_the_guide_are_those_of_the_pipeline() -> None:
    rows = re.findall(r"^\| ([a-z_0-9, ]+) \|", _section("Passes"), re.MULTILINE)
    named = [name for row in rows for name in row.split(", ")]
    assert named == [each.name for each in (*OPTIMIZE, *LOWER_CPU)]


def test_the_table_of_threads_names_every_lock() -> None:
    section = _section("Threads")
    makes_lock = re.compile(
        r"= (?:NonReentrant|threading\.)?(?:R?Lock|Condition)\(|factory=Lock"
        r"|^ *(?:mutable )?(?:std::mutex|ForkMutex) \w+(?:\{\})?;",
        re.MULTILINE,
    )
    for top in ("src/sardonyx", "native"):
        for path in (p for kind in ("*.py", "*.h", "*.cc") for p in (ROOT / top).rglob(kind)):
            if makes_lock.search(path.read_text()):
                base = ROOT if top == "native" else ROOT / top
                assert f"`{path.relative_to(base).with_suffix('')}." in section, path


def _section(title: str) -> str:
    """A section of ARCHITECTURE.md whose title begins like this."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    return text.split(f"\n## {title}", 1)[1].split("\n## ", 1)[0]


def test_the_architecture_is_short() -> None:
    """A stranger reads it in a quarter of an hour; details belong in the heads of files."""
    assert len((ROOT / "ARCHITECTURE.md").read_text().split()) <= 2450


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_examples_run(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out.strip()
