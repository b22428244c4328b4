"""The code of all modules that `import sardonyx` brings, in one file.

For each module Python looks through folders, then opens, reads and checks a file: for modules of
our size a third of an import. So the first import leaves their code in one file beside Python's own
caches, and later ones take it from there. A module whose source has changed is imported as ever,
and the file is written anew.
"""

from __future__ import annotations

import contextlib
import gc
import marshal
import os
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any, Final

_PACKAGE: Final = "sardonyx"
_FOLDER: Final = os.path.dirname(__file__)
_STAMP: Final = (1, sys.version, sys.flags.optimize, _FOLDER)  # a file with another one is not ours

# The source's path from the folder, its time and size, and the code; no path: it is no source file.
Entry = tuple[str, int, int, bytes]
_OTHER: Final[Entry] = ("", 0, 0, b"")


class _Loader(SourceFileLoader):
    """The loader of a source file that has its code already."""

    def __init__(self, name: str, path: str, code: bytes) -> None:
        super().__init__(name, path)
        self._code = code

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = marshal.loads(self._code)
        return code


class Bundle:
    """Finds modules in a file while the package is imported."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._entries = {} if path is None else _read(path)
        self._is_whole = bool(self._entries)
        self._collects = True

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """How to import a module, if its source is as it was."""
        if not name.startswith(_PACKAGE):
            return None
        entry = self._entries.get(name)
        if entry is None or entry == _OTHER:
            self._is_whole &= entry is not None
            return None
        file = os.path.join(_FOLDER, entry[0])
        if _state(file) != entry[1:3]:
            self._is_whole = False
            return None
        is_package = os.path.basename(file) == "__init__.py"
        spec = ModuleSpec(name, _Loader(name, file, entry[3]), origin=file, is_package=is_package)
        spec.has_location = True
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(os.path.dirname(file))
        return spec

    def __enter__(self) -> None:
        self._collects = gc.isenabled()
        gc.disable()  # modules are no garbage, only work to look at
        sys.meta_path.insert(0, self)

    def __exit__(self, error: object, *_: object) -> None:
        sys.meta_path.remove(self)
        if self._collects:
            gc.enable()
        if error is None and not self._is_whole and self._path and not sys.dont_write_bytecode:
            with contextlib.suppress(OSError, ImportError, ValueError):
                _write(self._path)
        self._entries = {}


def bundle_of(spec: ModuleSpec | None) -> Bundle:
    """The file beside the caches of the package; none where there are no such."""
    if spec is None or spec.cached is None or spec.origin != os.path.join(_FOLDER, "__init__.py"):
        return Bundle(None)
    return Bundle(f"{os.path.splitext(spec.cached)[0]}.bundle")


def _state(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _read(path: str) -> dict[str, Entry]:
    try:
        with open(path, "rb") as file:
            stamp, entries = marshal.loads(file.read())
        return dict(entries) if stamp == _STAMP else {}
    except (OSError, EOFError, ValueError, TypeError):
        return {}


def _write(path: str) -> None:
    modules = list(sys.modules.items())
    entries = {n: _entry(n, module) for n, module in modules if n.startswith(f"{_PACKAGE}.")}
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "xb") as file:
            file.write(marshal.dumps((_STAMP, entries)))
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _entry(name: str, module: ModuleType) -> Entry:
    loader = None if module.__spec__ is None else module.__spec__.loader
    if not isinstance(loader, SourceFileLoader):
        return _OTHER
    path = loader.get_filename(name)
    state, code = _state(path), loader.get_code(name)
    if state is None or code is None:
        raise ImportError(f"{name} is gone")
    return os.path.relpath(path, _FOLDER), *state, marshal.dumps(code)
