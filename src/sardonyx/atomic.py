"""Writes files whole or not at all: without a name or under a temporary one, synced, renamed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import BinaryIO


@contextlib.contextmanager
def writing(path: str) -> Iterator[BinaryIO]:
    """A file that appears under its name only when the block ends well."""
    temporary = f"{path}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
    try:
        with _open(temporary) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if not os.path.lexists(temporary):
                _give_name(file.fileno(), temporary)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _open(temporary: str) -> BinaryIO:
    """A new file: without a name where the system has such, so that nothing of it stays behind."""
    folder = os.path.dirname(temporary) or "."
    with contextlib.suppress(OSError, AttributeError):
        descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666)
        if os.path.exists(f"/proc/self/fd/{descriptor}"):
            return open(descriptor, "w+b")
        os.close(descriptor)
    return open(temporary, "x+b")


def _give_name(descriptor: int, name: str) -> None:
    folder = os.open(os.path.dirname(name) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # With a folder's descriptor the link of /proc is followed to the file itself.
        os.link(f"/proc/self/fd/{descriptor}", name, src_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)
