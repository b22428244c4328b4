"""How weights come to devices: what they are, who fills the device's memory, who is asked first."""

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
from sardonyx.graph.const import Const, File, Ref
from sardonyx.graph.dtype import U8, DType

Report = Callable[[int, int], None]  # bytes that are done, of how many; may raise to end the work


def silent(done: int, total: int) -> None:
    """Says nothing of how far it is."""


@frozen
class Conversion:
    """What a device makes of a weight once its bytes are there: another type, order or layout."""

    name: str  # equal for equal conversions: sessions share what they make
    dtype: DType
    shape: tuple[int, ...]
    convert: Callable[[Any], Any]  # from the weight on the device; may give a view of it


@frozen
class WeightReference:
    """A weight that a device wants: what it is, and where its bytes lie.

    Those are `length` bytes in ONNX's form: little-endian, elements of fewer than 8 bits packed.
    """

    name: str
    const: Const
    is_packed: bool = False  # a type of fewer than 8 bits stays as it is stored, as plain bytes
    conversion: Conversion | None = None

    @property
    def dtype(self) -> DType:
        """The element type that the device is to have."""
        if self.conversion is not None:
            return self.conversion.dtype
        return U8 if self._stays_packed else self.const.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that the device is to have."""
        if self.conversion is not None:
            return self.conversion.shape
        return (self.length,) if self._stays_packed else self.const.shape

    @property
    def size_bytes(self) -> int:
        """The memory that it takes on the device."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def file(self) -> File | None:
        """The file that the bytes lie in, as it was when the model was opened."""
        return self.const.source.file if isinstance(self.const, Ref) else None

    @property
    def path(self) -> str | None:
        """The path of that file; None for bytes in memory, which `buffer` gives."""
        return None if self.file is None else self.file.path

    @property
    def offset(self) -> int:
        """Where in the file the bytes begin."""
        return self.const.offset if isinstance(self.const, Ref) else 0

    @property
    def length(self) -> int:
        """How many bytes there are."""
        return self.const.dtype.packed_bytes(self.const.count)

    @property
    def form(self) -> Hashable:
        """What is equal for weights of the same bytes that are the same on a device."""
        return self.is_packed, None if self.conversion is None else self.conversion.name

    def buffer(self) -> memoryview:
        """The bytes in memory: mapped, a user's, or computed for this call."""
        if isinstance(self.const, Ref):
            self.const.fetch()
            return self.const.source.data[self.const.offset :][: self.const.length]
        stored = np.ascontiguousarray(self.const.stored())
        return stored.reshape(-1).view(np.uint8).data

    def array(self) -> Array:
        """The weight on the host as the device is to have it, but for its conversion."""
        return self.const.stored() if self._stays_packed else self.const.view()

    def release(self, begin: int = 0, length: int | None = None) -> None:
        """Says that bytes which `buffer` showed are not needed again: their pages are dropped."""
        if isinstance(self.const, Ref):
            count = self.const.length - begin if length is None else length
            self.const.source.advise(mmap.MADV_DONTNEED, self.const.offset + begin, count)

    @property
    def _stays_packed(self) -> bool:
        return self.is_packed and self.const.dtype.bits < 8


class DataLoader(Protocol):
    """Fills memory of a device with weights. Of what it allocates, only it knows what it is."""

    shares: bool = False  # sessions may share what it filled; that can be referenced weakly then

    @abstractmethod
    def can_load(self, device: str) -> bool:
        """Whether it loads to a device, by its name: "cuda:0"."""
        ...

    @abstractmethod
    def allocate(self, reference: WeightReference) -> Any:
        """Room for a weight on the device."""
        ...

    @abstractmethod
    def load(self, reference: WeightReference, destination: Any) -> None:
        """Fills what `allocate` gave for a weight."""
        ...

    def load_many(self, pairs: Sequence[tuple[WeightReference, Any]], report: Report) -> None:
        """Fills many, and reports how many bytes are done; here one after the other."""
        total, done = sum(r.length for r, _ in pairs), 0
        for reference, destination in pairs:
            self.load(reference, destination)
            done += reference.length
            report(done, total)


class LoaderManager:
    """Brings weights to devices: by the first loader that can, else as arrays of the host."""

    def __init__(self, loaders: Iterable[DataLoader] = ()) -> None:
        self._loaders = list(loaders)

    def register(self, loader: DataLoader) -> None:
        """Asks a loader too, after those that are there."""
        self._loaders.append(loader)

    def place(
        self,
        references: Sequence[WeightReference],
        device: str,
        upload: Callable[[Array], Any],
        check: Callable[[], None] | None = None,
    ) -> list[Any]:
        """What the device has for each weight; weights of the same bytes and form are there once.

        `upload` is the provider's own way for an array. `check` may raise to end the work.
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

        def make(missing: list[Hashable]) -> list[Any]:
            wanted = [unique[k] for k in (*missing, *alone)]
            with track(f"loading weights to {device}") as progress:
                report = _reporting(progress, check)
                if loader is None:
                    made = _uploaded(wanted, upload, report)
                else:
                    made = _loaded(wanted, loader, report)
            placed.update(zip(alone, made[len(missing) :], strict=True))
            alone.clear()
            return made[: len(missing)]

        placed.update(_PLACED.share_many(shared, make))
        if alone:
            make([])
        return [placed[k] for k in keys]


_PLACED: Final[Store[Any]] = Store()  # what loaders filled, by bytes, form and device


def _key(reference: WeightReference, at: int, device: str, loader: DataLoader | None) -> Hashable:
    place = reference.const.place
    if place is None:
        return "alone", at
    return type(loader), device, place, reference.form


def _reporting(progress: Progress, check: Callable[[], None] | None) -> Report:
    def report(done: int, total: int) -> None:
        progress.update(done, total)
        if check is not None:
            check()

    return report


def _uploaded(
    references: Sequence[WeightReference], upload: Callable[[Array], Any], report: Report
) -> list[Any]:
    """The way of weights that no loader takes: arrays of the host, copied by the provider."""
    total, done = sum(r.length for r in references), 0
    made = []
    for reference in references:
        there = upload(reference.array())
        reference.release()
        conversion = reference.conversion
        made.append(there if conversion is None else conversion.convert(there))
        done += reference.length
        report(done, total)
    return made


def _loaded(references: Sequence[WeightReference], loader: DataLoader, report: Report) -> list[Any]:
    """Weights on a device, all or none: an error leaves nothing behind."""
    pairs: list[tuple[WeightReference, Any]] = []
    try:
        _allocate(references, loader, pairs)
        loader.load_many(pairs, report)
        return [destination for _, destination in pairs]
    except BaseException as error:
        pairs.clear()  # whoever keeps the error keeps all that calls left, but not the memory
        for each in (error, error.__context__):
            traceback.clear_frames(None if each is None else each.__traceback__)
        raise


def _allocate(
    references: Sequence[WeightReference],
    loader: DataLoader,
    pairs: list[tuple[WeightReference, Any]],
) -> None:
    """Room for all weights, before any of them is read."""
    try:
        for reference in references:
            pairs.append((reference, loader.allocate(reference)))  # noqa: PERF401 - kept on errors
    except SardonyxError as error:
        taken, total = sum(r.size_bytes for r, _ in pairs), sum(r.size_bytes for r in references)
        error.at(
            weight=references[len(pairs)].name,
            placed=f"{format_bytes(taken)} of {format_bytes(total)}",
        )
        raise
