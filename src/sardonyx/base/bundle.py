"""The code of all modules that `import sardonyx` brings, in one file.

For each module Python looks through folders, then opens, reads and checks a file: for modules of
our size a third of an import. So the first import leaves their code in one file beside Python's own
caches, and later ones take it from there. A module whose source has changed is imported as ever,
and the file is written anew.
"""

from __future__ import annotations

import contextlib
import marshal
import mmap
import os
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any, Final

from sardonyx.base.collector import Paused

_PACKAGE: Final = "sardonyx"
_FOLDER: Final = os.path.dirname(os.path.dirname(__file__))  # of the package
_STAMP: Final = (1, sys.version, sys.flags.optimize, _FOLDER)  # a file with another one is not ours
_HEAD: Final = 8  # bytes: how long what comes before the code is

# The source, its time and size, whether it is a package, Python's own cache of it, and where its
# code lies. A module that is no source has none of these.
Entry = tuple[str, int, int, bool, str | None, int, int]
_OTHER: Final[Entry] = ("", 0, 0, False, None, 0, 0)


class _Loader(SourceFileLoader):
    """The loader of a source file that has its code already."""

    def __init__(self, name: str, path: str, code: memoryview, state: tuple[int, int]) -> None:
        super().__init__(name, path)
        self._code = code
        self.state: Final = state  # of the source that the code was made of

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = marshal.loads(self._code)
        return code


class Bundle:
    """Finds modules in a file while the package is imported."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._entries, self._codes = ({}, memoryview(b"")) if path is None else _read(path)
        self._is_whole = bool(self._entries)
        self._paused = Paused()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """How to import a module, if its source is as it was."""
        if not name.startswith(f"{_PACKAGE}."):
            return None
        entry = self._entries.get(name)
        if entry is None or entry == _OTHER:
            self._is_whole &= entry is not None
            return None
        file, time, size, is_package, cached, begin, end = entry
        if _state(file) != (time, size):
            self._is_whole = False
            return None
        loader = _Loader(name, file, self._codes[begin:end], (time, size))
        spec = ModuleSpec(name, loader, origin=file, is_package=is_package)
        spec.has_location = True
        spec.cached = cached
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(os.path.dirname(file))
        return spec

    def __enter__(self) -> None:
        self._paused.__enter__()
        sys.meta_path.insert(0, self)

    def __exit__(self, *error: object) -> None:
        sys.meta_path.remove(self)
        self._paused.__exit__(*error)
        has_failed = error[0] is not None
        if not has_failed and not self._is_whole and self._path and not sys.dont_write_bytecode:
            with contextlib.suppress(OSError, ImportError, ValueError):
                _write(self._path)


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


def _read(path: str) -> tuple[dict[str, Entry], memoryview]:
    """What a file says of modules, and their code."""
    try:
        with open(path, "rb") as file:
            mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        begin = _HEAD + int.from_bytes(mapped[:_HEAD], "little")
        stamp, entries = marshal.loads(mapped[_HEAD:begin])
        codes = mapped[begin:]
        if stamp == _STAMP and max(e[-1] for e in entries.values()) == len(codes):
            return entries, codes
    except (OSError, EOFError, ValueError, TypeError):
        pass
    return {}, memoryview(b"")


def _write(path: str) -> None:
    entries: dict[str, Entry] = {}
    codes, size = [], 0
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{_PACKAGE}."):
            entry, code = _entry(name, module, size)
            entries[name] = entry
            codes.append(code)
            size += len(code)
    head = marshal.dumps((_STAMP, entries))
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "xb") as file:
            file.writelines((len(head).to_bytes(_HEAD, "little"), head, *codes))
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _entry(name: str, module: ModuleType, begin: int) -> tuple[Entry, bytes]:
    spec = getattr(module, "__spec__", None)  # None in place of a module bars it
    if spec is None or not isinstance(spec.loader, SourceFileLoader):
        return _OTHER, b""
    path = spec.loader.get_filename(name)
    state = spec.loader.state if isinstance(spec.loader, _Loader) else _state(path)
    code = spec.loader.get_code(name)
    if state is None or code is None:
        raise ImportError(f"{name} is gone")
    data = marshal.dumps(code)
    is_package = spec.submodule_search_locations is not None
    return (path, *state, is_package, spec.cached, begin, begin + len(data)), data
