"""Protects files from being overwritten: a pack replaces only a pack, a model only its kind."""

from __future__ import annotations

import os
import stat
from typing import Final

from sardonyx.errors import InvalidArgument
from sardonyx.load.source import map_file
from sardonyx.pack.file import MAGIC
from sardonyx.save.model import is_stub

_REMOVE: Final = "choose another name, or remove it first"
# Named in the message: a user who passes one of these has mistyped a path.
_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
)


def check_pack(path: str) -> None:
    """Raise if a pack would overwrite anything but a pack."""
    if os.path.lexists(path) and not _is_pack(_regular(path)):
        raise _refusal(path, "a file that is not a pack", _REMOVE)


def check_model(path: str) -> None:
    """Raise if a standalone model would overwrite anything but a standalone model."""
    if os.path.lexists(path) and not is_stub(map_file(_regular(path), path).data):
        raise _refusal(path, "a file that is not a standalone model", _REMOVE)


def _is_pack(path: str) -> bool:
    # By its first bytes alone, so that a damaged or outdated pack can be replaced.
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _regular(path: str) -> str:
    """Return the path if it is a regular file; opening others (pipes) might block."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        raise _refusal(path, "a link that leads nowhere") from None
    for is_kind, name in _KINDS:
        if is_kind(mode):
            raise _refusal(path, name)
    return path


def _refusal(path: str, what: str, hint: str = "choose another name") -> InvalidArgument:
    return InvalidArgument(f"{path} is {what}, and is not replaced", hint=hint)
