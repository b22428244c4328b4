"""Tables that find values by key."""

from __future__ import annotations

from typing import Any

import numpy as np

import sardonyx._native as native
from sardonyx.ops.arrays import Array


class Table:
    """Finds values by key: a sorted table for numbers, a dict for strings."""

    def __init__(self, keys: Array, values: Array, default: Any) -> None:
        """A key that is given twice stands for its last value. NaN is a key like any other."""
        self.values = np.append(values, np.array([default], values.dtype))
        self.strings: dict[str, int] | None = None
        if keys.dtype == object:
            self.strings = {k: i for i, k in enumerate(keys.tolist())}
            return
        self.keys, last = np.unique(keys[::-1], return_index=True)
        self.at = len(keys) - 1 - last

    def find(self, x: Array) -> Array:
        """Where each element is among the keys; the number of keys where it is none of them."""
        missing = len(self.values) - 1
        if self.strings is not None:
            found = [self.strings.get(s, missing) for s in x.reshape(-1).tolist()]
            return np.array(found, np.intp).reshape(x.shape)
        if not self.keys.size:
            return np.full(x.shape, missing)
        at = np.minimum(np.searchsorted(self.keys, x), len(self.keys) - 1)
        key = self.keys[at]
        return np.where((key == x) | ((key != key) & (x != x)), self.at[at], missing)

    def __call__(self, x: Array) -> Array:
        return np.asarray(self.values[self.find(x)], self.values.dtype)


class TextTable:
    """Strings from attributes, bytes in UTF-8, and the index by which kernels find one of them."""

    def __init__(self, strings: list[bytes]) -> None:
        try:
            self.block: Array = native.pack_strings(strings)
        except ValueError:  # what is no UTF-8 is read as everywhere else
            valid = [s.decode("utf-8", "replace").encode() for s in strings]
            self.block = native.pack_strings(valid)
        self.count = len(strings)
        self.index: Array = native.string_index(self.block, self.count)

    def numbers(self) -> Array:
        """For each string its place, the last where it is there twice."""
        return native.string_numbers(self.block, self.count, self.index)

    def find(self, x: Array) -> Array:
        """Where each element is among the strings, or -1."""
        address = native.address(self.block)
        strings = native.read_strings(address, [self.count]).tolist()
        places = {s: i for i, s in enumerate(strings)}
        found = [places.get(s, -1) for s in x.reshape(-1).tolist()]
        return np.array(found, np.int64).reshape(x.shape)
