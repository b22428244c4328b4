"""Samples of a model's inputs: read from .npz files or arrays, validated, split in two halves."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from sardonyx.base.npz import read_npz
from sardonyx.base.records import frozen
from sardonyx.base.shared_store import Array
from sardonyx.errors import InvalidArgument
from sardonyx.quantization.data_reader import feeds_of
from sardonyx.quantization.document import ModelDoc
from sardonyx.quantization.document.model import ValueDoc

MIN_SAMPLES: Final = 4  # two of each part
MAX_CALIBRATED: Final = 64
MAX_HELD_OUT: Final = 512
_LABELS: Final = ("labels", "label", "targets", "target")  # of arrays that are no inputs

Feed = dict[str, Array]


@frozen
class Sample:
    """The inputs of a run by name, and the labels (ground truth), if known."""

    feed: Feed
    labels: Array | None = None


class Samples:
    """A sequence of samples that are read lazily."""

    def __init__(
        self, inputs: Sequence[ValueDoc], sources: Sequence[Any], label: str | None, batch: int
    ) -> None:
        """`sources` are files or mappings of arrays; with `batch`, the only one has rows."""
        self._sources, self._batch, self._count = sources, batch, len(sources)
        self._inputs = {i.name: i for i in inputs}
        first = _arrays(sources[0])
        names = _LABELS if label is None else (label,)
        self._label = next((n for n in names if n in first and n not in self._inputs), None)
        if label is not None and self._label is None:
            raise InvalidArgument(
                f"{_where(sources[0])} has no array {label} that is not an input",
                has=", ".join(first),
            )
        if batch:
            self._rows = first
            count = _length(first, [*self._inputs, self._label])
            # A part of a batch is a run of its own, unless the model declares the size.
            self._count = count // batch if _declared_batch(inputs) else -(-count // batch)

    @property
    def has_labels(self) -> bool:
        """Whether there are labels."""
        return self._label is not None

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Sample]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: int) -> Sample:
        if self._batch:
            part = slice(index * self._batch, (index + 1) * self._batch)
            arrays = {name: array[part] for name, array in self._rows.items()}
        else:
            arrays = _arrays(self._sources[index])
        feed = {name: arrays[name] for name in self._inputs if name in arrays}
        return Sample(feed, None if self._label is None else arrays.get(self._label))

    def check(self) -> None:
        """Raise if a sample does not fit the inputs, or is not finite."""
        if len(self) < MIN_SAMPLES:
            raise InvalidArgument(
                f"{len(self)} samples are too few: {MIN_SAMPLES} or more are needed, as one half "
                "calibrates and the other one is held out to check the result",
                hint="a hundred samples of what the model is used on are a good number",
            )
        for i, sample in enumerate(self):
            where = self.name(i)
            for name, declared in self._inputs.items():
                if name not in sample.feed:
                    raise InvalidArgument(
                        f"{where} lacks the input {name}", has=", ".join(sample.feed) or "nothing"
                    )
                _check_array(sample.feed[name], declared, where)
            if self._label is not None and sample.labels is None:
                raise InvalidArgument(f"{where} has no {self._label}, as the first sample has")

    def name(self, index: int) -> str:
        """Return where a sample is, for messages."""
        where = _where(self._sources[0 if self._batch else index])
        return f"row {index * self._batch} of {where}" if self._batch else where

    def split(self) -> tuple[Part, Part]:
        """Return calibration samples and held-out samples: alternate ones."""
        calibrating = Part(self, tuple(range(0, len(self), 2))).first(MAX_CALIBRATED)
        held_out = Part(self, tuple(range(1, len(self), 2))).first(MAX_HELD_OUT)
        return calibrating, held_out


@frozen
class Part:
    """Some of the samples, by index."""

    samples: Samples
    indices: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[Sample]:
        return (self.samples[i] for i in self.indices)

    def feeds(self) -> Iterator[Feed]:
        """Yield the inputs alone."""
        return (sample.feed for sample in self)

    def of_each_size(self) -> list[Feed]:
        """Return the smallest, the middle and the largest inputs, by number of elements."""
        sizes: dict[tuple[int, Any], int] = {}
        for index in self.indices:
            feed = self.samples[index].feed
            shapes = tuple(sorted((name, array.shape) for name, array in feed.items()))
            sizes.setdefault((sum(array.size for array in feed.values()), shapes), index)
        ranked = [sizes[key] for key in sorted(sizes)]
        picked = {0, len(ranked) // 2, len(ranked) - 1}
        return [self.samples[ranked[i]].feed for i in sorted(picked)]

    def first(self, count: int) -> Part:
        """Return at most `count` of these samples, evenly spread."""
        if count >= len(self):
            return self
        picked = np.linspace(0, len(self) - 1, count).round().astype(int)
        return Part(self.samples, tuple(self.indices[i] for i in picked.tolist()))


def read_samples(
    document: ModelDoc, data: Any, label: str | None = None, batch: int | None = None
) -> Samples:
    """Return the samples of a model, checked.

    `data` is a .npz file, a folder of them, or a sequence of files or mappings of arrays. Several
    are one sample each. The arrays of a single one have a row per sample, `batch` of which are one
    run (default 1, or what the model declares).
    """
    constants = document.graph.initializers
    inputs = [i for i in document.graph.inputs if i.name not in constants]
    sources = _sources(data)
    rows = 0
    if len(sources) == 1:
        rows = _batch_size(inputs, batch)
    elif batch is not None:
        raise InvalidArgument("the batch size is for one file with rows: each file is one sample")
    samples = Samples(inputs, sources, label, rows)
    samples.check()
    return samples


def _sources(data: Any) -> list[Any]:
    """Return files and mappings; a folder stands for the .npz files in it."""
    if isinstance(data, str | os.PathLike | Mapping):
        data = [data]
    sources: list[Any] = []
    for source in feeds_of(data):
        if isinstance(source, Mapping):
            sources.append(source)
            continue
        if not isinstance(source, str | os.PathLike):
            raise InvalidArgument(
                f"samples are files or mappings from names of inputs to arrays, and one is a "
                f"{type(source).__name__}"
            )
        path = pathlib.Path(source)
        if not path.is_dir():
            sources.append(path)
        elif found := sorted(path.glob("*.npz")):
            sources += found
        else:
            raise InvalidArgument(
                f"the folder {path} has no .npz files",
                hint="write samples with numpy.savez(FILE, name=array, ...), a file for each",
            )
    if not sources:
        raise InvalidArgument("no samples are given")
    return sources


def _batch_size(inputs: Sequence[ValueDoc], batch: int | None) -> int:
    """Return how many rows are one run: as given or as declared, else 1."""
    declared = _declared_batch(inputs)
    if batch is not None and declared and batch != declared:
        raise InvalidArgument(f"the model declares batches of {declared}, not of {batch}")
    return batch or declared or 1


def _declared_batch(inputs: Sequence[ValueDoc]) -> int:
    """Return the first size of the inputs, if the model declares it, else 0."""
    fixed = {i.shape[0] for i in inputs if i.shape and isinstance(i.shape[0], int)}
    return max((n for n in fixed if n > 0), default=0)


def _arrays(source: Any) -> dict[str, Array]:
    """Return the arrays of a file or a mapping."""
    if isinstance(source, Mapping):
        return {name: np.asarray(array) for name, array in source.items()}
    return read_npz(source)


def _length(arrays: Mapping[str, Array], names: Sequence[str | None]) -> int:
    """Return the number of rows that the arrays have in common."""
    shapes = {n: arrays[n].shape for n in names if n is not None and n in arrays}
    lengths = {s[0] if s else 0 for s in shapes.values()}
    if len(lengths) > 1:
        sizes = ", ".join(f"{n} {list(s)}" for n, s in shapes.items())
        raise InvalidArgument(
            f"the arrays of a single file have a row per sample, and these differ: {sizes}",
            hint="write a file for each sample, if inputs have no batch axis",
        )
    return max(lengths, default=0)


def _check_array(array: Array, declared: ValueDoc, where: str) -> None:
    """Raise if an array does not fit the declared type and shape, or is not finite."""
    wanted = declared.dtype
    if wanted is not None and array.dtype != wanted.np and array.dtype.kind not in "OUV":
        raise InvalidArgument(
            f"{where}: {declared.name} is {array.dtype}, but the model expects {wanted.np}"
        )
    shape = declared.shape
    if shape is not None:
        fits = len(shape) == array.ndim and all(
            not isinstance(d, int) or d < 0 or d == n
            for d, n in zip(shape, array.shape, strict=True)
        )
        if not fits:
            raise InvalidArgument(
                f"{where}: {declared.name} has the shape {list(array.shape)}, "
                f"but the model expects {list(shape)}"
            )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InvalidArgument(
            f"{where}: {declared.name} has NaN or infinity", hint="remove the sample, or mend it"
        )


def _where(source: Any) -> str:
    return "the data" if isinstance(source, Mapping) else str(source)
