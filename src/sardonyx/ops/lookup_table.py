"""Key-value tables for references, and string indexes for kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

import sardonyx._native as native
from sardonyx.ops.arrays import Array


class LookupTable:
    """Look up values by key: binary search for numbers, a dict for strings."""

    def __init__(self, keys: Array, values: Array, default: Any) -> None:
        """The last of duplicate keys wins. NaN is a valid key."""
        self.values = np.append(values, np.array([default], values.dtype))
        self.strings: dict[str, int] | None = None
        if keys.dtype == object:
            self.strings = {k: i for i, k in enumerate(keys.tolist())}
            return
        # np.unique returns first occurrences: of the reversed keys, those are the last ones.
        self.keys, last = np.unique(keys[::-1], return_index=True)
        self.at = len(keys) - 1 - last

    def find(self, x: Array) -> Array:
        """Return each element's index among the keys, or the number of keys if it is not found."""
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


class StringTable:
    """UTF-8 strings of attributes in one block, and the hash index by which kernels find them."""

    def __init__(self, strings: list[bytes]) -> None:
        try:
            self.block: Array = native.pack_strings(strings)
        except ValueError:  # invalid UTF-8 is decoded with replacement characters
            valid = [s.decode("utf-8", "replace").encode() for s in strings]
            self.block = native.pack_strings(valid)
        self.count = len(strings)
        self.index: Array = native.string_index(self.block, self.count)

    def numbers(self) -> Array:
        """Return each string's index: that of the last of equal strings."""
        return native.string_numbers(self.block, self.count, self.index)

    def find(self, x: Array) -> Array:
        """Return each element's index among the strings, or -1."""
        address = native.address(self.block)
        strings = native.read_strings(address, [self.count]).tolist()
        index_of = {s: i for i, s in enumerate(strings)}
        found = [index_of.get(s, -1) for s in x.reshape(-1).tolist()]
        return np.array(found, np.int64).reshape(x.shape)
