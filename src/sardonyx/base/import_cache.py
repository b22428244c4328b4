"""One file with the byte code of every module that `import sardonyx` loads, and of later ones.

Python searches, opens, reads and checks one .pyc per module; a single file with the code of all of
them saves about a quarter of the import time. Compare `python bench/import_time.py` with the same
command under SARDONYX_IMPORT_CACHE=0, which switches the cache off.

After that code follow the modules of ops, passes and kernels that some model imports later, each by
itself: `import_module` reads those.

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
import importlib
import marshal
import mmap
import os
import sys
from collections.abc import Iterator
from importlib.machinery import (
    BuiltinImporter,
    FileFinder,
    FrozenImporter,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
)
from types import CodeType, ModuleType
from typing import Any, Final

_PACKAGE: Final = "sardonyx"
_FOLDER: Final = os.path.dirname(os.path.dirname(__file__))  # of the package
_LATER_FOLDERS: Final = ("load/upgrade", "ops", "passes", "providers/cpu")
_STAMP: Final = (4, sys.version, _FOLDER)  # format, and what the byte code depends on
_LENGTH_BYTES: Final = 8  # of the first field of the file, which gives the length of the header
_VARIABLE: Final = "SARDONYX_IMPORT_CACHE"

# Identity of a source file. Modification time and size do not suffice: installers may set a fixed
# time, so that an upgrade can leave both unchanged. No program can set the change time (ctime).
Identity = tuple[int, int, int, int]
# By module: source path, path of the .pyc, whether it is a package, identity of the source, and
# for later modules the range of their code in the file.
Header = dict[str, tuple[str, str | None, bool, Identity, int, int]]


class _CachedLoader(SourceFileLoader):
    """A source loader whose first `get_code` returns the cached code."""

    def __init__(self, name: str, path: str, codes: dict[str, CodeType]) -> None:
        super().__init__(name, path)
        self._codes = codes

    def get_code(self, fullname: str) -> CodeType | None:
        return self._codes.pop(fullname, None) or super().get_code(fullname)


class ImportCache:
    """A finder on `sys.meta_path`, while a `with` block imports the package or a later module."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._modules: Header = {}
        self._codes: dict[str, CodeType] = {}
        self._data = memoryview(b"")
        if path is not None:
            self._modules, self._codes, self._data = _read(path)
        self._is_valid = bool(self._modules)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of a cached module."""
        if name not in self._modules:
            return None
        file, cached, is_package, identity, begin, end = self._modules[name]
        if begin < end and _identity(file) == identity:
            self._codes[name] = marshal.loads(self._data[begin:end])
        if name not in self._codes:
            return None
        loader = _CachedLoader(name, file, self._codes)
        spec = ModuleSpec(name, loader, origin=file, is_package=is_package)
        spec.has_location, spec.cached = True, cached
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(os.path.dirname(file))
        return spec

    def __enter__(self) -> None:
        if self._is_valid and PathFinder in sys.meta_path:
            at = sys.meta_path.index(PathFinder)
            # The finders of built-in and frozen modules need not be asked: they never have one.
            while at and sys.meta_path[at - 1] in (BuiltinImporter, FrozenImporter):
                at -= 1
            sys.meta_path.insert(at, self)

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        global _later
        if self._is_valid:
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            self._codes.clear()  # byte code of modules that were imported in another way
            _later = self
        elif self._path and error is None and not sys.dont_write_bytecode:
            with contextlib.suppress(OSError, ImportError, ValueError):  # a read-only folder, ...
                _write(self._path)


_later: ImportCache | None = None  # the cache of the package, once that is imported


def import_module(name: str) -> ModuleType:
    """Import a module of the package, from the cache if it is there."""
    if _later is None or name in sys.modules:
        return importlib.import_module(name)
    with _later:
        return importlib.import_module(name)


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


def _read(path: str) -> tuple[Header, dict[str, CodeType], memoryview]:
    """Return the modules, the code of the first ones, and the bytes with the code of later ones.

    There is nothing unless every source file of the first ones is unchanged.
    """
    try:
        with open(path, "rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        begin = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
        stamp, code_bytes, later_bytes, modules = marshal.loads(data[_LENGTH_BYTES:begin])
        first = (entry for entry in modules.values() if entry[4] == entry[5])
        if (
            stamp == _STAMP
            and code_bytes + later_bytes == len(data) - begin
            and all(_identity(source) == known for source, _, _, known, *_ in first)
        ):
            end = begin + code_bytes
            return modules, marshal.loads(data[begin:end]), data[end:]
    except (OSError, EOFError, ValueError, TypeError):  # absent, the empty placeholder, damaged
        pass
    return {}, {}, memoryview(b"")


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
            modules[name] = source, spec.cached, is_package, _identity(source), 0, 0
            codes[name] = spec.loader.get_code(name)
    code = marshal.dumps(codes)  # in one piece: modules share their strings
    later = b"".join(_add_later(modules))
    header = marshal.dumps((_STAMP, len(code), len(later), modules))
    with writing(path) as file:
        file.writelines((len(header).to_bytes(_LENGTH_BYTES, "little"), header, code, later))


def _add_later(modules: Header) -> Iterator[bytes]:
    """Add the modules that models may import later; yield the code of each."""
    from importlib.util import cache_from_source

    begin = 0
    for folder in _LATER_FOLDERS:
        for path, _, files in os.walk(os.path.join(_FOLDER, folder)):
            for file in sorted(files):
                source, (stem, kind) = os.path.join(path, file), os.path.splitext(file)
                parts = os.path.relpath(path, _FOLDER).split(os.sep)
                name = ".".join((_PACKAGE, *parts, *(() if stem == "__init__" else (stem,))))
                if kind != ".py" or stem == "gradient" or name in modules:  # gradient: of training
                    continue
                identity, loader = _identity(source), SourceFileLoader(name, source)
                code = marshal.dumps(loader.get_code(name))
                cached, end = cache_from_source(source), begin + len(code)
                modules[name] = source, cached, stem == "__init__", identity, begin, end
                begin = end
                yield code
