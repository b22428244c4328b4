"""The programs of examples/gallery, where their packages are installed: models out of packages."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = sorted(ROOT.glob("examples/gallery/*.py"))
PAGE = (ROOT / "docs" / "gallery.md").read_text()


def _missing(program: Path) -> list[str]:
    """The packages of a program's header that are not installed."""
    (line,) = re.findall(r"^# dependencies = \[(.*)\]$", program.read_text(), re.MULTILINE)
    missing = []
    for name in re.findall(r'"([\w.-]+)', line):
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    return missing


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.stem)
def test_a_program_prints_what_the_gallery_shows(program: Path) -> None:
    shown = PAGE.split(f"## {program.stem}\n", 1)[1].split("```text\n", 1)[1].split("```", 1)[0]
    if missing := _missing(program):
        pytest.skip(f"not installed: {', '.join(missing)}")
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == shown


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.stem)
def test_the_gallery_shows_the_programs(program: Path) -> None:
    assert f"```py\n{program.read_text()}```" in PAGE
