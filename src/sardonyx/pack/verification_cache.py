"""Remembers what was compared: one small file for each outcome, in a folder for caches.

A file has its outcome and what that is about in words, and counts only if it has exactly these.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Sequence
from typing import Final

from sardonyx.base.atomic_file import writing
from sardonyx.base.digest import blake2b
from sardonyx.base.log import logger
from sardonyx.graph.const import Stamp

EQUAL: Final = "equal"
OTHER: Final = "other"
_FOLDER: Final = "checked"
_SUFFIX: Final = ".checked"
_MOST: Final = 1024  # files; of more, the older half is removed
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

_here: Final[dict[str, str]] = {}  # outcomes of this process, which may have no folder to write to


def key_of(what: str, pack: str, stamps: Sequence[Stamp | None]) -> str | None:
    """What an outcome is about: a pack by its digest, and files; None if one may yet change."""
    return None if None in stamps else json.dumps([what, pack, stamps])


class Outcomes:
    """What is known, read from all folders and written to the first that can be written to."""

    def __init__(self, cache: str | None) -> None:
        """`cache` is a folder that the user named; that of the user's account comes next."""
        self._folders = [
            os.path.join(f, _FOLDER) for f in (cache, _account_folder()) if f is not None
        ]

    def recall(self, key: str | None) -> str | None:
        """EQUAL, OTHER, or None where nothing is known."""
        if key is None:
            return None
        if key in _here:
            return _here[key]
        for folder in self._folders:
            found = _read(os.path.join(folder, _name(key)), key)
            if found is not None:
                return found
        return None

    def folder(self) -> str | None:
        """Where outcomes can be written to."""
        for folder in self._folders:
            with contextlib.suppress(OSError):
                os.makedirs(folder, 0o700, exist_ok=True)
                if os.access(folder, os.W_OK | os.X_OK):
                    return folder
        return None

    def remember(self, key: str | None, outcome: str) -> None:
        """Writes an outcome, if it is about files that can be told from later ones."""
        if key is None:
            return
        if len(_here) >= _MOST:
            _here.clear()
        _here[key] = outcome
        folder = self.folder()
        if folder is None:
            return
        try:
            with writing(os.path.join(folder, _name(key))) as file:
                file.write(_text(key, outcome))
            _prune(folder)
        except OSError as error:
            logger.warning(
                "what was compared with a pack cannot be remembered in %s, and is compared again "
                "by the next load: %s; sardonyx.pack_cache names another folder",
                folder, error.strerror or error,
            )  # fmt: skip


def _account_folder() -> str | None:
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = given if os.path.isabs(given) else os.path.expanduser("~/.cache")
    return os.path.join(base, "sardonyx") if os.path.isabs(base) else None


def _name(key: str) -> str:
    return blake2b(key.encode(), digest_size=20).hexdigest() + _SUFFIX


def _text(key: str, outcome: str) -> bytes:
    return f"{outcome} {key}\n".encode()


def _read(path: str, key: str) -> str | None:
    """The outcome in a file; None if there is none, or it says anything else."""
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        said = os.read(descriptor, len(_text(key, OTHER)) + 1)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return next((o for o in (EQUAL, OTHER) if said == _text(key, o)), None)


def _prune(folder: str) -> None:
    """Keeps a folder from growing for ever: files that are replaced leave their outcomes."""
    with os.scandir(folder) as entries:
        found = [e for e in entries if e.name.endswith(_SUFFIX)]
    if len(found) <= _MOST:
        return
    with contextlib.suppress(FileNotFoundError):  # another process prunes too
        for entry in sorted(found, key=lambda e: e.stat(follow_symlinks=False).st_mtime_ns)[
            : len(found) // 2
        ]:
            os.unlink(entry.path)
