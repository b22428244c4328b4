"""The file with the code of all modules: written once, read later, and never in the way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import sardonyx
from sardonyx import _native

CODE = """
import sardonyx, sardonyx.base.atomic_file, sardonyx.graph, inspect
loader = sardonyx.compile.__spec__.loader
print(type(loader).__module__, sardonyx.base.atomic_file.__doc__.split(":")[0])
assert "def writing" in inspect.getsource(sardonyx.base.atomic_file)
assert sardonyx.graph.__path__ == [sardonyx.graph.__file__.rpartition("/")[0]]
assert type(sardonyx.compile.__spec__.loader).__name__ in ("_Loader", "SourceFileLoader")
"""
PLAIN, BUNDLED = "_frozen_importlib_external", "sardonyx.base.bundle"
SAYS = "Atomic file writes"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package whose sources may change."""
    source, there = Path(sardonyx.__file__).parent, tmp_path / "sardonyx"
    for path in source.rglob("*.py"):
        if "torch" not in path.parts and "train" not in path.parts:
            copy = there / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    (there / Path(_native.__file__).name).symlink_to(_native.__file__)
    return there


def imported(package: Path, **variables: str) -> list[str]:
    """Which loader a module has, and what another one says of itself."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment = {**kept, "PYTHONPATH": str(package.parent), **variables}
    environment["PYTHONPYCACHEPREFIX"] = str(package.parent / "cache")
    ran = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True
    )
    assert not ran.stderr, ran.stderr
    return ran.stdout.strip().split(" ", 1)


def bundles(package: Path) -> list[Path]:
    return list((package.parent / "cache").rglob("*.bundle"))


def test_the_first_import_writes_what_later_ones_read(package: Path) -> None:
    assert imported(package, PYTHONDONTWRITEBYTECODE="1") == [PLAIN, SAYS]
    assert not bundles(package)
    assert imported(package) == [PLAIN, SAYS]
    (bundle,) = bundles(package)
    written = bundle.stat().st_mtime_ns
    assert imported(package) == [BUNDLED, SAYS]
    assert bundle.stat().st_mtime_ns == written


def test_a_changed_source_counts(package: Path) -> None:
    imported(package)
    module = package / "base/atomic_file.py"
    module.write_text(module.read_text().replace(SAYS, "Says something else"))
    assert imported(package) == [BUNDLED, "Says something else"]
    assert imported(package) == [BUNDLED, "Says something else"]


@pytest.mark.parametrize(
    "content", [b"", b"no bundle", b"\x00" * 64], ids=["empty", "text", "zeros"]
)
def test_a_broken_file_is_written_again(package: Path, content: bytes) -> None:
    imported(package)
    (bundle,) = bundles(package)
    bundle.write_bytes(content)
    assert imported(package) == [PLAIN, SAYS]
    assert imported(package) == [BUNDLED, SAYS]


def test_a_folder_that_cannot_be_written(package: Path) -> None:
    (package.parent / "cache").write_text("not a folder")
    assert imported(package) == [PLAIN, SAYS]


def test_a_source_that_changes_during_the_import(package: Path) -> None:
    """Code of before is not taken for that of the file as it is now."""
    imported(package)
    module, other = package / "base/atomic_file.py", package / "session/model_compiler.py"
    changed = module.read_text().replace(SAYS, "Says something else")
    other.write_text(other.read_text() + "\n")
    code = f"import sardonyx.base.atomic_file\nopen({str(module)!r}, 'w').write({changed!r})\n"
    last = package / "ort/options.py"
    assert "import sardonyx.base.atomic_file" not in last.read_text()
    last.write_text(last.read_text() + code)
    imported(package)
    assert imported(package)[1] == "Says something else"


def test_a_module_that_is_barred(package: Path) -> None:
    code = "import sys\nsys.modules['sardonyx.train'] = None\nimport sardonyx\n"
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["PYTHONPYCACHEPREFIX"] = str(package.parent / "cache")
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert bundles(package)
