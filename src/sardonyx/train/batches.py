"""Training data as feeds by epoch, in an order that a seed determines and a run can resume."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.base.shared_store import Array
from sardonyx.errors import InvalidArgument

Feeds = dict[str, Array]
# Arrays by input, or in the order of the inputs; feeds; or a function from an epoch to feeds.
Data = Mapping[str, Any] | tuple[Any, ...] | Iterable[Any] | Callable[[int], Iterable[Any]]


@frozen
class BatchOptions:
    """How arrays become batches."""

    batch_size: int | None = None
    shuffle: bool = True
    seed: int = 0
    drop_last: bool = False  # leave out a last batch that is not full
    purpose: str = "data"  # what messages call the data


class Batches:
    """The batches of each epoch; the same for equal data, options and epochs."""

    def __init__(self, data: Data, names: Sequence[str], options: BatchOptions) -> None:
        """Take data for the inputs `names`, in the model's order."""
        self._names = list(names)
        self._options = options
        _check(options)
        self.count: int | None  # batches of an epoch; None if unknown
        self._open: Callable[[int], Iterator[Any]]
        if holds_arrays(data):
            arrays = _checked(self._feed(data))
            self.count, self._open = self._of_arrays(arrays)
            return
        _check_feeds(data, options.purpose)
        if options.batch_size is not None:
            raise InvalidArgument(
                "batch_size is for arrays, but the data are feeds, which are batches already",
                hint="leave it out, or give a dict of arrays by input",
            )
        if callable(data):
            self.count, self._open = None, lambda epoch: _made_by(data, epoch, options.purpose)
        elif isinstance(data, Sequence):
            self.count, self._open = self._of_sequence(data)
        else:
            self.count, self._open = _of_iterable(data, options.purpose)

    def epoch(self, epoch: int, skip: int = 0) -> Iterator[Feeds]:
        """Yield the feeds of an epoch, without the first `skip`, which a run has had already."""
        feeds = self._open(epoch)
        for _ in itertools.islice(feeds, skip):
            pass
        for item in feeds:
            yield self._feed(item)

    def _of_arrays(self, arrays: Feeds) -> tuple[int, Callable[[int], Iterator[Any]]]:
        options, total = self._options, len(next(iter(arrays.values())))
        size = min(options.batch_size or total, total)
        if options.drop_last and options.batch_size is not None and options.batch_size > total:
            raise InvalidArgument(
                f"batch_size is {options.batch_size}, and drop_last leaves no batch of {total} "
                "samples"
            )
        ends = range(size, total + (1 if options.drop_last else size), size)

        def feeds(epoch: int) -> Iterator[Any]:
            order = self._order(epoch, total)
            for end in ends:
                chosen = order[end - size : end]
                yield {name: array[chosen] for name, array in arrays.items()}

        return len(ends), feeds

    def _of_sequence(self, data: Sequence[Any]) -> tuple[int, Callable[[int], Iterator[Any]]]:
        if not len(data):
            raise InvalidArgument("data has no feeds")
        return len(data), lambda epoch: (data[i] for i in self._order(epoch, len(data)))

    def _order(self, epoch: int, count: int) -> Array:
        if not self._options.shuffle:
            return np.arange(count)
        return np.random.default_rng((self._options.seed, epoch)).permutation(count)

    def _feed(self, item: Any) -> Feeds:
        """One item of the data as arrays by name of an input."""
        if isinstance(item, Mapping):
            unknown = [name for name in item if name not in self._names]
            if unknown:
                raise InvalidArgument(
                    f"the data has {unknown[0]!r}, and the model has no such input",
                    inputs=", ".join(self._names),
                )
            return {name: np.asarray(array) for name, array in item.items()}
        values = item if isinstance(item, (tuple, list)) else [item]
        if len(values) != len(self._names):
            raise InvalidArgument(
                f"the data has {len(values)} arrays per batch, and the model {len(self._names)} "
                f"inputs: {', '.join(self._names)}"
            )
        return {n: np.asarray(array) for n, array in zip(self._names, values, strict=True)}


def holds_arrays(data: Data) -> bool:
    """Return whether data is all samples of each input, not feeds."""
    if isinstance(data, tuple):
        return bool(data) and all(hasattr(value, "shape") for value in data)
    return isinstance(data, Mapping)


def _checked(arrays: Feeds) -> Feeds:
    """Arrays of one length."""
    if not arrays:
        raise InvalidArgument("data has no arrays")
    lengths = {name: len(a) if a.ndim else 0 for name, a in arrays.items()}
    if len(set(lengths.values())) > 1 or 0 in lengths.values():
        shown = ", ".join(f"{name}: {list(a.shape)}" for name, a in arrays.items())
        raise InvalidArgument(f"inputs need the same, non-zero number of samples, got {shown}")
    return arrays


def _check(options: BatchOptions) -> None:
    size = options.batch_size
    if size is not None and (not isinstance(size, int) or size < 1):
        raise InvalidArgument(f"batch_size must be a positive integer, got {size!r}")


def _check_feeds(data: Any, purpose: str) -> None:
    if isinstance(data, (str, bytes)) or not (callable(data) or isinstance(data, Iterable)):
        raise InvalidArgument(
            f"{purpose} is a {type(data).__name__}, not arrays, feeds or a function of the epoch"
        )


def _made_by(data: Callable[[int], Iterable[Any]], epoch: int, purpose: str) -> Iterator[Any]:
    """Yield the feeds that a function makes for an epoch."""
    feeds = data(epoch)
    if not isinstance(feeds, Iterable):
        raise InvalidArgument(
            f"the function given as {purpose} returns a {type(feeds).__name__} for epoch {epoch}, "
            "not feeds"
        )
    return iter(feeds)


def _of_iterable(
    data: Iterable[Any], purpose: str
) -> tuple[int | None, Callable[[int], Iterator[Any]]]:
    is_single = iter(data) is data
    seen: list[int] = []

    def feeds(epoch: int) -> Iterator[Any]:
        if is_single and seen:
            raise InvalidArgument(
                f"{purpose} is an iterator: it can be read only once, and a second epoch needs it",
                hint="give a list, or a function from the epoch's number to an iterator",
            )
        seen.append(epoch)
        return iter(data)

    count = getattr(data, "__len__", None)
    return None if count is None else int(count()), feeds


def samples_in(feeds: Feeds) -> int:
    """Return the number of samples of a batch: the first dim of its first array that has one."""
    return next((a.shape[0] for a in feeds.values() if a.ndim), 1)


def tokens_in(feeds: Feeds) -> int:
    """Return the number of tokens of a batch: elements of its largest integer matrix, or 0."""
    return max((a.size for a in feeds.values() if a.ndim == 2 and a.dtype.kind in "iu"), default=0)
