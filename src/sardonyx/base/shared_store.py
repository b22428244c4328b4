"""The one store of a process: memory that weights take, shared by all sessions that want the same.

Arrays are held weakly here and strongly by sessions: the last one to let go frees them.
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


@frozen
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
        self._makers: dict[Hashable, Lock] = {}  # held by those who make the thing of a key
        self._lock = Lock()

    def share(self, key: Hashable | None, make: Callable[[], T], keeps: object = None) -> T:
        """The thing of a key, made if nobody has it. None is the key of what must not be shared."""
        if key is None:
            return make()
        with self._lock:
            found = self._find(key)
        if found is None:
            found = self.share_many({key: keeps}, lambda _: [make()])[key]
        return found

    def share_many(
        self, wanted: Mapping[Hashable, object], make: Callable[[list[Hashable]], Sequence[T]]
    ) -> dict[Hashable, T]:
        """The things of keys, with what each keeps; `make` makes all that are missing at once.

        Nobody waits for another before its own are made, so that no two wait for each other.
        """
        found: dict[Hashable, T] = {}
        while len(found) < len(wanted):
            maker = Lock()
            with maker:
                missing, others = self._claim(wanted, found, maker)
                try:
                    things = make(missing) if missing else ()
                    with self._lock:
                        for key, thing in zip(missing, things, strict=True):
                            found[key] = thing
                            self._entries[key] = self._entry(key, thing, wanted[key])
                finally:
                    self._let_go(missing, maker)
            for key, other in others.items():
                with other:  # whose thread is done, or was left behind by a fork
                    self._let_go([key], other)
        return found

    def _claim(
        self, wanted: Mapping[Hashable, object], found: dict[Hashable, T], maker: Lock
    ) -> tuple[list[Hashable], dict[Hashable, Lock]]:
        """Fills in what is there; the keys that `maker` is to make, and who makes the others."""
        missing: list[Hashable] = []
        others: dict[Hashable, Lock] = {}
        with self._lock:
            for key in wanted:
                thing = found[key] if key in found else self._find(key)
                if thing is not None:
                    found[key] = thing
                elif key in self._makers:
                    others[key] = self._makers[key]
                else:
                    self._makers[key] = maker
                    missing.append(key)
        return missing, others

    def _let_go(self, keys: list[Hashable], maker: Lock) -> None:
        with self._lock:
            for key in keys:
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
