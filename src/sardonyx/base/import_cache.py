"""One file with the byte code of every module that `import sardonyx` loads.

Python searches, opens, reads and checks one .pyc per module; a single file with the code of all of
them saves about a quarter of the import time. Compare `python bench/import_time.py` with the same
command under SARDONYX_IMPORT_CACHE=0, which switches the cache off.

The first import writes `sardonyx/_import_cache.<cache tag>.bin`; later imports read it. The wheel
ships an empty file of that name, so that pip lists it in RECORD and removes it on uninstall and on
upgrade. With `sys.pycache_prefix` the file is in that tree, next to the .pyc files. It is written
by renaming, so that several processes may import concurrently, and not at all where the folder is
read-only or `sys.dont_write_bytecode` is set.

The cache is not used with -O, where another loader has loaded the package (zip files, PyInstaller,
Nuitka) or where `sys.path_hooks` was changed. Other finders on `sys.meta_path` keep their
precedence: the cache is asked after them, before PathFinder.
"""

from __future__ import annotations

import contextlib
import marshal
import mmap
import os
import sys
from importlib.machinery import (
    BuiltinImporter,
    FileFinder,
    FrozenImporter,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
)
from types import CodeType
from typing import Any, Final

_PACKAGE: Final = "sardonyx"
_FOLDER: Final = os.path.dirname(os.path.dirname(__file__))  # of the package
_STAMP: Final = (3, sys.version, _FOLDER)  # format, and what the byte code depends on
_LENGTH_BYTES: Final = 8  # of the first field of the file, which gives the length of the header
_VARIABLE: Final = "SARDONYX_IMPORT_CACHE"

# Identity of a source file. Modification time and size do not suffice: installers may set a fixed
# time, so that an upgrade can leave both unchanged. No program can set the change time (ctime).
Identity = tuple[int, int, int, int]
# By module: source path, path of the .pyc, whether it is a package, identity of the source.
Header = dict[str, tuple[str, str | None, bool, Identity]]


class _CachedLoader(SourceFileLoader):
    """A source loader whose first `get_code` returns the cached code."""

    def __init__(self, name: str, path: str, codes: dict[str, CodeType]) -> None:
        super().__init__(name, path)
        self._codes = codes

    def get_code(self, fullname: str) -> CodeType | None:
        return self._codes.pop(fullname, None) or super().get_code(fullname)


class ImportCache:
    """A finder on `sys.meta_path`, for as long as the `with` block imports the package."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._modules, self._codes = ({}, {}) if path is None else _read(path)
        self._is_valid = bool(self._modules)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of a cached module."""
        if name not in self._codes:
            return None
        file, cached, is_package, _ = self._modules[name]
        loader = _CachedLoader(name, file, self._codes)
        spec = ModuleSpec(name, loader, origin=file, is_package=is_package)
        spec.has_location, spec.cached = True, cached
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(os.path.dirname(file))
        return spec

    def __enter__(self) -> None:
        if self._is_valid:
            at = sys.meta_path.index(PathFinder)
            # The finders of built-in and frozen modules need not be asked: they never have one.
            while at and sys.meta_path[at - 1] in (BuiltinImporter, FrozenImporter):
                at -= 1
            sys.meta_path.insert(at, self)

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if self._is_valid:
            sys.meta_path.remove(self)
            self._codes.clear()  # byte code of modules that were imported in another way
        elif self._path and error is None and not sys.dont_write_bytecode:
            with contextlib.suppress(OSError, ImportError, ValueError):  # a read-only folder, ...
                _write(self._path)


def import_cache(spec: ModuleSpec | None) -> ImportCache:
    """Return the cache for the package with this spec; an inactive one where it does not apply."""
    return ImportCache(_cache_path(spec) if _applies_to(spec) else None)


def _applies_to(spec: ModuleSpec | None) -> bool:
    return (
        os.environ.get(_VARIABLE) != "0"
        and spec is not None
        and type(spec.loader) is SourceFileLoader
        and spec.origin == os.path.join(_FOLDER, "__init__.py")
        and not sys.flags.optimize
        and PathFinder in sys.meta_path
        and [getattr(hook, "__module__", "") for hook in sys.path_hooks]
        == ["zipimport", FileFinder.__module__]
    )


def _cache_path(spec: ModuleSpec | None) -> str | None:
    tag = sys.implementation.cache_tag
    if spec is None or spec.cached is None or tag is None:
        return None
    folder = os.path.dirname(spec.cached) if sys.pycache_prefix else _FOLDER
    return os.path.join(folder, f"_import_cache.{tag}.bin")


def _identity(path: str) -> Identity:
    status = os.stat(path)
    return status.st_mtime_ns, status.st_size, status.st_ctime_ns, status.st_ino


def _read(path: str) -> tuple[Header, dict[str, CodeType]]:
    """Return the modules and their code; nothing unless every source file is unchanged."""
    try:
        with open(path, "rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        begin = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
        stamp, code_bytes, modules = marshal.loads(data[_LENGTH_BYTES:begin])
        if (
            stamp == _STAMP
            and code_bytes == len(data) - begin
            and all(_identity(source) == known for source, *_, known in modules.values())
        ):
            return modules, marshal.loads(data[begin:])
    except (OSError, EOFError, ValueError, TypeError):  # absent, the empty placeholder, damaged
        pass
    return {}, {}


def _write(path: str) -> None:
    from sardonyx.base.atomic_file import writing

    modules: Header = {}
    codes: dict[str, CodeType | None] = {}
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        if not name.startswith(f"{_PACKAGE}.") or spec is None:
            continue
        if type(spec.loader) is SourceFileLoader:  # not the native extension
            source = spec.loader.path
            is_package = spec.submodule_search_locations is not None
            # Before the code is read: a source that changes in between then has another identity.
            modules[name] = source, spec.cached, is_package, _identity(source)
            codes[name] = spec.loader.get_code(name)
    code = marshal.dumps(codes)  # in one piece: modules share their strings
    header = marshal.dumps((_STAMP, len(code), modules))
    with writing(path) as file:
        file.writelines((len(header).to_bytes(_LENGTH_BYTES, "little"), header, code))
