"""Writes files whole or not at all: without a name or under a temporary one, synced, then named.

A writer that is killed leaves nothing where the file is new and the system has files without a
name. Else a temporary file may stay behind, until the next write in its folder removes it: writers
hold a lock on theirs, so one without belongs to nobody.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import BinaryIO, Final

SUFFIX: Final = ".sardonyx.tmp"


@contextlib.contextmanager
def writing(path: str) -> Iterator[BinaryIO]:
    """A file that appears under its name only when the block ends well."""
    _sweep(os.path.dirname(path) or ".")
    temporary = f"{path}.{os.urandom(8).hex()}{SUFFIX}"
    try:
        with _open(temporary) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if os.path.lexists(temporary) or not _appears(file.fileno(), path, temporary):
                os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _open(temporary: str) -> BinaryIO:
    """A new file, locked: without a name where the system has such."""
    folder = os.path.dirname(temporary) or "."
    with contextlib.suppress(OSError, AttributeError):
        descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666)
        if os.path.exists(f"/proc/self/fd/{descriptor}"):
            _lock(descriptor)
            return open(descriptor, "w+b")
        os.close(descriptor)
    while True:
        file = open(temporary, "x+b")  # noqa: SIM115 - the caller's to close
        _lock(file.fileno())
        if os.path.lexists(temporary):
            return file
        file.close()  # another writer took it for a leftover before it was locked


def _appears(descriptor: int, path: str, temporary: str) -> bool:
    """Names a file that has no name; False if it got the temporary one, since there is another."""
    try:
        _give_name(descriptor, path)
    except FileExistsError:
        _give_name(descriptor, temporary)
        return False
    return True


def _give_name(descriptor: int, name: str) -> None:
    folder = os.open(os.path.dirname(name) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # With a folder's descriptor the link of /proc is followed to the file itself.
        os.link(f"/proc/self/fd/{descriptor}", name, src_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)


def _lock(descriptor: int) -> bool:
    """Marks a file as somebody's until the descriptor closes; False if it is somebody else's."""
    import fcntl  # a library to load, and most processes write nothing

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held, or a file system without locks, on which nothing is removed
        return False
    return True


def _sweep(folder: str) -> None:
    """Removes what killed writers left in a folder."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(SUFFIX) and entry.is_file(follow_symlinks=False):
                _remove_if_left(entry.path)


def _remove_if_left(path: str) -> None:
    with contextlib.suppress(OSError):  # gone, or not ours to touch
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if _lock(descriptor):
                os.unlink(path)
        finally:
            os.close(descriptor)
