"""A journal of results in the work folder, from which an interrupted search resumes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from sardonyx.base.atomic_file import writing
from sardonyx.errors import Fail

_OURS: Final = "sardonyx-search."  # prefix of the names of all files of a search
_FILE: Final = f"{_OURS}json"
_LOCK: Final = f"{_OURS}lock"
_T = TypeVar("_T")


class Journal:
    """Results by key; each is written to the file before the next one is computed."""

    def __init__(self, folder: str, digest: str) -> None:
        """Read the results of an earlier search with the same digest; others are dropped."""
        self.folder = folder
        self.n_resumed = 0
        self._digest = digest
        self._results: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            with open(os.path.join(folder, _FILE), encoding="utf-8") as file:
                content = json.load(file)
            if content["digest"] == self._digest:
                self._results = dict(content["results"])
        self._old = frozenset(self._results)
        if not self._old:
            _clear(folder)

    def path(self, name: str) -> str:
        """Return the path of a file of the search."""
        return os.path.join(self.folder, _OURS + name)

    def remembered(self, key: str, compute: Callable[[], _T]) -> _T:
        """Return the result of a key, which JSON can express; compute it if it is not known."""
        if key in self._results:
            self.n_resumed += key in self._old
            found: _T = self._results[key]
            return found
        result = compute()
        self._results[key] = result
        content = {"digest": self._digest, "results": self._results}
        try:
            with writing(os.path.join(self.folder, _FILE)) as file:
                file.write(json.dumps(content).encode())
        except OSError as error:
            raise _not_written(self.folder, error) from error
        return result


@contextlib.contextmanager
def work_folder(folder: str) -> Iterator[None]:
    """Make a folder for the files of a search, and lock it for this process."""
    import fcntl  # not on every system that only imports this module

    try:
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, _LOCK)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise _not_written(folder, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise Fail(
            f"another search works in {folder}", hint="wait for it, or choose another --work"
        ) from None
    finally:
        os.close(descriptor)


def _not_written(folder: str, error: OSError) -> Fail:
    return Fail(
        f"intermediate results cannot be written to {folder}: {error.strerror or error}",
        hint="choose another folder with --work (work=...)",
    )


def remove(folder: str) -> None:
    """Remove the files of a search, and the folder if nothing else is in it."""
    _clear(folder)
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(folder, _LOCK))
        os.rmdir(folder)


def _clear(folder: str) -> None:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(_OURS) and entry.name != _LOCK:
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    os.unlink(entry.path)
