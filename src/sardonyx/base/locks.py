"""Fork-safe locks: in a forked child, locks held by other threads of the parent are released."""

from __future__ import annotations

import os
from _thread import allocate_lock, get_ident  # `threading` takes 0.6 ms to import
from typing import Final
from weakref import WeakSet

from sardonyx.errors import ValueFault


class Lock:
    """A lock for `with`. In a forked child it is held only if the forking thread holds it."""

    __slots__ = ("__weakref__", "_holder", "_lock")

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._holder: int | None = None
        _LOCKS.add(self)

    @property
    def is_held_here(self) -> bool:
        """Whether the calling thread holds the lock."""
        return self._holder == get_ident()

    def try_acquire(self) -> bool:
        """Acquire the lock without waiting; if True, the caller must call `release`."""
        if not self._lock.acquire(blocking=False):
            return False
        self._holder = get_ident()
        return True

    def release(self) -> None:
        """Release the lock after `try_acquire`."""
        self._holder = None
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()
        self._holder = get_ident()

    def __exit__(self, *_: object) -> None:
        self._holder = None
        self._lock.release()

    def reset_after_fork(self) -> None:
        """Replace the lock after a fork; it stays held if the surviving thread held it."""
        # A new one: the old may be held by a thread that does not exist in the child.
        self._lock = allocate_lock()
        if self.is_held_here:
            self._lock.acquire()
        else:
            self._holder = None


class NonReentrantLock(Lock):
    """A lock held while user code runs: acquiring it again in the same thread is an error.

    A plain lock would deadlock, a re-entrant one would let the inner call see half-made state.
    """

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        """`what` describes what the holder does, for the error message."""
        super().__init__()
        self._what = what

    def __enter__(self) -> None:
        if self.is_held_here:
            raise ValueFault(
                f"this thread is {self._what}, and a callback of it tries to do so again",
                hint="use another session or binding in a custom op or callback",
            )
        super().__enter__()


_LOCKS: Final[WeakSet[Lock]] = WeakSet()


def _after_fork() -> None:
    for lock in list(_LOCKS):
        lock.reset_after_fork()


os.register_at_fork(after_in_child=_after_fork)
