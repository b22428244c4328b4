"""The verification cache: outcomes of comparing packs and weights, remembered between processes.

Each outcome is a small file in a cache folder, named by a digest of its key. It has the outcome and
the whole key, and counts only if its content is exactly that. Safe for several processes: files are
written atomically.
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
DIFFERENT: Final = "other"
_FOLDER: Final = "checked"
_SUFFIX: Final = ".checked"
_MAX_FILES: Final = 1024  # if there are more, the older half is removed
# A folder of caches may be shared: links are not followed, and opening a pipe does not block.
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

# Outcomes of this process, which may have no folder to write to. Threads may read and write it.
_process_cache: Final[dict[str, str]] = {}


def cache_key(what: str, pack: str, stamps: Sequence[Stamp | None]) -> str | None:
    """Return the key of an outcome: a pack by its checksum, and stamps of files.

    None if a file has no stamp, because it was just written and may change without a trace.
    """
    return None if None in stamps else json.dumps([what, pack, stamps])


class VerificationCache:
    """Outcomes of verifications, read from all folders and written to the first writable one."""

    def __init__(self, cache: str | None) -> None:
        """`cache` is a folder that the user configured; that of the account comes next."""
        self._folders = [
            os.path.join(f, _FOLDER) for f in (cache, _account_folder()) if f is not None
        ]

    def recall(self, key: str | None) -> str | None:
        """Return EQUAL, DIFFERENT, or None if there is no outcome."""
        if key is None:
            return None
        if key in _process_cache:
            return _process_cache[key]
        for folder in self._folders:
            outcome = _read(os.path.join(folder, _name(key)), key)
            if outcome is not None:
                return outcome
        return None

    def folder(self) -> str | None:
        """Return the folder that outcomes are written to; it is created."""
        # A folder that cannot be made or written to is not an error: verification is repeated.
        for folder in self._folders:
            with contextlib.suppress(OSError):
                os.makedirs(folder, 0o700, exist_ok=True)
                if os.access(folder, os.W_OK | os.X_OK):
                    return folder
        return None

    def remember(self, key: str | None, outcome: str) -> None:
        """Record an outcome, unless its key is None."""
        if key is None:
            return
        if len(_process_cache) >= _MAX_FILES:
            _process_cache.clear()
        _process_cache[key] = outcome
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
    """Return the cache folder of the account, by the XDG base directory specification."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    base = home if os.path.isabs(home) else os.path.expanduser("~/.cache")
    return os.path.join(base, "sardonyx") if os.path.isabs(base) else None


def _name(key: str) -> str:
    return blake2b(key.encode(), digest_size=20).hexdigest() + _SUFFIX


def _text(key: str, outcome: str) -> bytes:
    return f"{outcome} {key}\n".encode()


def _read(path: str, key: str) -> str | None:
    """Return the outcome in a file; None if there is none, or if its content is another."""
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        # One byte more than an outcome has: a longer file must not be equal to one.
        content = os.read(descriptor, len(_text(key, DIFFERENT)) + 1)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return next((o for o in (EQUAL, DIFFERENT) if content == _text(key, o)), None)


def _prune(folder: str) -> None:
    """Bound the size of a folder: outcomes of files that were replaced stay in it."""
    with os.scandir(folder) as entries:
        outcomes = [e for e in entries if e.name.endswith(_SUFFIX)]
    if len(outcomes) <= _MAX_FILES:
        return
    with contextlib.suppress(FileNotFoundError):  # another process prunes too
        outcomes.sort(key=lambda e: e.stat(follow_symlinks=False).st_mtime_ns)
        for entry in outcomes[: len(outcomes) // 2]:
            os.unlink(entry.path)
