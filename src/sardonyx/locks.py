"""Locks that a forked child finds open, whichever of its parent's threads held them."""

from __future__ import annotations

import os
import threading
from typing import Final
from weakref import WeakSet


class Lock:
    """A lock for `with`. The thread that held it in the parent does not exist in a child."""

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _LOCKS.add(self)

    def try_acquire(self) -> bool:
        """Takes the lock if nobody holds it; whoever got it calls `release`."""
        return self._lock.acquire(blocking=False)

    def release(self) -> None:
        """Gives back what `try_acquire` took."""
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Makes it a lock that nobody holds."""
        self._lock = threading.Lock()


class Turn(Lock):
    """A lock whose holder is told so when it asks again, and does not wait for itself."""

    __slots__ = ("_holder",)

    def __init__(self) -> None:
        super().__init__()
        self._holder: int | None = None

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread holds it."""
        return self._holder == threading.get_ident()

    def __enter__(self) -> None:
        self._lock.acquire()
        self._holder = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        self._holder = None
        self._lock.release()

    def renew(self) -> None:
        """Makes it a lock that nobody holds."""
        self._holder = None
        super().renew()


_LOCKS: Final[WeakSet[Lock]] = WeakSet()


def _after_fork() -> None:
    for lock in list(_LOCKS):
        lock.renew()


os.register_at_fork(after_in_child=_after_fork)
