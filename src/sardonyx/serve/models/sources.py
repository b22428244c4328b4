"""Where models are: names and versions of the files and folders that the server was given.

A folder of models has, for a model NAME, one of

    NAME.onnx                     version 1
    NAME/model.onnx               version 1, with tokenizer.json beside it
    NAME/3/model.onnx             version 3

Names of requests are looked up in what was found; no path is ever made from one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from sardonyx.base.log import logger
from sardonyx.base.records import frozen
from sardonyx.errors import NoSuchFile

_SUFFIXES: Final = (".onnx", ".ort")
_FILES: Final = ("model.onnx", "model.ort")
_VERSION: Final = re.compile(r"[1-9][0-9]{0,17}")
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}")

Versions = Mapping[str, str]  # paths of models by version


@frozen
class Identity:
    """What changes when a file is replaced or written to."""

    inode: int
    size_bytes: int
    modified_ns: int


def identity(path: str) -> Identity | None:
    """Return the identity of a file, or None if it is not there."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return Identity(status.st_ino, status.st_size, status.st_mtime_ns)


def versions_at(path: str) -> Versions:
    """Return the versions of the model at a path that the server was given."""
    if os.path.isfile(path):
        return {"1": path}
    if not os.path.isdir(path):
        raise NoSuchFile(f"there is no model at {path}")
    found = _versions(path)
    if not found:
        raise NoSuchFile(
            f"there is no model in {path}", hint="it has model.onnx, or folders 1, 2, ... that do"
        )
    return found


def models_in(folder: str) -> dict[str, Versions]:
    """Return the models of a folder by name."""
    if not os.path.isdir(folder):
        raise NoSuchFile(f"there is no folder {folder}")
    models: dict[str, Versions] = {}
    for name, path in sorted(_entries(folder)):
        if os.path.isdir(path):
            if _NAME.fullmatch(name) and (versions := _versions(path)):
                models[name] = versions
        else:
            stem, suffix = os.path.splitext(name)
            if suffix in _SUFFIXES and _NAME.fullmatch(stem):
                models.setdefault(stem, {"1": path})
    return models


def _versions(folder: str) -> Versions:
    versions: dict[str, str] = {}
    entries = dict(_entries(folder))
    for name, path in entries.items():
        is_version = _VERSION.fullmatch(name) and os.path.isdir(path)
        if is_version and (file := _file_in(dict(_entries(path)))) is not None:
            versions[name] = file
    if versions:
        return dict(sorted(versions.items(), key=lambda item: int(item[0])))
    single = _file_in(entries)
    return {} if single is None else {"1": single}


def _file_in(entries: Mapping[str, str]) -> str | None:
    return next((entries[file] for file in _FILES if file in entries), None)


def _entries(folder: str) -> Iterator[tuple[str, str]]:
    """Yield the names and paths in a folder, without links that lead out of it."""
    root = os.path.realpath(folder)
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                target = os.path.realpath(entry.path)
                if os.path.commonpath((root, target)) != root:
                    logger.warning("%s leads out of its folder: it is ignored", entry.path)
                    continue
            yield entry.name, entry.path


def named(argument: str) -> tuple[str, str]:
    """Return the name and path of an argument NAME=PATH or PATH."""
    name, equals, path = argument.partition("=")
    if not equals:
        path = argument
        base = os.path.basename(os.path.normpath(path))
        stem, suffix = os.path.splitext(base)
        name = stem if suffix in _SUFFIXES else base
    if not _NAME.fullmatch(name):
        raise NoSuchFile(
            f"{name!r} is not a name for a model",
            hint="name it as in bert=path/of/model.onnx: letters, digits and _ . + -",
        )
    return name, path


def check_names(names: Sequence[str]) -> None:
    """Raise an error if two models have one name."""
    for name in names:
        if names.count(name) > 1:
            raise NoSuchFile(f"two models are named {name}", hint="name them: NAME=PATH")
