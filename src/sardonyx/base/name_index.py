"""The module that declares each op: read from a generated file, or found by importing all.

tools/make_index.py writes `index.txt` into a folder of modules when the package is built. The file
only saves time: without it, or where a source file is newer, an op that it does not list is looked
for by importing every module of the folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Final

from sardonyx.base.import_cache import import_module

FILE: Final = "index.txt"
Key = tuple[str, str]  # domain and name of an op


class NameIndex:
    """The module of each op, relative to a folder."""

    __slots__ = ("_folder", "_is_complete", "_modules", "_scan")

    def __init__(self, folder: str, scan: Callable[[], dict[Key, str]]) -> None:
        """`scan` finds the module of every op without the file."""
        self._folder = folder
        self._scan = scan
        self._modules = read(os.path.join(folder, FILE))
        self._is_complete = False

    def listed(self, key: Key) -> str | None:
        """Return the module that the file lists for an op."""
        return self._modules.get(key)

    def find(self, key: Key) -> str | None:
        """Return the module of an op; None if no module of the folder has it."""
        module = self._modules.get(key)
        return module if module is not None else self.all().get(key)

    def all(self) -> dict[Key, str]:
        """Return the modules of all ops, in the order of the modules."""
        if not self._is_complete:
            if is_stale(self._folder):
                self._modules = self._scan()
            self._is_complete = True
        return self._modules


def read(path: str) -> dict[Key, str]:
    """Read a file with lines of domain, module and op names, separated by tabs, if it exists."""
    modules: dict[Key, str] = {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            for line in file:
                domain, module, names = line.split("\t")
                modules.update(((domain, name), module) for name in names.split())
    return modules


def write(folder: str, modules: dict[Key, str]) -> None:
    """Write the file of a folder."""
    names: dict[tuple[str, str], list[str]] = {}
    for (domain, name), module in modules.items():
        names.setdefault((domain, module), []).append(name)
    lines = [f"{domain}\t{module}\t{' '.join(ops)}\n" for (domain, module), ops in names.items()]
    path = os.path.join(folder, FILE)
    with open(f"{path}.{os.getpid()}", "w", encoding="utf-8") as file:
        file.writelines(lines)
    os.replace(file.name, path)  # other processes may read it


def is_stale(folder: str) -> bool:
    """Return whether a folder has no file, or a source file that is newer than it."""
    try:
        written = os.stat(os.path.join(folder, FILE)).st_mtime_ns
    except OSError:
        return True
    return any(
        os.stat(os.path.join(path, name)).st_mtime_ns > written
        for path, _, names in os.walk(folder)
        for name in names
        if name.endswith(".py")
    )


def module_names(folder: str) -> list[str]:
    """Return the modules below a folder, as in "elementwise.cast", in alphabetical order."""
    found = []
    for path, _, names in os.walk(folder):
        package = os.path.relpath(path, folder).replace(os.sep, ".").lstrip(".")
        stems = (n.removesuffix(".py") for n in names if n.endswith(".py") and n[0] != "_")
        found += [f"{package}.{stem}".lstrip(".") for stem in stems]
    return sorted(found)


def import_if_present(name: str) -> ModuleType | None:
    """Import a module; return None if there is none of this name."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return None
