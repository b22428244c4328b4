"""Readers of calibration samples."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping
from typing import Any

Feeds = Mapping[str, Any]


class CalibrationDataReader(abc.ABC):
    """Yields samples: `get_next` returns the inputs of a run by name, and None after the last."""

    @classmethod
    def __subclasshook__(cls, subclass: type) -> bool:
        """Every class with a method `get_next` is a reader."""
        return callable(getattr(subclass, "get_next", None)) or NotImplemented

    @abc.abstractmethod
    def get_next(self) -> Any:
        """Return the inputs of the next run, or None."""

    def __iter__(self) -> Iterator[Feeds]:
        return self

    def __next__(self) -> Feeds:
        feeds: Feeds | None = self.get_next()
        if feeds is None:
            raise StopIteration
        return feeds

    def __len__(self) -> int:
        raise NotImplementedError("this reader does not know how many samples it has")

    def set_range(self, start_index: int, end_index: int) -> None:
        """Select the samples that `get_next` returns, for `CalibStridedMinMax`."""
        raise NotImplementedError("this reader cannot select samples")


def feeds_of(reader: Any) -> Iterator[Feeds]:
    """Yield the samples of a reader, or of any iterable of feeds."""
    if not hasattr(reader, "get_next"):
        yield from reader
        return
    while feeds := reader.get_next():
        yield feeds
