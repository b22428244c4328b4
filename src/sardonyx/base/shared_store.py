"""Stores of objects that sessions of one process share: packed weights and compiled programs.

Objects are held weakly here and strongly by sessions: the last session that uses one frees it.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar
from weakref import ref

import numpy as np

from sardonyx.base.locks import Lock
from sardonyx.base.records import frozen

Array = np.ndarray[Any, np.dtype[Any]]
T = TypeVar("T")

_HUGE: Final = 4 << 20  # bytes from which huge pages are worth their rounding up


def pages(size_bytes: int) -> Array:
    """Return bytes in an anonymous mapping, which is unmapped when the last reader is gone.

    malloc may keep freed memory, and packed weights are the largest memory of a session.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, max(1, size_bytes), flags)
    if size_bytes >= _HUGE:
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8, size_bytes)


def on_pages(array: Array) -> Array:
    """Return a copy of an array in a mapping of its own."""
    copy: Array = pages(array.nbytes).view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


@frozen
class _Entry(Generic[T]):
    """A shared object, and what must live as long for its key to identify the same bytes."""

    shared: ref[T]
    keeps: object


class Store(Generic[T]):
    """Objects shared by key. Held weakly: the last user of an object frees it.

    Thread-safe. `_lock` guards `_entries` and `_makers`, and is never held while an object is made.
    The maker of a key holds the lock that `_makers` has for it; threads that need the same object
    wait for that lock.
    """

    def __init__(self, is_valid: Callable[[T], bool] = lambda _: True) -> None:
        """An object for which `is_valid` is False is not shared again."""
        self._is_valid = is_valid
        self._entries: dict[Hashable, _Entry[T]] = {}
        self._makers: dict[Hashable, Lock] = {}
        self._lock = Lock()

    def share(self, key: Hashable | None, make: Callable[[], T], keeps: object = None) -> T:
        """Return the object of a key, made if there is none; None: never shared."""
        if key is None:
            return make()
        with self._lock:
            found = self._find(key)
        if found is None:
            found = self.share_many({key: keeps}, lambda _: [make()])[key]
        return found

    def share_many(
        self, requested: Mapping[Hashable, object], make: Callable[[list[Hashable]], Sequence[T]]
    ) -> dict[Hashable, T]:
        """Return the objects of keys, mapped to what each keeps; `make` makes the missing ones.

        Deadlock-free: a thread waits for other makers only after its own objects are made and its
        lock is released.
        """
        found: dict[Hashable, T] = {}
        # Again after waiting: another maker may have failed, or its object may be gone already.
        while len(found) < len(requested):
            maker = Lock()
            with maker:
                missing, others = self._claim(requested, found, maker)
                try:
                    made = make(missing) if missing else ()
                    with self._lock:
                        for key, shared in zip(missing, made, strict=True):
                            found[key] = shared
                            self._entries[key] = self._entry(key, shared, requested[key])
                finally:
                    self._release(missing, maker)
            for key, other in others.items():
                with other:  # its thread is done, or does not exist after a fork
                    self._release([key], other)
        return found

    def _claim(
        self, requested: Mapping[Hashable, object], found: dict[Hashable, T], maker: Lock
    ) -> tuple[list[Hashable], dict[Hashable, Lock]]:
        """Add existing objects to `found`; return the keys for `maker`, and other makers."""
        missing: list[Hashable] = []
        others: dict[Hashable, Lock] = {}
        with self._lock:
            for key in requested:
                shared = found[key] if key in found else self._find(key)
                if shared is not None:
                    found[key] = shared
                elif key in self._makers:
                    others[key] = self._makers[key]
                else:
                    self._makers[key] = maker
                    missing.append(key)
        return missing, others

    def _release(self, keys: list[Hashable], maker: Lock) -> None:
        with self._lock:
            for key in keys:
                if self._makers.get(key) is maker:
                    del self._makers[key]

    def _find(self, key: Hashable) -> T | None:
        entry = self._entries.get(key)
        found = None if entry is None else entry.shared()
        return found if found is not None and self._is_valid(found) else None

    def _entry(self, key: Hashable, shared: T, keeps: object) -> _Entry[T]:
        def forget(dead: ref[T]) -> None:
            # Without the lock, which this very thread may hold when the object dies: dict
            # operations are atomic. An entry that has replaced the dead one is put back.
            entry = self._entries.pop(key, None)
            if entry is not None and entry.shared is not dead:
                self._entries.setdefault(key, entry)

        return _Entry(ref(shared, forget), keeps)

    def holds(self, key: Hashable) -> bool:
        """Return whether some session uses the object of a key."""
        with self._lock:
            return self._find(key) is not None


STORE: Final[Store[Array]] = Store()  # weights of all sessions
