"""The one store of a process: memory that weights take, shared by all sessions that want the same.

Arrays are held weakly here and strongly by sessions: the last one to let go frees them.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from weakref import ref

import numpy as np

from sardonyx.locks import Lock

Array = np.ndarray[Any, np.dtype[Any]]
T = TypeVar("T")

_HUGE: Final = 4 << 20  # bytes from which huge pages pay


def pages(size_bytes: int) -> Array:
    """Bytes on pages of their own, which go back to the system when the last reader is gone.

    What malloc frees it may keep, and packed weights are the largest memory that a session has.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, max(1, size_bytes), flags)
    if size_bytes >= _HUGE:
        with contextlib.suppress(OSError):  # a system without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8, size_bytes)


def on_pages(array: Array) -> Array:
    """A copy of an array on pages of its own."""
    copy: Array = pages(array.nbytes).view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


@dataclass(frozen=True, slots=True)
class _Entry(Generic[T]):
    """A thing, and what must live as long for its key to mean the same bytes."""

    made: ref[T]
    keeps: object


class Store(Generic[T]):
    """Things by what they are made of. Threads that want the same one wait for its maker."""

    def __init__(self, serves: Callable[[T], bool] = lambda _: True) -> None:
        """`serves` is asked whether what is there may be had again."""
        self._serves = serves
        self._entries: dict[Hashable, _Entry[T]] = {}
        self._makers: dict[Hashable, Lock] = {}
        self._lock = Lock()

    def share(self, key: Hashable | None, make: Callable[[], T], keeps: object = None) -> T:
        """The thing of a key, made if nobody has it. None is the key of what must not be shared."""
        if key is None:
            return make()
        with self._lock:
            found = self._find(key)
            if found is not None:
                return found
            maker = self._makers.setdefault(key, Lock())
        with maker:
            try:
                with self._lock:
                    found = self._find(key)
                if found is None:
                    found = make()
                    with self._lock:
                        self._entries[key] = self._entry(key, found, keeps)
                return found
            finally:
                with self._lock:
                    if self._makers.get(key) is maker:
                        del self._makers[key]

    def _find(self, key: Hashable) -> T | None:
        entry = self._entries.get(key)
        found = None if entry is None else entry.made()
        return found if found is not None and self._serves(found) else None

    def _entry(self, key: Hashable, made: T, keeps: object) -> _Entry[T]:
        def forget(dead: ref[T]) -> None:
            # No lock: a thing may die while its own thread holds it. One that came in the place
            # of this is put back.
            entry = self._entries.pop(key, None)
            if entry is not None and entry.made is not dead:
                self._entries.setdefault(key, entry)

        return _Entry(ref(made, forget), keeps)

    def holds(self, key: Hashable) -> bool:
        """Whether some session has the thing of a key."""
        with self._lock:
            return self._find(key) is not None


STORE: Final[Store[Array]] = Store()
