"""Locks that a forked child finds open, whichever of its parent's threads held them."""

from __future__ import annotations

import os
import threading
from typing import Final
from weakref import WeakSet

from sardonyx.errors import ValueFault


class Lock:
    """A lock for `with`. A child of a fork finds it held only where the forking thread holds it."""

    __slots__ = ("__weakref__", "_holder", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: int | None = None
        _LOCKS.add(self)

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread holds it."""
        return self._holder == threading.get_ident()

    def try_acquire(self) -> bool:
        """Takes the lock if nobody holds it; whoever got it calls `release`."""
        if not self._lock.acquire(blocking=False):
            return False
        self._holder = threading.get_ident()
        return True

    def release(self) -> None:
        """Gives back what `try_acquire` took."""
        self._holder = None
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()
        self._holder = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        self._holder = None
        self._lock.release()

    def renew(self) -> None:
        """After a fork: held by the thread that lives on, if that held it, else by nobody."""
        self._lock = threading.Lock()
        if self.is_mine:
            self._lock.acquire()
        else:
            self._holder = None


class NonReentrantLock(Lock):
    """A lock around code of the user's: a thread that holds it and asks again gets an error."""

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        """`what` the holder does, for the error."""
        super().__init__()
        self._what = what

    def __enter__(self) -> None:
        if self.is_mine:
            raise ValueFault(
                f"this thread is {self._what}, and code that this called asks for it again",
                hint="let a custom op, or a callback, use another session or binding",
            )
        super().__enter__()


_LOCKS: Final[WeakSet[Lock]] = WeakSet()


def _after_fork() -> None:
    for lock in list(_LOCKS):
        lock.renew()


os.register_at_fork(after_in_child=_after_fork)
