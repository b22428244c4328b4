"""What an op makes of its attributes once, such as a forest, and keeps while they live."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import numpy as np

T = TypeVar("T")
Key = tuple[int | tuple[int], ...]  # numbers themselves, and where everything else is

MOST: Final = (
    256  # things kept per op; attributes that are lists of strings cannot say when they die
)


class Memoized(Generic[T]):
    """A function of attributes that is run once for each set of them.

    Attributes other than numbers are known by identity: a node hands the same objects to every run.
    What is made must not hold on to the arrays it was made from, or neither would ever be freed.
    """

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[..., T]) -> None:
        self._make: Final = make
        self._made: Final[dict[Key, tuple[T, list[Any]]]] = {}

    def __call__(self, *parts: Any) -> T:
        key = tuple(p if type(p) is int else (id(p),) for p in parts)
        found = self._made.get(key)
        return self._keep(key, parts) if found is None else found[0]

    def _keep(self, key: Key, parts: tuple[Any, ...]) -> T:
        made = self._make(*parts)

        def forget(_: Any) -> None:
            self._made.pop(key, None)

        held = [weakref.ref(p, forget) if isinstance(p, np.ndarray) else p for p in parts]
        self._made[key] = (made, held)
        if len(self._made) > MOST:
            self._made.pop(next(iter(self._made)), None)
        return made
