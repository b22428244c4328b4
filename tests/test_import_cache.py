"""The import cache: written once, read later, never stale, and never before another import hook."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import sardonyx
from sardonyx import _native

CODE = """
import sardonyx, sardonyx.base.atomic_file, sardonyx.graph, inspect, importlib.util
loader = sardonyx.compile.__spec__.loader
print(type(loader).__module__, sardonyx.base.atomic_file.__doc__.split(":")[0])
assert "def writing" in inspect.getsource(sardonyx.base.atomic_file)
assert sardonyx.graph.__path__ == [sardonyx.graph.__file__.rpartition("/")[0]]
assert sardonyx.graph.__cached__ == importlib.util.cache_from_source(sardonyx.graph.__file__)
assert sardonyx.compile.__spec__.loader.get_code("sardonyx.compile") is not None
"""
# The finder of an editable installation would come before the path.
_NOT_EDITABLE = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in type(f).__module__]
"""
PLAIN, CACHED = "_frozen_importlib_external", "sardonyx.base.import_cache"
OTHER = "Says something else"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package whose sources may change."""
    source, copy = Path(sardonyx.__file__).parent, tmp_path / "sardonyx"
    for path in source.rglob("*.py"):
        if "torch" not in path.parts and "train" not in path.parts:
            target = copy / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
    (copy / Path(_native.__file__).name).symlink_to(_native.__file__)
    return copy


def run_python(package: Path, code: str, *flags: str, **variables: str) -> list[str]:
    """Run code with this package in a fresh process that may write .pyc files."""
    unset = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "SARDONYX_IMPORT_CACHE")
    environment = {k: v for k, v in os.environ.items() if k not in unset}
    environment |= {"PYTHONPATH": str(package.parent), **variables}
    command = [sys.executable, *flags, "-c", _NOT_EDITABLE + code]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert not ran.stderr, ran.stderr
    return ran.stdout.strip().split(" ", 1)


def imported(package: Path, *flags: str, **variables: str) -> list[str]:
    """Return the module of a loader, and the first words of another module's docstring."""
    return run_python(package, CODE, *flags, **variables)


def caches(package: Path) -> list[Path]:
    return list(package.parent.rglob("_import_cache.*.bin"))


def first_words(path: Path) -> str:
    return path.read_text().removeprefix('"""').split(":")[0]


@pytest.fixture
def module(package: Path) -> Path:
    return package / "base/atomic_file.py"


def test_the_first_import_writes_what_later_ones_read(package: Path, module: Path) -> None:
    says = first_words(module)
    assert imported(package, PYTHONDONTWRITEBYTECODE="1") == [PLAIN, says]
    assert not caches(package)
    assert imported(package) == [PLAIN, says]
    (cache,) = caches(package)
    assert cache == package / f"_import_cache.{sys.implementation.cache_tag}.bin"
    written = cache.stat().st_mtime_ns
    assert imported(package) == [CACHED, says]
    assert imported(package, PYTHONDONTWRITEBYTECODE="1") == [CACHED, says]
    assert cache.stat().st_mtime_ns == written


LATER = """
import sys, sardonyx
from sardonyx.base.import_cache import import_module
assert "sardonyx.ops.sample.grid" not in sys.modules
module = import_module("sardonyx.ops.sample.grid")
print(type(module.__spec__.loader).__module__, module.OPS[0])
assert not any("sardonyx" in type(finder).__module__ for finder in sys.meta_path)
"""


def test_later_modules_are_in_it(package: Path) -> None:
    assert run_python(package, LATER) == [PLAIN, "GridSample"]
    assert run_python(package, LATER) == [CACHED, "GridSample"]
    changed = package / "ops/sample/grid.py"
    changed.write_text(changed.read_text() + "\n")
    assert run_python(package, LATER) == [PLAIN, "GridSample"]


def test_the_cache_can_be_disabled(package: Path) -> None:
    assert imported(package, SARDONYX_IMPORT_CACHE="0")[0] == PLAIN
    assert not caches(package)
    imported(package)
    assert imported(package, SARDONYX_IMPORT_CACHE="0")[0] == PLAIN


def test_pycache_prefix(package: Path) -> None:
    prefix = str(package.parent / "prefix")
    imported(package, PYTHONPYCACHEPREFIX=prefix)
    (cache,) = caches(package)
    assert str(cache).startswith(prefix)
    assert imported(package, PYTHONPYCACHEPREFIX=prefix)[0] == CACHED


def test_optimized_code_is_not_cached(package: Path) -> None:
    imported(package)
    assert run_python(package, CODE.replace("assert", "0 and"), "-O")[0] == PLAIN


def test_a_changed_source_invalidates(package: Path, module: Path) -> None:
    imported(package)
    module.write_text(module.read_text().replace(first_words(module), OTHER))
    assert imported(package) == [PLAIN, OTHER]
    assert imported(package) == [CACHED, OTHER]


@pytest.mark.parametrize("is_replaced", [False, True], ids=["written", "renamed"])
def test_a_changed_source_of_equal_time_and_size_invalidates(
    package: Path, module: Path, is_replaced: bool
) -> None:
    """As in an upgrade of a wheel that an installer gives fixed times."""
    for path in package.rglob("*.py"):
        os.utime(path, (1, 1))
    imported(package)
    says = first_words(module)
    other = says.swapcase()
    upgraded = package / "upgraded" if is_replaced else module
    upgraded.write_text(module.read_text().replace(says, other, 1))
    os.utime(upgraded, (1, 1))
    upgraded.rename(module)
    # Python's own .pyc is as stale as the cache would be; installers replace it.
    shutil.rmtree(module.parent / "__pycache__")
    assert imported(package) == [PLAIN, other]
    assert imported(package) == [CACHED, other]


@pytest.mark.parametrize(
    "content", [b"", b"no cache", b"\x00" * 64], ids=["placeholder", "text", "zeros"]
)
def test_a_file_without_a_cache_is_replaced(package: Path, content: bytes) -> None:
    imported(package)
    (cache,) = caches(package)
    cache.write_bytes(content)
    assert imported(package)[0] == PLAIN
    assert imported(package)[0] == CACHED


def test_a_damaged_file_is_replaced(package: Path) -> None:
    imported(package)
    (cache,) = caches(package)
    cache.write_bytes(cache.read_bytes()[:-100])
    assert imported(package)[0] == PLAIN
    assert imported(package)[0] == CACHED


def test_a_read_only_folder(package: Path) -> None:
    prefix = package.parent / "prefix"
    prefix.write_text("not a folder")
    assert imported(package, PYTHONPYCACHEPREFIX=str(prefix))[0] == PLAIN


def test_several_processes_at_once(package: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = str(package.parent)
    command = [sys.executable, "-c", f"{_NOT_EDITABLE}import sardonyx"]
    started = [subprocess.Popen(command, env=environment) for _ in range(4)]
    assert [process.wait() for process in started] == [0] * 4
    assert [path.name for path in package.glob("*_import_cache*")] == [caches(package)[0].name]
    assert imported(package)[0] == CACHED


def test_a_source_that_changes_during_the_import(package: Path, module: Path) -> None:
    """Code that was read before the change is not taken for that of the new source."""
    changed = module.read_text().replace(first_words(module), OTHER)
    code = f"import sardonyx.base.atomic_file\nopen({str(module)!r}, 'w').write({changed!r})\n"
    last = package / "preload.py"
    last.write_text(last.read_text() + code)
    imported(package)
    last.write_text(last.read_text().removesuffix(code))
    assert imported(package)[1] == OTHER
    assert imported(package) == [CACHED, OTHER]


def test_a_module_set_to_none_in_sys_modules(package: Path) -> None:
    run_python(package, "import sys\nsys.modules['sardonyx.train'] = None\nimport sardonyx")
    assert caches(package)


FINDER = """
import sys
from importlib.machinery import PathFinder
class Finder:
    seen = []
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.startswith("sardonyx."):
            cls.seen.append(name)
            return PathFinder.find_spec(name, path, target)
sys.meta_path.insert({place}, Finder)
"""


def test_other_finders_come_first(package: Path) -> None:
    """Those before PathFinder see every module, and those after it as few as ever."""
    imported(package)
    front = FINDER.format(place="sys.meta_path.index(PathFinder)")
    assert run_python(package, front + CODE)[0] == PLAIN
    back = FINDER.format(place="len(sys.meta_path)")
    assert run_python(package, back + CODE + "assert not Finder.seen")[0] == CACHED


HOOK = """
import sys
def hook(path):
    raise ImportError
sys.path_hooks.insert(0, hook)
"""


def test_other_path_hooks_come_first(package: Path) -> None:
    imported(package)
    assert run_python(package, HOOK + CODE)[0] == PLAIN


def test_uninstalling_removes_the_cache(package: Path, tmp_path: Path) -> None:
    """The wheel has an empty file in the place of the cache, so that it is listed in RECORD."""
    pytest.importorskip("pip")
    venv.create(tmp_path / "venv")
    (site,) = (tmp_path / "venv/lib").glob("python3*/site-packages")
    package = package.rename(site / "sardonyx")
    placeholder = package / f"_import_cache.{sys.implementation.cache_tag}.bin"
    placeholder.touch()
    info = site / "sardonyx-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sardonyx\nVersion: 0.1.0\n")
    files = [p for p in site.rglob("*") if p.is_file() and not p.is_symlink()]
    record = "".join(f"{p.relative_to(site)},,\n" for p in (*files, info / "RECORD"))
    (info / "RECORD").write_text(record)
    imported(package)
    assert imported(package)[0] == CACHED
    assert placeholder.stat().st_size
    pip = [sys.executable, "-m", "pip", "--python", str(tmp_path / "venv/bin/python")]
    subprocess.run([*pip, "uninstall", "-qy", "sardonyx"], check=True)
    assert [path.name for path in package.rglob("*") if path.is_file()] == [
        Path(_native.__file__).name  # a link out of the environment, which pip leaves alone
    ]
