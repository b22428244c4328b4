"""A cache of values computed from attributes, such as a tree ensemble, while those are alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import numpy as np

T = TypeVar("T")
Key = tuple[int | tuple[int], ...]  # integers by value, other objects by (id,)

# Entries per op: lists of strings have no weak references, so their entries are only evicted.
MAX_ENTRIES: Final = 256


class Memoized(Generic[T]):
    """A function of attributes, evaluated once for each combination of them.

    Attributes other than integers are compared by identity: a node passes the same objects in every
    run. The result must not reference the arrays it is computed from, or neither is ever freed.
    """

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[..., T]) -> None:
        self._make: Final = make
        self._made: Final[dict[Key, tuple[T, list[Any]]]] = {}

    def __call__(self, *args: Any) -> T:
        key = tuple(p if type(p) is int else (id(p),) for p in args)
        entry = self._made.get(key)
        return self._keep(key, args) if entry is None else entry[0]

    def _keep(self, key: Key, args: tuple[Any, ...]) -> T:
        result = self._make(*args)

        def forget(_: Any) -> None:
            self._made.pop(key, None)

        kept_alive = [weakref.ref(p, forget) if isinstance(p, np.ndarray) else p for p in args]
        self._made[key] = (result, kept_alive)
        if len(self._made) > MAX_ENTRIES:
            self._made.pop(next(iter(self._made)), None)
        return result
