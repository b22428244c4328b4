"""A bound on the disk space of stored graphs: the least recently used ones are removed.

Several processes may store, load and remove concurrently. A file that is removed while another
process reads it stays readable there; one that is gone when it is opened is a graph that is not
stored.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from sardonyx.base.log import logger

VARIABLE: Final = "SARDONYX_GRAPH_CACHE_MB"
DEFAULT_MB: Final = 1024
_MB: Final = 1_000_000
_REMAINING: Final = 0.8  # of the limit, so that not every stored graph evicts another
_MARK: Final = b"sardonyx.dynamo.cached_graph"  # in every pickled `CachedGraph`, as its module
# Another process may have made an empty folder to write into.
_SETTLED_SECONDS: Final = 3600.0


class _Entry(NamedTuple):
    used: float  # when it was read, as far as the file system records that, or written
    size_bytes: int
    path: str


def limit_bytes() -> int:
    """Return the bytes that stored graphs may take."""
    text = os.environ.get(VARIABLE, "")
    if text and not text.isdecimal():
        logger.warning("%s is %r, not a number: %d is used", VARIABLE, text, DEFAULT_MB)
    return (int(text) if text.isdecimal() else DEFAULT_MB) * _MB


def trim(folder: Path, limit: int) -> None:
    """Remove Sardonyx's graphs, the least recently used first, if the folder exceeds the limit.

    The folder is that of torch's AOTAutogradCache. Entries of other compilers stay.
    """
    entries = sorted(_entries(folder))
    if sum(entry.size_bytes for entry in entries) <= limit:
        return
    graphs = [entry for entry in entries if _is_cached_graph(entry.path)]
    total = sum(entry.size_bytes for entry in graphs)
    if total <= limit:
        return
    for entry in graphs:
        if total <= limit * _REMAINING:
            break
        _remove(entry.path)
        total -= entry.size_bytes


def _entries(folder: Path) -> Iterator[_Entry]:
    """Yield the files of the cache: one folder per key, with an entry for each set of guards."""
    with suppress(OSError), os.scandir(folder) as keys:
        for key in keys:
            with suppress(OSError), os.scandir(key.path) as files:
                for file in files:
                    if file.name.startswith("."):  # being written
                        continue
                    with suppress(OSError):
                        status = file.stat(follow_symlinks=False)
                        used = max(status.st_atime, status.st_mtime)
                        yield _Entry(used, status.st_size, file.path)


def _is_cached_graph(path: str) -> bool:
    """Whether a file is a `CachedGraph`; reading it here does not count as a use."""
    try:
        status = os.stat(path)
        content = Path(path).read_bytes()
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    except OSError:  # removed, or another user's
        return False
    return _MARK in content


def _remove(path: str) -> None:
    folder = os.path.dirname(path)
    with suppress(OSError):
        is_settled = time.time() - os.stat(folder).st_mtime > _SETTLED_SECONDS
        os.unlink(path)
        if is_settled:
            os.rmdir(folder)  # fails if it has other entries
