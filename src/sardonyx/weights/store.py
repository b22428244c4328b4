"""The one store of a process: memory that weights take, shared by all sessions that want the same.

Arrays are held weakly here and strongly by sessions: the last one to let go frees them.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from collections.abc import Callable, Hashable
from typing import Any, Final
from weakref import WeakValueDictionary

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

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


class Store:
    """Arrays by what they are made of. Threads that want the same one wait for its maker."""

    def __init__(self) -> None:
        self._arrays: WeakValueDictionary[Hashable, Array] = WeakValueDictionary()
        self._makers: dict[Hashable, threading.Lock] = {}
        self._lock = threading.Lock()

    def share(self, key: Hashable | None, make: Callable[[], Array]) -> Array:
        """The array of a key, made if nobody has it. None is the key of what must not be shared."""
        if key is None:
            return make()
        with self._lock:
            found = self._arrays.get(key)
            if found is not None:
                return found
            maker = self._makers.setdefault(key, threading.Lock())
        with maker:
            try:
                with self._lock:
                    found = self._arrays.get(key)
                if found is None:
                    found = make()
                    with self._lock:
                        self._arrays[key] = found
                return found
            finally:
                with self._lock:
                    self._makers.pop(key, None)

    def holds(self, key: Hashable) -> bool:
        """Whether some session has the array of a key."""
        with self._lock:
            return key in self._arrays

    def after_fork(self) -> None:
        """A thread that is gone may have held a lock; arrays are the child's as well."""
        self._lock = threading.Lock()
        self._makers = {}


STORE: Final = Store()
os.register_at_fork(after_in_child=STORE.after_fork)
