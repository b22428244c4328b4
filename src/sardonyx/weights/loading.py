"""Loads weights to devices: `WeightReference` describes one, a `DataLoader` fills device memory.

`LoaderManager.place` picks the loader and shares equal weights between sessions.
"""

from __future__ import annotations

import mmap
import traceback
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final, Protocol

import numpy as np

from sardonyx.base.progress import Progress, track
from sardonyx.base.records import frozen
from sardonyx.base.shared_store import Array, Store
from sardonyx.base.units import format_bytes
from sardonyx.errors import SardonyxError
from sardonyx.graph.const import Const, File, SourceConst
from sardonyx.graph.dtype import U8, DType

Report = Callable[[int, int], None]  # (bytes done, bytes in all); may raise to cancel


def silent(done: int, total: int) -> None:
    """Discard the progress."""


@frozen
class Conversion:
    """A change of a weight on the device, after its bytes are loaded: another type or layout."""

    name: str  # equal for equal conversions, whose results sessions share
    dtype: DType
    shape: tuple[int, ...]
    convert: Callable[[Any], Any]  # of the weight on the device; may return a view


@frozen
class WeightReference:
    """A weight to load to a device, and where its bytes are stored.

    There are `length` bytes in ONNX's encoding: little-endian, sub-byte elements packed.
    """

    name: str
    const: Const
    is_packed: bool = False  # a sub-byte type is loaded packed, as uint8
    conversion: Conversion | None = None

    @property
    def dtype(self) -> DType:
        """The element type on the device."""
        if self.conversion is not None:
            return self.conversion.dtype
        return U8 if self._stays_packed else self.const.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape on the device."""
        if self.conversion is not None:
            return self.conversion.shape
        return (self.length,) if self._stays_packed else self.const.shape

    @property
    def size_bytes(self) -> int:
        """Its memory on the device."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def file(self) -> File | None:
        """The file of the bytes, as it was when the model was opened; None: they are in memory."""
        return self.const.source.file if isinstance(self.const, SourceConst) else None

    @property
    def path(self) -> str | None:
        """The path of that file; None for bytes in memory, which `buffer` returns."""
        return None if self.file is None else self.file.path

    @property
    def offset(self) -> int:
        """The offset of the bytes in the file."""
        return self.const.offset if isinstance(self.const, SourceConst) else 0

    @property
    def length(self) -> int:
        """The number of stored bytes."""
        return self.const.dtype.packed_bytes(self.const.count)

    @property
    def layout_key(self) -> Hashable:
        """A key of the layout on the device: equal for references that may share memory there."""
        return self.is_packed, None if self.conversion is None else self.conversion.name

    def buffer(self) -> memoryview:
        """Return the bytes in memory: of the mapping, of the user, or computed for this call."""
        if isinstance(self.const, SourceConst):
            self.const.fetch()
            return self.const.source.data[self.const.offset :][: self.const.length]
        stored = np.ascontiguousarray(self.const.stored())
        return stored.reshape(-1).view(np.uint8).data

    def array(self) -> Array:
        """Return the weight on the host, as it is uploaded and before its conversion."""
        return self.const.stored() if self._stays_packed else self.const.view()

    def release(self, begin: int = 0, length: int | None = None) -> None:
        """Drop the pages of bytes that `buffer` returned and that are not needed again."""
        if isinstance(self.const, SourceConst):
            count = self.const.length - begin if length is None else length
            self.const.source.advise(mmap.MADV_DONTNEED, self.const.offset + begin, count)

    @property
    def _stays_packed(self) -> bool:
        return self.is_packed and self.const.dtype.bits < 8


class DataLoader(Protocol):
    """Fills device memory with weights. What `allocate` returns is opaque to all others."""

    shares: bool = False  # sessions share what it filled, which must be weakly referenceable

    @abstractmethod
    def can_load(self, device: str) -> bool:
        """Whether it loads to a device, by name: "cuda:0"."""
        ...

    @abstractmethod
    def allocate(self, reference: WeightReference) -> Any:
        """Allocate device memory for a weight."""
        ...

    @abstractmethod
    def load(self, reference: WeightReference, destination: Any) -> None:
        """Fill what `allocate` returned for a weight."""
        ...

    def load_many(self, pairs: Sequence[tuple[WeightReference, Any]], report: Report) -> None:
        """Fill several and report the bytes done; by default one after the other."""
        total, done = sum(r.length for r, _ in pairs), 0
        for reference, destination in pairs:
            self.load(reference, destination)
            done += reference.length
            report(done, total)


class LoaderManager:
    """Loads weights by the first loader for the device, else as arrays of the host."""

    def __init__(self, loaders: Iterable[DataLoader] = ()) -> None:
        self._loaders = list(loaders)

    def register(self, loader: DataLoader) -> None:
        """Add a loader, with the lowest priority."""
        self._loaders.append(loader)

    def place(
        self,
        references: Sequence[WeightReference],
        device: str,
        upload: Callable[[Array], Any],
        check: Callable[[], None] | None = None,
    ) -> list[Any]:
        """Return the device memory of each weight; equal weights are loaded once. Thread-safe.

        `upload` copies an array of the host; it serves where no loader does. `check` may raise to
        cancel.
        """
        loader = next((each for each in self._loaders if each.can_load(device)), None)
        keys = [_key(r, i, device, loader) for i, r in enumerate(references)]
        unique: dict[Hashable, WeightReference] = {}
        for key, reference in zip(keys, references, strict=True):
            unique.setdefault(key, reference)
        shares = loader is not None and loader.shares
        shared = {k: r.const for k, r in unique.items() if shares and r.const.identity is not None}
        alone = [k for k in unique if k not in shared]
        placed: dict[Hashable, Any] = {}

        # Called by the store with the keys that no other session has. Weights that cannot be shared
        # go along, so that one pass over the files loads all.
        def make(missing: list[Hashable]) -> list[Any]:
            selected = [unique[k] for k in (*missing, *alone)]
            with track(f"loading weights to {device}") as progress:
                report = _reporting(progress, check)
                if loader is None:
                    loaded = _upload_all(selected, upload, report)
                else:
                    loaded = _load_all(selected, loader, report)
            placed.update(zip(alone, loaded[len(missing) :], strict=True))
            alone.clear()
            return loaded[: len(missing)]

        placed.update(_PLACED.share_many(shared, make))
        if alone:
            make([])
        return [placed[k] for k in keys]


_PLACED: Final[Store[Any]] = Store()  # device memory, by bytes, layout and device


def _key(reference: WeightReference, at: int, device: str, loader: DataLoader | None) -> Hashable:
    content_id = reference.const.content_id
    if content_id is None:
        return "alone", at
    return type(loader), device, content_id, reference.layout_key


def _reporting(progress: Progress, check: Callable[[], None] | None) -> Report:
    def report(done: int, total: int) -> None:
        progress.update(done, total)
        if check is not None:
            check()

    return report


def _upload_all(
    references: Sequence[WeightReference], upload: Callable[[Array], Any], report: Report
) -> list[Any]:
    """Copy weights as arrays of the host, by the provider: no loader serves the device."""
    total, done = sum(r.length for r in references), 0
    loaded = []
    for reference in references:
        weight = upload(reference.array())
        reference.release()
        conversion = reference.conversion
        loaded.append(weight if conversion is None else conversion.convert(weight))
        done += reference.length
        report(done, total)
    return loaded


def _load_all(
    references: Sequence[WeightReference], loader: DataLoader, report: Report
) -> list[Any]:
    """Load all weights or none: an error frees what was allocated."""
    pairs: list[tuple[WeightReference, Any]] = []
    try:
        _allocate(references, loader, pairs)
        loader.load_many(pairs, report)
        return [destination for _, destination in pairs]
    except BaseException as error:
        # A caller that keeps the error also keeps the frames of its traceback: their local
        # variables would keep the device memory alive.
        pairs.clear()
        for each in (error, error.__context__):
            traceback.clear_frames(None if each is None else each.__traceback__)
        raise


def _allocate(
    references: Sequence[WeightReference],
    loader: DataLoader,
    pairs: list[tuple[WeightReference, Any]],
) -> None:
    """Allocate memory for all weights before any is read: running out of it is cheap then."""
    try:
        for reference in references:
            pairs.append((reference, loader.allocate(reference)))  # noqa: PERF401 - kept on errors
    except SardonyxError as error:
        taken, total = sum(r.size_bytes for r, _ in pairs), sum(r.size_bytes for r in references)
        error.add_context(
            weight=references[len(pairs)].name,
            placed=f"{format_bytes(taken)} of {format_bytes(total)}",
        )
        raise
