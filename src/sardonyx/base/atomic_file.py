"""Atomic file writes: a file appears under its name complete and synced, or not at all.

With O_TMPFILE the file has no name until it is complete, so a killed writer leaves nothing.
Elsewhere it is written under a temporary name; the next write in the folder removes leftovers.
Every writer holds an flock on its temporary file, so an unlocked one belongs to no live writer.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import BinaryIO, Final

SUFFIX: Final = ".sardonyx.tmp"


@contextlib.contextmanager
def writing(path: str) -> Iterator[BinaryIO]:
    """Yield a file that appears under `path` only if the block succeeds."""
    _remove_leftovers(os.path.dirname(path) or ".")
    temporary = f"{path}.{os.urandom(8).hex()}{SUFFIX}"
    try:
        with _open(temporary) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            # A file of O_TMPFILE has no temporary name: `_link` gives it its final one.
            if os.path.lexists(temporary) or not _link(file.fileno(), path, temporary):
                os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _open(temporary: str) -> BinaryIO:
    """Return a new locked file, without a name where the system supports O_TMPFILE."""
    folder = os.path.dirname(temporary) or "."
    with contextlib.suppress(OSError, AttributeError):
        descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666)
        if os.path.exists(f"/proc/self/fd/{descriptor}"):
            _lock(descriptor)
            return open(descriptor, "w+b")
        os.close(descriptor)
    while True:
        file = open(temporary, "x+b")  # noqa: SIM115 - the caller closes it
        _lock(file.fileno())
        if os.path.lexists(temporary):
            return file
        file.close()  # another writer removed it as a leftover before it was locked


def _link(descriptor: int, path: str, temporary: str) -> bool:
    """Give an unnamed file its name; False: `path` exists, and it is named `temporary`.

    A link cannot replace an existing file; a rename of the temporary name can.
    """
    try:
        _link_as(descriptor, path)
    except FileExistsError:
        _link_as(descriptor, temporary)
        return False
    return True


def _link_as(descriptor: int, name: str) -> None:
    folder = os.open(os.path.dirname(name) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Only with src_dir_fd does os.link call linkat, which follows the /proc link to the file.
        os.link(f"/proc/self/fd/{descriptor}", name, src_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)


def _lock(descriptor: int) -> bool:
    """Lock a file until the descriptor closes; False if another writer holds the lock."""
    import fcntl  # an extension module; most processes write no files

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held, or a file system without locks, where leftovers stay
        return False
    return True


def _remove_leftovers(folder: str) -> None:
    """Remove temporary files that killed writers left in a folder."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(SUFFIX) and entry.is_file(follow_symlinks=False):
                _remove_if_unlocked(entry.path)


def _remove_if_unlocked(path: str) -> None:
    with contextlib.suppress(OSError):  # gone, or not ours to touch
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if _lock(descriptor):
                os.unlink(path)
        finally:
            os.close(descriptor)
